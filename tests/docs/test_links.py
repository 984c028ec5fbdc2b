"""Every page is reachable from the index, and every relative link in a page leads to a file that exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
INDEX = ROOT / "docs" / "README.md"


def linked_files(page: Path) -> list[Path]:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    return [(page.parent / target.split("#")[0]).resolve() for target in targets if "://" not in target and target[0] != "#"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    assert [str(path) for path in linked_files(page) if not path.exists()] == []


def test_the_index_names_every_page() -> None:
    assert [str(page) for page in PAGES if page.is_relative_to(ROOT / "docs") and page not in {INDEX, *linked_files(INDEX)}] == []
