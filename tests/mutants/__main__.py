"""Plant known bugs one by one in a copy of ``src`` and run tests against it: each must be found.

Bugs of the storage engine, of snapshots, of scarcity, of the validation of records, of the rules that tools notice, of the bounds
on work and memory, of replication, of moves and of queues are found by their tests; bugs of the broker, of groups, of
transactions and of the quorum (their names begin so) by the simulation.

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

from tests.mutants.bounds_table import BOUNDS_MUTANTS, BOUNDS_TESTS
from tests.mutants.broker_table import BROKER_MUTANTS
from tests.mutants.coordination_table import GROUP_MUTANTS, TRANSACTION_MUTANTS
from tests.mutants.moves_table import MOVES_MUTANTS, MOVES_TESTS
from tests.mutants.plant import ROOT, Cannot, plant
from tests.mutants.queues_table import QUEUES_MUTANTS, QUEUES_TESTS
from tests.mutants.quorum_table import QUORUM_MUTANTS
from tests.mutants.replication_table import REPLICATION_MUTANTS, REPLICATION_TESTS
from tests.mutants.scarcity_table import SCARCITY_MUTANTS, SCARCITY_TESTS
from tests.mutants.snapshot_table import SNAPSHOT_MUTANTS, SNAPSHOT_TESTS
from tests.mutants.table import MUTANTS, Mutant
from tests.mutants.tools_table import TOOLS_MUTANTS
from tests.mutants.validation_table import VALIDATION_MUTANTS

STORAGE_TESTS = (
    "tests/log/test_storage_damage.py",
    "tests/log/compaction/test_swap.py",
    "tests/log/test_crash_points.py",
    "tests/log/test_storage_model.py",
)
# A bug of the broker must be found within so many seeds; without a bug a few show that the simulation passes.
SEEDS_MAX = 300
SEEDS_WITHOUT_MUTANT = 50
TOOLS_TESTS = (
    "tests/log/test_leader_epochs.py",
    "tests/groups/test_offset_sweep.py",
    "tests/broker/handlers/test_telemetry.py",
    "tests/cli/test_output.py",
    "tests/cli/test_produce.py::test_json_messages_that_are_none",
)
VALIDATION_TESTS = (
    "tests/records/test_record_walk.py",
    "tests/log/test_append_check.py",
    "tests/broker/test_validation_queue.py",
)
# With what finds them: tests, or a world of the simulation.
TABLES: tuple[tuple[tuple[Mutant, ...], tuple[str, ...] | str], ...] = (
    (MUTANTS, STORAGE_TESTS),
    (SCARCITY_MUTANTS, SCARCITY_TESTS),
    (TOOLS_MUTANTS, TOOLS_TESTS),
    (VALIDATION_MUTANTS, VALIDATION_TESTS),
    (BOUNDS_MUTANTS, BOUNDS_TESTS),
    (REPLICATION_MUTANTS, REPLICATION_TESTS),
    (MOVES_MUTANTS, MOVES_TESTS),
    (QUEUES_MUTANTS, QUEUES_TESTS),
    (BROKER_MUTANTS, "broker"),
    (GROUP_MUTANTS, "groups"),
    (TRANSACTION_MUTANTS, "transactions"),
    (QUORUM_MUTANTS, "quorum"),
    (SNAPSHOT_MUTANTS, SNAPSHOT_TESTS),
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


def try_tests(directory: Path, tests: Sequence[str]) -> tuple[bool, str | None, str]:
    """(passed, the first test that failed, the end of the output)."""
    passed, output = run(directory, "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests)
    found = re.search(r"^FAILED tests/(\S+)", output, re.MULTILINE)
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


def attempt(mutant: Mutant | None, finder: tuple[str, ...] | str) -> Trial:
    began = time.monotonic()
    name = mutant.name if mutant is not None else "without a mutant"
    with tempfile.TemporaryDirectory(prefix="tidelog-mutant-") as path:
        directory = Path(path)
        try:
            plant(mutant, directory)
        except Cannot as error:
            return Trial(name, False, False, str(error), 0.0)
        if isinstance(finder, str):
            passed, found, output = try_simulation(directory, finder, SEEDS_WITHOUT_MUTANT if mutant is None else SEEDS_MAX)
        else:
            passed, found, output = try_tests(directory, finder)
    if found is None and output == HANGS:
        found = HANGS
    if passed:
        text = "all tests pass"
    else:
        text = found or f"the tests do not run: {output[-500:]}"
    return Trial(name, not passed and found is not None, passed, text, time.monotonic() - began)


def attempt_all(mutants: Sequence[Mutant], finder: tuple[str, ...] | str, workers: int) -> list[Trial]:
    """The trials that say something: a run without a mutant that fails makes all others worthless."""
    clean = attempt(None, finder)
    print(f"without a mutant: {clean.text}, {clean.seconds:.0f} s", flush=True)
    if not clean.passed:
        return [clean]
    trials = []
    with ThreadPoolExecutor(workers) as pool:
        for trial in pool.map(lambda mutant: attempt(mutant, finder), mutants):
            print(trial.describe(), flush=True)
            trials.append(trial)
    return trials


def main(arguments: list[str]) -> int:
    if "--list" in arguments:
        for mutant in (mutant for table, _ in TABLES for mutant in table):
            print(f"{mutant.name}\n    breaks: {mutant.promise}")
        return 0
    trials: list[Trial] = []
    for table, finder in TABLES:
        chosen = [mutant for mutant in table if all(word in mutant.name for word in arguments)]
        if chosen:
            trials += attempt_all(chosen, finder, int(os.environ.get("WORKERS", "2")))
    missed = [trial for trial in trials if not trial.is_found]
    print(f"\n{len(trials) - len(missed)} of {len(trials)} mutants found")
    for trial in missed:
        print(f"  {trial.describe()}")
    return 1 if missed or not trials else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
