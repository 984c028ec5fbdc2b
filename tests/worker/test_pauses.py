"""Pauses: each reason by itself, patience before a full partition is paused, and no going to and fro."""

import pytest

from tests.worker.fakes import assigned, route
from tidelog.client.message import Message
from tidelog.worker import pauses
from tidelog.worker.assigned import Assigned
from tidelog.worker.blocked_keys import Place
from tidelog.worker.breaker import CircuitBreaker
from tidelog.worker.letters import foreign_letter
from tidelog.worker.pauses import PATIENCE_MS, Pauses


def changes(of: Pauses, partition: Assigned, now_ms: int = 0) -> str:
    to_pause, to_resume = of.changes([partition], now_ms)
    return "pause" if to_pause else "resume" if to_resume else ""


def waits(of: Pauses) -> bool:
    return of.should_wait


def test_a_retry_partition_is_paused_until_its_letters_are_due() -> None:
    each, partition = Pauses(1000, 1 << 30), assigned(level=0)
    partition.retries.add(Message.of(), foreign_letter("t", 0, 0, 1, None, "g")._replace(due_ms=50))
    assert changes(each, partition) == "pause"
    assert changes(each, partition) == ""
    partition.retries.take_due(50)
    assert changes(each, partition) == "resume"


def test_what_is_finished_above_a_message_that_hangs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "OFFSETS_MAX", 10)
    each, partition = Pauses(1000, 1 << 30), assigned()
    partition.offsets.begin(range(10))
    partition.offsets.finish(range(1, 10))
    assert partition.backlog == 0
    assert changes(each, partition) == "pause"
    partition.offsets.finish([0])
    assert changes(each, partition) == "resume"


def test_nothing_is_read_before_the_blocked_keys_are_known() -> None:
    each, partition = Pauses(1000, 1 << 30), assigned()
    partition.home.is_scanned = False
    assert changes(each, partition) == "pause"
    partition.home.is_scanned = True
    assert changes(each, partition) == "resume"


def test_an_open_breaker_pauses() -> None:
    options = CircuitBreaker(failures=1, pause=1)
    each, partition = Pauses(1000, 1 << 30), assigned(route=route(options))
    breaker = partition.route.breaker
    assert breaker is not None
    breaker.failed(0)
    assert changes(each, partition) == "pause"
    breaker.tick(1_000)
    breaker.succeeded(1, 1_000)
    assert changes(each, partition) == "resume"


def test_too_many_waiting_letters_pause_the_source_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "BLOCKED_LETTERS_MAX", 2)
    each, partition = Pauses(1000, 1 << 30), assigned()
    partition.home.blocked.add(b"a", 1, Place(0, 0))
    assert changes(each, partition) == ""
    partition.home.blocked.add(b"a", 2, Place(0, 0))
    assert changes(each, partition) == "pause"
    assert changes(each, assigned(level=0, home=partition.home)) == ""


@pytest.mark.parametrize("is_bytes", [False, True])
def test_a_full_partition_is_paused_after_some_patience_until_half_of_it_is_gone(is_bytes: bool) -> None:
    each, partition = Pauses(1000, 10 << 20), assigned()

    def fill(share: float) -> None:
        partition.backlog = 1 if is_bytes else int(1000 * share)
        partition.backlog_bytes = int((10 << 20) * share) if is_bytes else 1

    fill(1.0)
    assert changes(each, partition, 0) == ""
    assert waits(each)
    assert changes(each, partition, PATIENCE_MS) == "pause"
    assert not waits(each)
    fill(0.6)
    assert changes(each, partition, PATIENCE_MS + 1) == ""
    fill(0.4)
    assert changes(each, partition, PATIENCE_MS + 2) == "resume"
    fill(1.0)
    assert changes(each, partition, PATIENCE_MS + 3) == ""
    fill(0.9)
    assert changes(each, partition, 9 * PATIENCE_MS) == "", "it caught up by itself"
    assert not waits(each)


def test_there_is_room_until_all_partitions_together_have_their_share() -> None:
    each = Pauses(1000, 10 << 20)
    assert (each.room_messages, each.room_bytes) == (1000, 10 << 20)
    one, other = assigned(), assigned(partition=1)
    one.backlog, other.backlog = 400, 700
    one.backlog_bytes, other.backlog_bytes = 1 << 20, 3 << 20
    each.changes([one, other], 0)
    assert (each.room_messages, each.room_bytes) == (-100, 6 << 20)


def test_nothing_is_read_while_letters_have_nowhere_to_go() -> None:
    each, partition = Pauses(1000, 1 << 30), assigned()
    partition.home.is_whole = False
    assert changes(each, partition) == "pause"
    partition.home.is_whole = True
    assert changes(each, partition) == "resume"
