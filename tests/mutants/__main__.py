"""Plant known bugs one by one in a copy of ``src`` and run tests against it: each must be found.

Bugs of the storage engine are found by its tests; bugs of the broker, of groups and of transactions (their names begin so) by the
simulation.

    python -m tests.mutants            all of them, after a run without any (which must pass)
    python -m tests.mutants swap       those whose name holds "swap"
    python -m tests.mutants --list     their names and the promises that they break

A mutant that survives, whose text is no longer in the source, or with which the tests do not run at all is a failure of this
command, which names them all at its end. The copy lies in a temporary directory and comes first on the path of the test run; the
tree itself is not touched. WORKERS (2) is how many are tried at a time.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutants.broker_table import BROKER_MUTANTS
from tests.mutants.coordination_table import GROUP_MUTANTS, TRANSACTION_MUTANTS
from tests.mutants.plant import ROOT, Cannot, plant
from tests.mutants.table import MUTANTS, Mutant

TESTS = (
    "tests/log/test_storage_damage.py",
    "tests/log/compaction/test_swap.py",
    "tests/log/test_crash_points.py",
    "tests/log/test_storage_model.py",
)
# A bug of the broker must be found within so many seeds; without a bug a few show that the simulation passes.
SEEDS_MAX = 300
SEEDS_WITHOUT_MUTANT = 50
# With the world of the simulation that finds them; None: the storage engine's own tests do.
TABLES: tuple[tuple[tuple[Mutant, ...], str | None], ...] = (
    (MUTANTS, None),
    (BROKER_MUTANTS, "broker"),
    (GROUP_MUTANTS, "groups"),
    (TRANSACTION_MUTANTS, "transactions"),
)
# A run that passes takes a few minutes; a mutant that makes it hang is found too.
SECONDS_MAX = 1_800


class Trial(NamedTuple):
    name: str
    is_found: bool
    passed: bool
    text: str
    """What found it, or why nothing did."""
    seconds: float

    def describe(self) -> str:
        verdict = "found by" if self.is_found else "NOT FOUND:"
        return f"{self.name}: {verdict} {self.text}, {self.seconds:.0f} s"


def try_storage_tests(directory: Path) -> tuple[bool, str | None, str]:
    """(passed, the first test that failed, the end of the output)."""
    passed, output = run(directory, "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS)
    found = re.search(r"^FAILED tests/log/(\S+)", output, re.MULTILINE)
    return passed, found[1] if found else None, output


def try_simulation(directory: Path, world: str, seeds: int) -> tuple[bool, str | None, str]:
    """(passed, the first seed that failed and what was wrong there, the end of the output)."""
    passed, output = run(directory, "simulation.run", "--world", world, "--seeds", f"1-{seeds}", "--stop")
    found = re.search(r"^(seed \d+): FAILED.*\n +([^:]+):", output, re.MULTILINE)
    return passed, f"{found[1]} ({found[2]})" if found else None, output


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
        return False, HANGS
    return done.returncode == 0, done.stdout + done.stderr


HANGS = "the tests did not end"


def attempt(mutant: Mutant | None, world: str | None) -> Trial:
    began = time.monotonic()
    name = mutant.name if mutant is not None else "without a mutant"
    with tempfile.TemporaryDirectory(prefix="tidelog-mutant-") as path:
        directory = Path(path)
        try:
            plant(mutant, directory)
        except Cannot as error:
            return Trial(name, False, False, str(error), 0.0)
        if world is not None:
            passed, found, output = try_simulation(directory, world, SEEDS_WITHOUT_MUTANT if mutant is None else SEEDS_MAX)
        else:
            passed, found, output = try_storage_tests(directory)
    if found is None and output == HANGS:
        found = HANGS
    if passed:
        text = "all tests pass"
    else:
        text = found or f"the tests do not run: {output[-500:]}"
    return Trial(name, not passed and found is not None, passed, text, time.monotonic() - began)


def attempt_all(mutants: Sequence[Mutant], world: str | None, workers: int) -> list[Trial]:
    """The trials that say something: a run without a mutant that fails makes all others worthless."""
    clean = attempt(None, world)
    print(f"without a mutant: {clean.text}, {clean.seconds:.0f} s", flush=True)
    if not clean.passed:
        return [clean]
    trials = []
    with ThreadPoolExecutor(workers) as pool:
        for trial in pool.map(lambda mutant: attempt(mutant, world), mutants):
            print(trial.describe(), flush=True)
            trials.append(trial)
    return trials


def main(arguments: list[str]) -> int:
    if "--list" in arguments:
        for mutant in (mutant for table, _ in TABLES for mutant in table):
            print(f"{mutant.name}\n    breaks: {mutant.promise}")
        return 0
    trials: list[Trial] = []
    for table, world in TABLES:
        chosen = [mutant for mutant in table if all(word in mutant.name for word in arguments)]
        if chosen:
            trials += attempt_all(chosen, world, int(os.environ.get("WORKERS", "2")))
    missed = [trial for trial in trials if not trial.is_found]
    print(f"\n{len(trials) - len(missed)} of {len(trials)} mutants found")
    for trial in missed:
        print(f"  {trial.describe()}")
    return 1 if missed or not trials else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
