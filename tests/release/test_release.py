"""What stands in the way of a release is named, and nothing else is."""

from tests.release.check import problems_of

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
