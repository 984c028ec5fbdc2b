"""Plant one bug in a copy of ``src``."""

import shutil
from pathlib import Path

from tests.mutants.table import Mutant

ROOT = Path(__file__).resolve().parent.parent.parent


class Cannot(Exception):
    """The mutant cannot be planted."""


def occurrences(mutant: Mutant, root: Path) -> int:
    """How often the text that the mutant replaces stands in its file below ``root``."""
    path = root / "src" / mutant.file
    return path.read_text().count(mutant.old) if path.is_file() else 0


def plant(mutant: Mutant | None, directory: Path) -> None:
    """Copy ``src`` with the bug in it."""
    shutil.copytree(ROOT / "src", directory / "src", ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is None:
        return
    count = occurrences(mutant, directory)
    if count != 1:
        raise Cannot(f"its text is {count} times in src/{mutant.file}, where once is expected")
    path = directory / "src" / mutant.file
    path.write_text(path.read_text().replace(mutant.old, mutant.new))
