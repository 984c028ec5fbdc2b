"""One broker under faults: every seed's history is one that a durable log could have given.

In chunks, so that the workers of a test run share them. Each chunk leaves what it saw in a directory of the run; whichever is the
last to end looks whether all kinds of fault occurred often enough.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.checker import Violation
from simulation.nemesis import FAULTS, count_faults
from simulation.run import WORLDS, SeedResult, describe, main, rare_faults, run_seed
from simulation.scheduler import Scheduler
from simulation.world import FAULTS_MIN, OPERATIONS_MIN, World
from tidelog.broker.broker import BrokerNode

ROOT = Path(__file__).parents[2]
SEEDS = range(1, 31)
CHUNK = 5


@pytest.fixture
def shared_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "simulated-faults"
    path.mkdir(exist_ok=True)
    return path


@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_seeds(first: int, shared_path: Path) -> None:
    results = []
    for seed in range(first, first + CHUNK):
        result = run_seed(seed)
        assert not result.violations, describe(result)
        assert result.operations >= OPERATIONS_MIN
        assert count_faults(result.faults) >= FAULTS_MIN
        results.append(result._replace(trace=[]))
    unfinished = shared_path / f"{first}.unfinished"
    unfinished.write_text(json.dumps(results))
    unfinished.rename(shared_path / f"{first}.json")
    chunks = list(shared_path.glob("*.json"))
    if len(chunks) == len(SEEDS[::CHUNK]):
        everything = [SeedResult(*fields) for chunk in chunks for fields in json.loads(chunk.read_text())]
        assert len(everything) == len(SEEDS)
        assert rare_faults(everything) == []


def output_of(seed: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "simulation.run", "--seed", str(seed), "--trace"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=200).stdout


def test_the_same_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    first = output_of(12, "1")
    assert len(first.splitlines()) > 1_000
    assert output_of(12, "2") == first
    assert output_of(13, "1").splitlines()[-1] != first.splitlines()[-1]


def test_a_failure_prints_the_command_that_replays_it() -> None:
    text = describe(SeedResult(41, 1_000, {"kill": 10}, [Violation("lost write", "orders-0@7")], "abc", []))
    assert "seed 41: FAILED" in text
    assert "lost write: orders-0@7" in text
    assert "python -m simulation.run --seed 41" in text


def test_a_kind_of_fault_that_is_too_rare_is_named() -> None:
    everything = SeedResult(1, 1_000, dict.fromkeys(FAULTS, 1), [], "", [])
    without_kills = everything._replace(faults={name: 1 for name in FAULTS if name != "kill"})
    assert rare_faults([everything] * 5 + [without_kills] * 95) == []
    assert rare_faults([everything] * 4 + [without_kills] * 96) == ["kill"]


def test_a_run_that_gets_nowhere_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.world.HEALED_US_MAX", 100)
    result = run_seed(1)
    assert [violation.kind for violation in result.violations] == ["no progress"]


def test_an_exception_is_a_failure_that_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(broker: BrokerNode) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(BrokerNode, "end_of_burst", burst)
    text = describe(run_seed(1))
    assert "exception: KeyError('planted')" in text
    assert "end_of_burst" in text
    assert "python -m simulation.run --seed 1 " in text


def test_a_run_in_which_nothing_is_left_to_happen_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "step", lambda scheduler: False)
    assert "no progress: setup did not end, and nothing is left to happen" in describe(run_seed(1))


def test_a_run_that_stands_still_in_time_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.stage.EVENTS_MAX", 10)
    assert "no progress: setup did not end within 10 events" in describe(run_seed(1))


def test_too_little_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = WORLDS["broker"]
    monkeypatch.setitem(WORLDS, "broker", kind._replace(operations_min=1_000_000))
    result = run_seed(1)
    assert [violation.kind for violation in result.violations] == ["too little"]
    monkeypatch.setitem(WORLDS, "broker", kind._replace(faults_min=1_000_000))
    assert run_seed(1).violations[0].kind == "too little"


def test_the_run_over_many_seeds_fails_when_a_kind_of_fault_is_too_rare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = dict.fromkeys(FAULTS, 1)
    monkeypatch.setattr("simulation.run.run_seed", lambda seed, world: SeedResult(seed, 1_000, faults, [], "", []))
    assert main(["--seeds", "1-100"]) == 0
    del faults["power cut"]
    assert main(["--seeds", "1-100"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "in fewer than 5% of the seeds: power cut"


def test_a_fault_counts_when_it_strikes() -> None:
    world = World(1)
    world.set_up()
    nemesis = world.nemesis
    for told in (nemesis.failing_sync, nemesis.cut_power_in_an_operation):
        assert not told()
    assert nemesis.counts == {}
    nemesis.died_in_an_operation()
    assert nemesis.counts == {"power cut in an operation": 1}
    assert count_faults({"kill": 2, "full disk": 1, "config change": 5}) == 3


def test_clients_use_every_kind_of_acknowledgement_and_hear_of_most() -> None:
    world = World(5)
    world.run()
    attempts = world.history.attempts
    assert {attempt.acks for attempt in attempts} <= {-1, 0, 1}
    assert sum(attempt.acks == -1 for attempt in attempts) > len(attempts) / 3
    assert sum(len(poll.records) for poll in world.history.polls) > OPERATIONS_MIN
