"""What one request of a share group may take: of the loop, whatever lies in the log, and of memory, whatever a session names."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from simulation.scheduler import Scheduler
from tests.broker.handlers.share_client import GROUP, VERSION, ShareMember, configure, share_machine
from tests.broker.handlers.test_share_dead_letters import letters
from tests.broker.handlers.test_share_groups import member_of
from tests.broker.harness import Machine
from tests.broker.loop_watch import LoopWatch, watch_loop
from tests.log.harness import batch
from tidelog.broker import share_partitions, share_sessions
from tidelog.broker.api import LARGE_WAIT_MS_MAX
from tidelog.broker.work_slices import STEPS_PER_SLICE, SlicedWork, WorkSlices
from tidelog.ports.disk import Buffer
from tidelog.ports.steps import Steps
from tidelog.queues.acknowledgements import AcknowledgeType
from tidelog.records.batch import build_batch
from tidelog.records.compression import CompressionType
from tidelog.records.header import BatchHeader, read_header
from tidelog.records.record import Record
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import encode_request
from tidelog.wire.protocol import ApiKey

TURN_MS_MAX = 50
ATTEMPTS_MAX = 2
INT_MAX = 2**31 - 1
# A lookup by time reads no larger batch.
MANY = 200_000
DEAD = "orders.dead"


def one_large_batch(newest: int = 1) -> bytes:
    """It is small when it is compressed. Only its last record is newer than the epoch."""
    records = [Record(number, newest if number == MANY - 1 else 0, None, b"") for number in range(MANY)]
    return build_batch(records, compression=CompressionType.ZSTD)


@contextmanager
def watch_everything(machine: Machine, member: ShareMember) -> Iterator[LoopWatch]:
    """Also what requests begin, and what follows when something was written or read."""
    with watch_loop(machine) as watch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "step", watch.timed(Scheduler.step))
        patch.setattr(member.client, "send_bytes", watch.timed(member.client.send_bytes))
        yield watch


def acquired_of(member: ShareMember) -> list[tuple[int, int]]:
    """Without a look at the records, which would take long."""
    topics = member.fetch(max_wait_ms=100).responses
    found = [each for topic in topics for partition in topic.partitions for each in partition.acquired_records]
    return [(each.first_offset, each.last_offset) for each in found]


def test_a_fetch_looks_at_so_many_batches_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, _, topic_id = share_machine()
    partition = machine.broker.partitions.find("orders", None, 0)
    for _ in range(300):
        partition.append(batch(1), True)
    looked_at: list[int] = []

    def look_at(data: Buffer, position: int = 0) -> BatchHeader:
        looked_at.append(position)
        return read_header(data, position)

    monkeypatch.setattr(share_partitions, "ITEMS_MAX", 100)
    monkeypatch.setattr(share_partitions, "read_header", look_at)
    member = member_of(machine, topic_id)
    got: list[tuple[int, int]] = []
    while sum(last - first + 1 for first, last in got) < 300:
        looked_at.clear()
        acquired = member.acquired(max_records=INT_MAX, max_bytes=INT_MAX)
        assert acquired, got
        assert len(looked_at) <= 100
        got += [(first, last) for first, last, _ in acquired]
    assert [offset for first, last in got for offset in range(first, last + 1)] == list(range(300))


def test_a_batch_that_is_wider_than_the_window_is_handed_out_in_parts() -> None:
    machine, client, topic_id = share_machine(share_partition_max_record_locks="100")
    assert client.append(count=350).error is ErrorCode.NONE
    member = member_of(machine, topic_id)
    assert member.acquired(max_records=INT_MAX) == [(0, 99, 1)]
    assert member.acquired(max_records=INT_MAX) == []
    for first, last in ((100, 199), (200, 299), (300, 349)):
        assert member.settle(first - 100, first - 1, AcknowledgeType.ACCEPT) == ErrorCode.NONE
        assert member.acquired(max_records=INT_MAX) == [(first, last, 1)]


def unknown_partitions(count: int, number: int = 0) -> list[dict[str, Any]]:
    partitions = [{"partition_index": index, "acknowledgement_batches": []} for index in range(count)]
    return [{"topic_id": bytes([number]) * 16, "partitions": partitions}]


def test_a_session_has_a_bounded_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "PARTITIONS_PER_SESSION_MAX", 10)
    monkeypatch.setattr(share_sessions, "PARTITIONS_MAX", 25)
    machine, _, topic_id = share_machine()
    member, other, third = (member_of(machine, topic_id, name) for name in "abc")
    assert member.fetch(topics=unknown_partitions(8)).error_code == ErrorCode.NONE
    assert member.fetch(topics=unknown_partitions(8)).error_code == ErrorCode.NONE, "the same ones again"
    assert member.fetch(topics=unknown_partitions(3, 1)).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    member.epoch = 0
    assert member.fetch(topics=unknown_partitions(10)).error_code == ErrorCode.NONE
    assert other.fetch(topics=unknown_partitions(10)).error_code == ErrorCode.NONE
    assert third.fetch(topics=unknown_partitions(6)).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    other.client.session.closed()
    third.epoch = 0
    assert third.fetch(topics=unknown_partitions(10)).error_code == ErrorCode.NONE, "the sessions that are over do not count"
    forgotten = [{"topic_id": bytes(16), "partitions": list(range(10))}]
    assert third.fetch(topics=unknown_partitions(9, 2), forgotten_topics_data=forgotten).error_code == ErrorCode.NONE


def test_to_begin_at_a_time_in_a_large_batch_leaves_the_loop_to_others() -> None:
    def longest_ms() -> float:
        machine, client, topic_id = share_machine()
        configure(client, share_auto_offset_reset="by_duration:PT1H")
        now_ms = machine.clock.now_ms()
        assert client.append(records=one_large_batch(now_ms)).error is ErrorCode.NONE
        member = member_of(machine, topic_id)
        with watch_everything(machine, member) as watch:
            while not (acquired := acquired_of(member)):
                pass
        assert acquired == [(MANY - 1, MANY - 1)]
        return watch.longest_ms

    assert min(longest_ms() for _ in range(ATTEMPTS_MAX)) < TURN_MS_MAX


def test_the_letter_of_a_late_record_of_a_large_batch_leaves_the_loop_to_others() -> None:
    machine, client, topic_id = share_machine(
        errors_deadletterqueue_topic_name=DEAD, errors_deadletterqueue_copy_record_enable="true"
    )
    client.create_topic(DEAD, errors_deadletterqueue_group_enable="true")
    assert client.append(records=one_large_batch()).error is ErrorCode.NONE
    deleted = {"topics": [{"name": "orders", "partitions": [{"partition_index": 0, "offset": MANY - ATTEMPTS_MAX}]}]}
    client.call(ApiKey.DELETE_RECORDS, 2, **deleted, timeout_ms=1000)
    member = member_of(machine, topic_id)
    while not (acquired := acquired_of(member)):
        pass
    assert acquired == [(MANY - ATTEMPTS_MAX, MANY - 1)]
    longest_ms = []
    for offset in range(MANY - ATTEMPTS_MAX, MANY):
        with watch_everything(machine, member) as watch:
            assert member.settle(offset, offset, AcknowledgeType.REJECT) == ErrorCode.NONE
        longest_ms.append(watch.longest_ms)
    assert [letter.value for letter in letters(machine)] == [b""] * ATTEMPTS_MAX
    assert min(longest_ms) < TURN_MS_MAX


def test_what_a_member_held_is_released_in_slices() -> None:
    """It may have held records of thousands of partitions."""
    partitions = range(3)
    machine, client, topic_id = share_machine(partitions=3)
    for index in partitions:
        assert client.append(partition=index).error is ErrorCode.NONE
    member = member_of(machine, topic_id, partitions=partitions)
    other = member_of(machine, topic_id, "other", partitions=partitions)
    other.fetch(max_records=0)
    assert partitions_acquired(member, partitions) == set(partitions)
    shares = machine.broker.share_sessions.share_partitions
    leaders = [leader for index in partitions if (leader := shares.find_existing(GROUP, topic_id, index)) is not None]

    def held() -> list[int]:
        return [leader.engine.acquired_count for leader in leaders if leader.engine is not None]

    def other_work() -> Steps[None]:
        for _ in range(2 * STEPS_PER_SLICE):
            yield

    machine.broker.work_slices.run(other_work(), lambda _: None)
    member.client.session.closed()
    assert held() == [1, 1, 1], "the work of others has its turn first"
    machine.run_until(lambda: held() == [0, 0, 0])
    assert partitions_acquired(other, partitions) == set(partitions)


def partitions_acquired(member: ShareMember, wanted: Iterable[int]) -> set[int]:
    """Fetch until records of all these partitions are acquired: their leaders load first."""
    got: set[int] = set()
    while not got.issuperset(wanted):
        response = member.fetch(max_wait_ms=100, max_records=INT_MAX)
        got |= {each.partition_index for topic in response.responses for each in topic.partitions if each.acquired_records}
    return got


def test_many_acknowledgements_of_several_partitions_are_settled_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, client, topic_id = share_machine(partitions=4)
    for index in range(4):
        assert client.append(partition=index, count=300).error is ErrorCode.NONE
    member = member_of(machine, topic_id, partitions=range(4))
    partitions_acquired(member, range(4))
    begun: list[object] = []
    run = WorkSlices.run

    def noted(slices: WorkSlices, *arguments: Any) -> SlicedWork:
        begun.append(arguments)
        return run(slices, *arguments)

    monkeypatch.setattr(WorkSlices, "run", noted)
    types = [int(AcknowledgeType.ACCEPT), int(AcknowledgeType.RELEASE)] * 150
    response = member.acknowledge(*[(index, 0, 299, types) for index in range(4)])
    assert [each.error_code for topic in response.responses for each in topic.partitions] == [0, 0, 0, 0]
    assert begun, "1,200 acknowledgements were settled in one go"


@pytest.mark.parametrize("is_refused", [False, True], ids=["fetch", "refusal"])
def test_a_large_fetch_does_not_keep_memory_from_others_for_as_long_as_its_client_likes(is_refused: bool) -> None:
    machine, _, topic_id = share_machine(settings={"group.share.max.share.sessions": "1"})
    machine.run_until(lambda: machine.broker.unready_reason() is None)
    other = member_of(machine, topic_id, "other")
    if is_refused:
        other.fetch()
    member = member_of(machine, topic_id)
    forgotten = [{"topic_id": bytes(16), "partitions": list(range(2_000))}]
    fields = member.fetch_fields(max_wait_ms=INT_MAX, forgotten_topics_data=forgotten)
    member.client.send(ApiKey.SHARE_FETCH, VERSION, encode_request(ApiKey.SHARE_FETCH, VERSION, fields))
    machine.run_for(100)
    assert machine.broker.work_slices.admitted_bytes > 0, "it waits"
    before = len(member.client.replies)
    machine.run_for(LARGE_WAIT_MS_MAX)
    assert (len(member.client.replies) - before, machine.broker.work_slices.admitted_bytes) == (1, 0)
