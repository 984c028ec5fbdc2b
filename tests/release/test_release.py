"""What stands in the way of a release is named, and nothing else is."""

import re

from tests.release.check import ROOT, problems_of
from tidelog import __version__

CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-11-18\n\n- A thing.\n"
WHEELS = ["tidelog-1.2.3-py3-none-any.whl"]


def test_a_tree_that_is_ready() -> None:
    assert problems_of("1.2.3", CHANGELOG, ["v1.2.3"], "", WHEELS) == []


def test_everything_that_is_missing_is_named() -> None:
    assert [line.partition(":")[0] for line in problems_of("1.2.4", CHANGELOG, ["v1.2.3"], " M x", WHEELS)] == [
        "CHANGELOG.md has no entry '## [1.2.4] - YYYY-MM-DD'",
        "this commit does not have the tag v1.2.4",
        "the tree has changes that are not committed",
        "dist/ has no wheel of 1.2.4",
    ]
    assert "is not a version" in problems_of("1.2", CHANGELOG, ["v1.2"], "", [])[0]


def test_this_version_has_its_entry() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert problems_of(__version__, changelog, [f"v{__version__}"], "", [f"tidelog-{__version__}-py3-none-any.whl"]) == []


def test_nothing_says_that_tidelog_is_in_an_index() -> None:
    """Until it is: what a reader copies has to work today."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    promises = {str(path): re.findall(r"pip install '?tidelog(?:\[\w+\])?(?![-\w])", path.read_text()) for path in pages}
    assert len(pages) > 500
    assert {path: found for path, found in promises.items() if found} == {}


def test_the_wheel_that_pages_name_is_that_of_this_version() -> None:
    named = {name for path in (ROOT / "docs").rglob("*.md") for name in re.findall(r"tidelog-[\w.-]+?\.whl", path.read_text())}
    assert named == {f"tidelog-{__version__}-py3-none-any.whl"}
