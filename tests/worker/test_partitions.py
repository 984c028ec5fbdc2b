"""Partitions: each reason for a pause by itself, patience before a full partition is paused, no alternating; and the letters of a
retry partition in the order of the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.fakes import assigned, execution, plain_letter
from tidelog.client.message import Message
from tidelog.worker import partitions
from tidelog.worker.breaker import CircuitBreaker
from tidelog.worker.failures import ScheduledRetry
from tidelog.worker.partitions import PATIENCE_MS, AssignedPartition, ReadAhead, RetryQueue


def changes(of: ReadAhead, partition: AssignedPartition, now_ms: int = 0) -> str:
    to_pause, to_resume = of.changes([partition], now_ms)
    return "pause" if to_pause else "resume" if to_resume else ""


def waits(of: ReadAhead) -> bool:
    return of.should_wait


def test_a_retry_partition_is_paused_until_its_letters_are_due() -> None:
    each, partition = ReadAhead(1000, 1 << 30), assigned(level=0)
    partition.retries.add(Message.of(), plain_letter(1, due_ms=50))
    assert changes(each, partition) == "pause"
    assert changes(each, partition) == ""
    partition.retries.take_due(50)
    assert changes(each, partition) == "resume"


def test_what_is_finished_above_a_message_that_hangs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "OFFSETS_MAX", 10)
    each, partition = ReadAhead(1000, 1 << 30), assigned()
    partition.offsets.begin(range(10))
    partition.offsets.finish(range(1, 10))
    assert partition.backlog == 0
    assert changes(each, partition) == "pause"
    partition.offsets.finish([0])
    assert changes(each, partition) == "resume"


def test_nothing_is_read_before_the_blocked_keys_are_known() -> None:
    each, partition = ReadAhead(1000, 1 << 30), assigned()
    partition.family.set_scanned(False)
    assert changes(each, partition) == "pause"
    partition.family.set_scanned(True)
    assert changes(each, partition) == "resume"


def test_an_open_breaker_pauses() -> None:
    options = CircuitBreaker(failures=1, pause=1)
    each, partition = ReadAhead(1000, 1 << 30), assigned(execution=execution(options))
    breaker = partition.execution.breaker
    assert breaker is not None
    breaker.failed(0)
    assert changes(each, partition) == "pause"
    breaker.tick(1_000)
    breaker.succeeded(1, 1_000)
    assert changes(each, partition) == "resume"


def test_too_many_waiting_letters_pause_the_source_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "BLOCKED_LETTERS_MAX", 2)
    each, partition = ReadAhead(1000, 1 << 30), assigned()
    partition.family.blocked.add(b"a", 1, ScheduledRetry(0, 0))
    assert changes(each, partition) == ""
    partition.family.blocked.add(b"a", 2, ScheduledRetry(0, 0))
    assert changes(each, partition) == "pause"
    assert changes(each, assigned(level=0, family=partition.family)) == ""


@pytest.mark.parametrize("is_bytes", [False, True])
def test_a_full_partition_is_paused_after_some_patience_until_half_of_it_is_gone(is_bytes: bool) -> None:
    each, partition = ReadAhead(1000, 10 << 20), assigned()

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
    each = ReadAhead(1000, 10 << 20)
    assert (each.room_messages, each.room_bytes) == (1000, 10 << 20)
    one, other = assigned(), assigned(partition=1)
    one.backlog, other.backlog = 400, 700
    one.backlog_bytes, other.backlog_bytes = 1 << 20, 3 << 20
    each.changes([one, other], 0)
    assert (each.room_messages, each.room_bytes) == (-100, 6 << 20)


def test_nothing_is_read_while_letters_have_nowhere_to_go() -> None:
    each, partition = ReadAhead(1000, 1 << 30), assigned()
    partition.family.set_complete(False)
    assert changes(each, partition) == "pause"
    partition.family.set_complete(True)
    assert changes(each, partition) == "resume"


@given(st.lists(st.integers(0, 50)), st.lists(st.integers(0, 60)))
def test_letters_come_in_order_when_the_head_is_due(dues: list[int], times: list[int]) -> None:
    queue = RetryQueue()
    letters = [plain_letter(number, due_ms=due) for number, due in enumerate(dues)]
    for letter in letters:
        queue.add(Message.of(offset=letter.offset), letter)
    taken = []
    for now_ms in sorted(times):
        for _, letter in queue.take_due(now_ms):
            assert letter.due_ms is not None
            assert letter.due_ms <= now_ms
            taken.append(letter)
        assert queue.due_ms is None or queue.due_ms > now_ms
    assert taken == letters[: len(taken)]
    assert len(queue) == len(letters) - len(taken)
