"""Groups and transactions under faults: every seed's history is one that they could have given.

In chunks, so that the workers of a test run share them; the last chunk to end looks whether all kinds of fault occurred.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.checker import Violation
from simulation.group_world import GroupWorld
from simulation.history import Outcome
from simulation.nemesis import count_faults
from simulation.run import WORLDS, SeedResult, describe, main, rare_faults, run_seed
from simulation.transaction_checker import End
from simulation.transaction_world import TransactionWorld

ROOT = Path(__file__).parents[2]
SEEDS = range(1, 21)
CHUNK = 5
NAMES = ("groups", "transactions")


@pytest.fixture
def shared_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "simulated-coordination"
    path.mkdir(exist_ok=True)
    return path


@pytest.mark.parametrize("first", SEEDS[::CHUNK])
@pytest.mark.parametrize("name", NAMES)
def test_seeds(name: str, first: int, shared_path: Path) -> None:
    results = []
    for seed in range(first, first + CHUNK):
        result = run_seed(seed, name)
        assert not result.violations, describe(result)
        assert result.operations >= WORLDS[name].operations_min
        assert count_faults(result.faults) >= WORLDS[name].faults_min
        results.append(result._replace(trace=[]))
    unfinished = shared_path / f"{name}-{first}.unfinished"
    unfinished.write_text(json.dumps(results))
    unfinished.rename(shared_path / f"{name}-{first}.json")
    chunks = list(shared_path.glob(f"{name}-*.json"))
    if len(chunks) == len(SEEDS[::CHUNK]):
        everything = [SeedResult(*fields) for chunk in chunks for fields in json.loads(chunk.read_text())]
        assert len(everything) == len(SEEDS)
        assert rare_faults(everything) == []


def output_of(name: str, seed: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "simulation.run", "--world", name, "--seed", str(seed), "--trace"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=200).stdout


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_trace_under_any_hash_seed(name: str) -> None:
    first = output_of(name, 12, "1")
    assert len(first.splitlines()) > 1_000
    assert output_of(name, 12, "2") == first
    assert output_of(name, 13, "1").splitlines()[-1] != first.splitlines()[-1]


@pytest.mark.parametrize("name", NAMES)
def test_a_failure_prints_the_command_that_replays_it(name: str) -> None:
    violation = Violation("two owners at a time", "classic of orders-0")
    text = describe(SeedResult(41, 100, {"kill": 10}, [violation], "abc", [], name))
    assert "seed 41: FAILED" in text
    assert f"replay: python -m simulation.run --world {name} --seed 41 --trace" in text


@pytest.mark.parametrize("name", NAMES)
def test_a_run_over_many_seeds_fails_when_a_fault_of_its_world_is_too_rare(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = dict.fromkeys(WORLDS[name].faults, 1)
    monkeypatch.setattr("simulation.run.run_seed", lambda seed, world: SeedResult(seed, 100, faults, [], "", [], world))
    assert main(["--world", name, "--seeds", "1-50"]) == 0
    rare = list(faults)[-1]
    del faults[rare]
    assert main(["--world", name, "--seeds", "1-50"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"in fewer than 5% of the seeds: {rare}"


def test_groups_that_are_never_drained_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.group_world.HEALED_US_MAX", 100)
    assert run_seed(1, "groups").violations[0].kind == "no progress"


def test_a_transaction_that_stays_open_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.transaction_world.HEALED_US_MAX", 100)
    assert run_seed(1, "transactions").violations[0].kind == "no progress"


def test_members_of_both_protocols_own_commit_and_are_refused() -> None:
    kinds: set[str] = set()
    outcomes: set[Outcome] = set()
    for seed in (1, 2, 3, 4):
        world = GroupWorld(seed)
        world.run()
        kinds.update(one.group for one in world.group_history.ownerships)
        outcomes.update(commit.outcome for commit in world.group_history.commits)
        assert world.group_history.reads
    assert kinds == {"classic", "consumer"}
    assert outcomes >= {Outcome.ACKED, Outcome.FAILED, Outcome.UNKNOWN}


def test_transactions_of_both_versions_commit_abort_and_are_left_open() -> None:
    ends: set[tuple[bool, End]] = set()
    for seed in range(1, 7):
        world = TransactionWorld(seed)
        world.run()
        ends.update((one.is_version_2, one.end) for one in world.transaction_history.transactions)
    for is_version_2 in (False, True):
        assert {end for version, end in ends if version is is_version_2} >= {End.COMMITTED, End.ABORTED, End.OPEN}
