"""Three nodes of production code with replicated topics under faults: nothing acknowledged is lost, and replicas are equal."""

import pytest

from simulation.history import History
from simulation.replica_checker import Place, ReplicaChecker
from simulation.run import SeedResult, describe, rare_faults, run_seed

SEEDS = range(5, 55)
# Each found a bug once; docs/SIMULATION.md says which.
FOUND_ONCE = (4, 3212)
PLACE = Place("orders", 0)


@pytest.fixture(scope="module")
def results() -> list[SeedResult]:
    return [run_seed(seed, "replicas")._replace(trace=[]) for seed in SEEDS]


def test_nothing_acknowledged_is_lost_and_replicas_are_equal(results: list[SeedResult]) -> None:
    failed = [describe(result) for result in results if result.violations]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("seed", FOUND_ONCE)
def test_a_seed_that_found_a_bug_passes(seed: int) -> None:
    result = run_seed(seed, "replicas")
    assert not result.violations, describe(result)


def test_every_kind_of_fault_and_every_awaited_event_occurs(results: list[SeedResult]) -> None:
    assert rare_faults(results) == []


def test_an_event_that_is_missing_is_named(results: list[SeedResult]) -> None:
    without = [
        result._replace(events={name: count for name, count in result.events.items() if name != "truncation"})
        for result in results
    ]
    assert rare_faults(without) == ["truncation"]


def test_the_same_seed_gives_the_same_trace(results: list[SeedResult]) -> None:
    assert run_seed(SEEDS[0], "replicas").trace_hash == results[0].trace_hash


def test_the_checker_sees_a_lost_a_doubled_and_a_changed_record() -> None:
    history = History()
    checker = ReplicaChecker(history)
    for number, value in enumerate(("a", "b")):
        send = checker.sent(PLACE, (value,), is_idempotent=True)
        send.attempts = 2
        checker.acknowledged(send, number)
    checker.saw_records("reader", PLACE, [(0, "a"), (2, "a")])
    assert [violation.kind for violation in checker.check()] == ["acknowledged record lost", "record twice"]
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
