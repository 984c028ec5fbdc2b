"""Plant known bugs one by one in a copy of ``src`` and run tests against it: each must be found.

Bugs of the storage engine are found by its tests, bugs of the broker (their names begin so) by the simulation.

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

from tests.mutants.broker_table import BROKER_MUTANTS
from tests.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = (
    "tests/log/test_storage_damage.py",
    "tests/log/test_swap.py",
    "tests/log/test_crash_points.py",
    "tests/log/test_storage_model.py",
)
# A bug of the broker must be found within so many seeds; without a bug a few show that the simulation passes.
SEEDS_MAX = 300
SEEDS_WITHOUT_MUTANT = 50
# A run that passes takes a few minutes; a mutant that makes it hang is found too.
SECONDS_MAX = 1_800


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


def run_storage_tests(directory: Path) -> tuple[bool, str]:
    """(passed, the first test that failed)."""
    passed, output = run(directory, "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS)
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return passed, found[1].removeprefix("tests/log/") if found else output[-500:]


def run_simulation(directory: Path, seeds: int) -> tuple[bool, str]:
    """(passed, the first seed that failed and what was wrong there)."""
    passed, output = run(directory, "simulation.run", "--seeds", f"1-{seeds}", "--stop")
    found = re.search(r"^(seed \d+): FAILED.*\n +([^:]+):", output, re.MULTILINE)
    return passed, f"{found[1]} ({found[2]})" if found else output[-500:]


def run(directory: Path, module: str, *arguments: str) -> tuple[bool, str]:
    """(succeeded, output)."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{directory / 'src'}{os.pathsep}{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(directory / "hypothesis"),
    }
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return False, "(the tests did not end)"
    return done.returncode == 0, done.stdout + done.stderr


def try_mutant(mutant: Mutant | None, is_of_broker: bool) -> tuple[bool, str, float]:
    """(tests passed, what was found, seconds)."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidelog-mutant-") as name:
        problem = plant(mutant, Path(name))
        if problem is not None:
            return True, problem, 0.0
        if is_of_broker:
            passed, found = run_simulation(Path(name), SEEDS_WITHOUT_MUTANT if mutant is None else SEEDS_MAX)
        else:
            passed, found = run_storage_tests(Path(name))
    return passed, found, time.monotonic() - began


def main(arguments: list[str]) -> int:
    if "--list" in arguments:
        for mutant in (*MUTANTS, *BROKER_MUTANTS):
            print(f"{mutant.name}\n    breaks: {mutant.promise}")
        return 0
    count = survivors = 0
    for table in (MUTANTS, BROKER_MUTANTS):
        chosen = [mutant for mutant in table if all(word in mutant.name for word in arguments)]
        if not chosen:
            continue
        passed, found, seconds = try_mutant(None, table is BROKER_MUTANTS)
        if not passed:
            print(f"without any mutant the tests fail already: {found}")
            return 1
        print(f"without a mutant the tests pass, in {seconds:.0f} s", flush=True)
        for mutant in chosen:
            passed, found, seconds = try_mutant(mutant, table is BROKER_MUTANTS)
            count += 1
            survivors += passed
            print(f"{mutant.name}: {f'SURVIVES {found}' if passed else f'found by {found}'}, {seconds:.1f} s", flush=True)
    print(f"{count - survivors} of {count} mutants found")
    return 1 if survivors or not count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
