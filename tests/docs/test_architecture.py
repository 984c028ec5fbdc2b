"""The map in docs/ARCHITECTURE.md is true: every path on it exists, and no package of the source is missing."""

import re

from tests.docs.shell import ROOT

PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
MAP = PAGE[PAGE.index("# The map") : PAGE.index("# Decisions")]
PATHS = re.findall(r"`((?:src|simulation|pyproject|tests)[\w./]*)`", MAP)


def test_every_path_on_the_map_exists() -> None:
    assert len(PATHS) > 35
    assert [path for path in PATHS if not (ROOT / path).exists()] == []


def test_every_package_is_on_the_map() -> None:
    packages = {f"src/tidelog/{path.parent.name}" for path in (ROOT / "src/tidelog").glob("*/__init__.py")}
    assert packages - set(PATHS) == set()


def test_modules_that_other_sections_name_exist() -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", PAGE)
    assert [path for path in named if not (ROOT / path).exists() and not (ROOT / "src/tidelog" / path).exists()] == []
