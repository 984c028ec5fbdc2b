"""Three nodes of production code with replicated topics under faults: nothing acknowledged is lost, and replicas are equal.

In chunks, so that the workers of a test run share them; the last chunk to end looks whether all faults and events occurred.
"""

import json
import os
from pathlib import Path

import pytest

from simulation.history import History
from simulation.replica_checker import Place, ReplicaChecker
from simulation.run import SeedResult, describe, rare_faults, run_seed

SEEDS = range(5, 55)
CHUNK = 10
# Each found a bug once; docs/SIMULATION.md says which.
FOUND_ONCE = (4, 3212, 4033)
PLACE = Place("orders", 0)


@pytest.fixture
def shared_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "simulated-replicas"
    path.mkdir(exist_ok=True)
    return path


@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_nothing_acknowledged_is_lost_and_replicas_are_equal(first: int, shared_path: Path) -> None:
    results = [run_seed(seed, "replicas")._replace(trace=[]) for seed in range(first, first + CHUNK)]
    failed = [describe(result) for result in results if result.violations]
    assert not failed, "\n".join(failed)
    unfinished = shared_path / f"{first}.unfinished"
    unfinished.write_text(json.dumps(results))
    unfinished.rename(shared_path / f"{first}.json")
    chunks = list(shared_path.glob("*.json"))
    if len(chunks) == len(SEEDS[::CHUNK]):
        everything = [SeedResult(*fields) for chunk in chunks for fields in json.loads(chunk.read_text())]
        assert len(everything) == len(SEEDS)
        assert rare_faults(everything) == []
        without = [
            result._replace(events={name: count for name, count in result.events.items() if name != "truncation"})
            for result in everything
        ]
        assert rare_faults(without) == ["truncation"], "what is missing is named"


@pytest.mark.parametrize("seed", FOUND_ONCE)
def test_a_seed_that_found_a_bug_passes(seed: int) -> None:
    result = run_seed(seed, "replicas")
    assert not result.violations, describe(result)


def test_no_batch_overtakes_one_that_was_refused() -> None:
    """The seed loses a message when the log takes such a batch for the producer's first."""
    result = run_seed(66, "pipelined")
    assert not result.violations, describe(result)


def test_the_same_seed_gives_the_same_trace() -> None:
    assert run_seed(SEEDS[0], "replicas").trace_hash == run_seed(SEEDS[0], "replicas").trace_hash


def test_the_checker_sees_a_lost_a_doubled_and_a_changed_record() -> None:
    history = History()
    checker = ReplicaChecker(history)
    for number, value in enumerate(("a", "b")):
        send = checker.sent(PLACE, (value,), is_idempotent=True)
        send.attempts = 2
        checker.acknowledged(send, number)
    for value in ("c", "d"):
        checker.acknowledged_somewhere(checker.sent(PLACE, (value,), is_idempotent=True))
    checker.saw_records("reader", PLACE, [(0, "a"), (2, "a"), (3, "d")])
    lost = "acknowledged record lost"
    assert [violation.kind for violation in checker.check()] == [lost, lost, "record twice"], "b and c are lost, a is there twice"
    checker.saw_records("other", PLACE, [(0, "b")])
    assert [problem.kind for problem in history.problems] == ["record changed"]


def test_the_checker_sees_an_end_that_falls_and_not_one_asked_for_before() -> None:
    history = History()
    checker = ReplicaChecker(history)
    checker.saw_end("reader", PLACE, 7, checker.known_end("reader", PLACE))
    checker.saw_end("reader", PLACE, 5, 4)
    assert history.problems == []
    checker.saw_end("reader", PLACE, 6, checker.known_end("reader", PLACE))
    assert [problem.kind for problem in history.problems] == ["high watermark fell"]
