"""Plant known bugs one by one in a copy of ``src`` and run the storage tests against it: each must be found.

    python -m tests.mutants            all of them, after a run without any (which must pass)
    python -m tests.mutants swap       those whose name holds "swap"
    python -m tests.mutants --list     their names and the promises that they break

A mutant that survives, or whose text is no longer in the source, is a failure of this command. The copy lies in a temporary
directory and comes first on the path of the test run; the tree itself is not touched.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = (
    "tests/log/test_storage_damage.py",
    "tests/log/test_swap.py",
    "tests/log/test_crash_points.py",
    "tests/log/test_storage_model.py",
)
# A run that passes takes about a minute; a mutant that makes it hang is found too.
SECONDS_MAX = 900


def plant(mutant: Mutant | None, directory: Path) -> str | None:
    """Copy ``src`` with the bug in it. The reason when that cannot be done."""
    shutil.copytree(ROOT / "src", directory / "src", ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is None:
        return None
    path = directory / "src" / mutant.file
    text = path.read_text() if path.is_file() else ""
    if text.count(mutant.old) != 1:
        return f"its text is {text.count(mutant.old)} times in src/{mutant.file}, where once is expected"
    path.write_text(text.replace(mutant.old, mutant.new))
    return None


def run_tests(directory: Path) -> tuple[bool, str]:
    """(passed, the first test that failed)."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{directory / 'src'}{os.pathsep}{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(directory / "hypothesis"),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS]
    try:
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return False, "(the tests did not end)"
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    return run.returncode == 0, found[1] if found else run.stdout[-500:] + run.stderr[-500:]


def try_mutant(mutant: Mutant | None) -> tuple[bool, str, float]:
    """(tests passed, what was found, seconds)."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidelog-mutant-") as name:
        problem = plant(mutant, Path(name))
        if problem is not None:
            return True, problem, 0.0
        passed, found = run_tests(Path(name))
    return passed, found, time.monotonic() - began


def main(arguments: list[str]) -> int:
    if "--list" in arguments:
        for mutant in MUTANTS:
            print(f"{mutant.name}\n    breaks: {mutant.promise}")
        return 0
    chosen = [mutant for mutant in MUTANTS if all(word in mutant.name for word in arguments)]
    passed, found, seconds = try_mutant(None)
    if not passed:
        print(f"without any mutant the tests fail already: {found}")
        return 1
    print(f"without a mutant the tests pass, in {seconds:.0f} s", flush=True)
    survivors = 0
    for mutant in chosen:
        passed, found, seconds = try_mutant(mutant)
        survivors += passed
        verdict = f"SURVIVES {found}" if passed else f"found by {found.removeprefix('tests/log/')}"
        print(f"{mutant.name}: {verdict}, {seconds:.1f} s", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants found")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
