"""Queue topics: messages that are delayed, messages that expire, and the limits that hold instead of the window's width."""

import pytest

from tests.broker.handlers.share_client import QUEUE, ShareMember, acquired_in, configure, partition_in, share_machine
from tests.broker.handlers.test_share_dead_letters import DEAD, letters, story
from tests.broker.handlers.test_share_groups import wait_ready
from tests.broker.harness import FakeClient, Machine
from tidelog.broker import share_partitions
from tidelog.broker.share_partitions import RECORDS_PER_TURN
from tidelog.broker.share_settings import QUEUE_ACQUIRED_MAX, QUEUE_RANGES_MAX
from tidelog.broker.share_states import ShareStates
from tidelog.config.topic import TOPIC
from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import OnDone
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation, LogRead, read
from tidelog.queues import key_order
from tidelog.queues.acknowledgements import AcknowledgeType
from tidelog.queues.records import RECORD_CODEC, SharePartitionKey, ShareSnapshotRecord, ShareSnapshotValue
from tidelog.queues.states import StateBatch
from tidelog.records.batch import build_batch
from tidelog.records.compression import CompressionType
from tidelog.records.record import Record
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import decode_response, encode_request
from tidelog.wire.protocol import ApiKey

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
# A delayed message may come this much late, and never early.
LATE_MS_MAX = 1_000


def send(
    machine: Machine,
    client: FakeClient,
    *messages: tuple[int, int],
    compression: CompressionType = CompressionType.NONE,
) -> None:
    """One batch of messages, each given as (delay, time to live) in ms; 0 for none."""
    now_ms = machine.clock.now_ms()
    records = []
    for number, (delay_ms, ttl_ms) in enumerate(messages):
        headers = [("trace", b"x" * 20)]
        if delay_ms:
            headers.append(("tidelog.due", str(now_ms + delay_ms).encode()))
        if ttl_ms:
            headers.append(("tidelog.expires", str(now_ms + ttl_ms).encode()))
        records.append(Record(number, now_ms, b"key", b"value", tuple(headers)))
    assert client.append(records=build_batch(records, compression=compression)).error is ErrorCode.NONE


def test_a_queue_topic_and_a_compacted_one_do_not_become_both() -> None:
    _, client, _ = share_machine(topic_configs=QUEUE)
    client.create_topic("table", cleanup_policy="compact")
    for topic, name, value in (("orders", "cleanup.policy", "compact"), ("table", "tidelog.queue.enable", "true")):
        changes = [{"name": name, "config_operation": 0, "value": value}]
        resource = {"resource_type": 2, "resource_name": topic, "configs": changes}
        (answer,) = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False).responses
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "equal keys" in answer.error_message


def queue_machine(**topic_configs: str) -> tuple[Machine, FakeClient, ShareMember]:
    machine, client, topic_id = share_machine(topic_configs={**QUEUE, **topic_configs})
    member = ShareMember(machine, "worker", topic_id)
    member.join()
    return machine, client, member


def wait_acquired(machine: Machine, member: ShareMember, wait_ms: int = 20_000) -> tuple[list[tuple[int, int, int]], int]:
    """Fetch, waiting at the broker; returns what was acquired, and when by the wall clock."""
    correlation = member.client.send(
        ApiKey.SHARE_FETCH, 2, encode_request(ApiKey.SHARE_FETCH, 2, member.fetch_fields(max_wait_ms=wait_ms))
    )
    before = len(member.client.replies)
    machine.run_until(lambda: len(member.client.replies) > before)
    member.epoch += 1
    frame, position = member.client.last_reply(ApiKey.SHARE_FETCH, 2, correlation)
    return acquired_in(decode_response(ApiKey.SHARE_FETCH, 2, frame, position)), machine.clock.now_ms()


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
def test_a_delayed_message_comes_when_it_is_due_and_stops_none_behind_it(compression: CompressionType) -> None:
    machine, client, member = queue_machine()
    began_ms = machine.clock.now_ms()
    send(machine, client, (5_000, 0), (0, 0), (2_500, 0), compression=compression)
    send(machine, client, (0, 0))
    assert member.acquired() == [(1, 1, 1), (3, 3, 1)]
    assert member.settle(1, 1, ACCEPT) == member.settle(3, 3, ACCEPT) == 0
    for offset, delay_ms in ((2, 2_500), (0, 5_000)):
        acquired, at_ms = wait_acquired(machine, member)
        assert acquired == [(offset, offset, 1)]
        assert began_ms + delay_ms <= at_ms <= began_ms + delay_ms + LATE_MS_MAX
        assert member.settle(offset, offset, ACCEPT) == 0
    assert member.acquired() == []


def test_on_an_ordinary_topic_the_headers_say_nothing() -> None:
    machine, client, topic_id = share_machine()
    member = ShareMember(machine, "worker", topic_id)
    member.join()
    send(machine, client, (60_000, 0), (0, 1))
    machine.run_for(10)
    assert member.acquired() == [(0, 1, 1)]


@pytest.mark.parametrize("is_crash", [True, False])
def test_a_delay_survives_a_restart(*, is_crash: bool) -> None:
    machine, client, member = queue_machine()
    began_ms = machine.clock.now_ms()
    send(machine, client, *[(number % 3 * 10_000, 0) for number in range(9)])
    for offset in (0, 3, 6):
        assert member.acquired(max_records=1, share_acquire_mode=1) == [(offset, offset, 1)]
        assert member.settle(offset, offset, ACCEPT) == 0
    (machine.crash if is_crash else machine.restart)()
    wait_ready(machine)
    member = ShareMember(machine, "another", member.topic_id)
    member.join()
    assert member.acquired() == []
    found: dict[int, int] = {}
    while len(found) < 6:
        acquired, at_ms = wait_acquired(machine, member)
        found.update((offset, at_ms) for first, last, _ in acquired for offset in range(first, last + 1))
    assert sorted(found) == [1, 2, 4, 5, 7, 8]
    for offset, at_ms in found.items():
        due_ms = began_ms + offset % 3 * 10_000
        assert due_ms <= at_ms <= due_ms + LATE_MS_MAX


def test_a_message_that_is_due_in_weeks_comes_in_weeks() -> None:
    machine, client, member = queue_machine(retention_ms="-1")
    began_ms = machine.clock.now_ms()
    send(machine, client, (20 * 24 * 3_600_000, 0))
    assert member.acquired() == []
    machine.clock.jump(20 * 24 * 3_600_000 - 10_000)
    acquired, at_ms = wait_acquired(machine, member)
    assert acquired == [(0, 0, 1)]
    assert 0 <= at_ms - began_ms - 20 * 24 * 3_600_000 <= LATE_MS_MAX


def test_a_wall_clock_that_jumps_brings_nothing_early() -> None:
    machine, client, member = queue_machine()
    send(machine, client, (5_000, 0))
    due_ms = machine.clock.now_ms() + 5_000
    assert member.acquired() == []
    machine.clock.jump(-3_600_000)
    machine.run_for(10_000)
    assert member.acquired() == []
    machine.clock.jump(3_600_000)
    acquired, at_ms = wait_acquired(machine, member)
    assert acquired == [(0, 0, 1)]
    assert at_ms >= due_ms


def test_thousands_of_delayed_messages_are_passed_in_one_wait() -> None:
    machine, client, member = queue_machine()
    for _ in range(40):
        send(machine, client, *[(600_000, 0)] * 500)
    send(machine, client, (0, 0))
    acquired, _ = wait_acquired(machine, member)
    assert acquired == [(20_000, 20_000, 1)]
    (leader,) = next(leaders for _, leaders in machine.broker.share_sessions.share_partitions.by_group())
    assert leader.engine is not None
    assert (leader.engine.range_count, leader.engine.delayed_count) == (2, 20_000)


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
def test_a_batch_of_many_messages_is_read_in_several_turns(compression: CompressionType) -> None:
    machine, client, member = queue_machine()
    count = 2 * RECORDS_PER_TURN + 100
    assert member.acquired() == [], "the group begins"
    send(machine, client, *[(600_000, 0)] * (count - 1), (0, 0), compression=compression)
    assert member.acquired() == [], "one turn is too short"
    acquired, _ = wait_acquired(machine, member)
    assert acquired == [(count - 1, count - 1, 1)]


def test_what_is_due_is_gathered_from_all_over_the_log() -> None:
    machine, client, member = queue_machine()
    for _ in range(5):
        send(machine, client, (600_000, 0), (1_000, 0), (600_000, 0))
        machine.client().append(records=build_batch([Record(0, 1, None, b"x" * 70_000)]))
    assert member.acquired(max_records=100) == [(offset, offset, 1) for offset in range(3, 20, 4)]
    for offset in range(3, 20, 4):
        assert member.settle(offset, offset, ACCEPT) == 0
    machine.run_for(1_500)
    assert member.acquired(max_records=100) == [(offset, offset, 1) for offset in range(1, 20, 4)]


def test_suspected_poison_is_not_gathered_with_others() -> None:
    _, client, member = queue_machine()
    big = build_batch([Record(0, 1, None, b"x" * 70_000)])
    for _ in range(3):
        client.append(records=big)
    assert member.acquired(max_records=1) == [(0, 0, 1)]
    for count in (2, 3):
        assert member.settle(0, 0, RELEASE) == 0
        assert member.acquired(max_records=1) == [(0, 0, count)]
    assert member.settle(0, 0, RELEASE) == 0
    assert member.acquired() == [(0, 0, 4)], "from the third delivery on it is suspected"
    assert member.acquired() == [(1, 1, 1), (2, 2, 1)]


def test_one_stuck_message_does_not_stop_those_behind_it() -> None:
    machine, client, topic_id = share_machine(topic_configs=QUEUE, share_partition_max_record_locks="100")
    member = ShareMember(machine, "worker", topic_id)
    member.join()
    client.append(count=1)
    assert member.acquired() == [(0, 0, 1)]
    for number in range(3):
        client.append(count=100)
        first = 1 + number * 100
        assert member.acquired() == [(first, first + 99, 1)]
        assert member.settle(first, first + 99, ACCEPT) == 0


@pytest.mark.parametrize("topic_ttl_ms", [None, 1_000])
def test_what_nobody_receives_in_time_is_archived(topic_ttl_ms: int | None) -> None:
    configs = {} if topic_ttl_ms is None else {"tidelog_queue_ttl_ms": str(topic_ttl_ms)}
    machine, client, member = queue_machine(**configs)
    ttl_ms = 1_000 if topic_ttl_ms is None else 0
    send(machine, client, (0, ttl_ms), (0, ttl_ms))
    assert member.acquired(max_records=1, share_acquire_mode=1) == [(0, 0, 1)]
    machine.run_for(1_000)
    assert member.acquired() == []
    assert member.settle(0, 0, RELEASE) == 0
    assert member.acquired() == [(0, 0, 2)], "somebody received it in time"
    assert member.settle(0, 0, ACCEPT) == 0
    assert machine.broker.share_sessions.share_partitions.counters.outlived == 1
    send(machine, client, (0, 0))
    assert member.acquired() == [(2, 2, 1)]


@pytest.mark.parametrize("asks", [True, False])
def test_what_expires_becomes_a_dead_letter_if_the_queue_asks_for_it(*, asks: bool) -> None:
    machine, client, member = queue_machine(tidelog_queue_expired_dead_letters_enable="true" if asks else "false")
    assert configure(client, errors_deadletterqueue_topic_name=DEAD) == 0
    client.create_topic(DEAD, errors_deadletterqueue_group_enable="true")
    send(machine, client, (0, 1_000), (0, 0))
    machine.run_for(1_000)
    assert member.acquired() == [(1, 1, 1)]
    machine.run_for(100)
    found = [story(letter) for letter in letters(machine)]
    assert [(each["offset"], each["message"]) for each in found] == (
        [("0", "The record expired before a member of the group received it.")] if asks else []
    )
    assert member.settle(1, 1, ACCEPT) == 0
    (leader,) = next(leaders for _, leaders in machine.broker.share_sessions.share_partitions.by_group())
    assert leader.engine is not None
    assert leader.engine.start_offset == 2


def send_keys(client: FakeClient, keys: str) -> None:
    """One batch of messages with keys of one letter; a dot has no key."""
    records = [Record(number, 1, None if key == "." else key.encode(), b"value") for number, key in enumerate(keys)]
    assert client.append(records=build_batch(records, compression=CompressionType.LZ4)).error is ErrorCode.NONE


def test_a_group_with_an_order_by_key_hands_out_one_message_of_a_key_at_a_time() -> None:
    machine, client, member = queue_machine()
    assert configure(client, tidelog_share_order="key") == 0
    other = ShareMember(machine, "another", member.topic_id)
    other.join()
    send_keys(client, "aab.")
    send_keys(client, "ab")
    assert member.acquired() == [(0, 0, 1), (2, 3, 1)]
    assert other.acquired() == []
    assert member.settle(0, 0, ACCEPT) == member.settle(2, 2, ACCEPT) == 0
    assert other.acquired() == [(1, 1, 1), (5, 5, 1)]
    machine.crash()
    wait_ready(machine)
    member = ShareMember(machine, "worker", member.topic_id)
    member.join()
    assert member.acquired() == [(1, 1, 2), (3, 3, 2), (5, 5, 2)]
    assert member.settle(1, 1, ACCEPT) == 0
    assert member.acquired() == [(4, 4, 1)]


def test_the_order_may_change_while_members_fetch() -> None:
    _, client, member = queue_machine()
    send_keys(client, "aaaa")
    assert member.acquired(max_records=1, share_acquire_mode=1) == [(0, 0, 1)]
    assert configure(client, tidelog_share_order="key") == 0
    response = member.fetch()
    ((refused,),) = [topic.partitions for topic in response.responses]
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "its locks are forgotten, as with a new leader"
    assert member.acquired() == [(0, 0, 2)]
    assert member.acquired() == []
    assert configure(client, tidelog_share_order="none") == 0
    member.fetch()
    assert member.acquired() == [(0, 0, 3), (1, 3, 1)]


@pytest.mark.parametrize("keeps_letters", [True, False])
def test_a_message_that_kills_the_broker_reaches_its_limit(*, keeps_letters: bool) -> None:
    machine, client, member = queue_machine()
    assert configure(client, share_delivery_count_limit="3") == 0
    if keeps_letters:
        assert configure(client, errors_deadletterqueue_topic_name=DEAD) == 0
        client.create_topic(DEAD, errors_deadletterqueue_group_enable="true")
    send(machine, client, (0, 0))
    for attempt in (1, 2, 3):
        assert member.acquired() == [(0, 0, attempt)]
        machine.crash()
        wait_ready(machine)
        member = ShareMember(machine, f"worker-{attempt}", member.topic_id)
        member.join()
    assert member.acquired() == []
    machine.run_for(100)
    assert [story(letter)["delivery.count"] for letter in (letters(machine) if keeps_letters else [])] == ["3"] * keeps_letters
    send(machine, machine.client(), (0, 0))
    assert member.acquired() == [(1, 1, 1)]


def test_a_delivery_is_counted_on_disk_before_it_is_answered() -> None:
    machine, client, member = queue_machine()
    assert member.acquired() == [], "the group begins"
    send(machine, client, (0, 0))
    correlation = member.client.send(ApiKey.SHARE_FETCH, 2, encode_request(ApiKey.SHARE_FETCH, 2, member.fetch_fields()))
    before = len(member.client.replies)
    machine.broker.end_of_burst()
    assert len(member.client.replies) == before, "its count is not durable yet"
    machine.run_until(lambda: len(member.client.replies) > before)
    frame, position = member.client.last_reply(ApiKey.SHARE_FETCH, 2, correlation)
    assert acquired_in(decode_response(ApiKey.SHARE_FETCH, 2, frame, position)) == [(0, 0, 1)]


def test_the_largest_state_of_a_queue_topic_fits_into_one_record() -> None:
    ranges = QUEUE_RANGES_MAX // 2 + QUEUE_ACQUIRED_MAX
    batches = tuple([StateBatch(2 * number, 2 * number, 2, 3) for number in range(ranges)])
    key = SharePartitionKey("g" * 200, bytes(16), 0)
    encoded, value = RECORD_CODEC.encode(ShareSnapshotRecord(key, ShareSnapshotValue(1, 1, 1, 0, 1, 1, batches, 1)))
    size_max = TOPIC.settings["max.message.bytes"].default
    assert isinstance(size_max, int)
    assert len(encoded) + len(value or b"") + 1_000 < size_max, "the rest of the batch fits, too"


def test_what_others_may_have_by_now_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, client, member = queue_machine()
    other = ShareMember(machine, "another", member.topic_id)
    other.join()
    assert member.acquired() == other.acquired() == [], "the group begins"
    send(machine, client, (0, 0))
    write, late = ShareStates.write, []
    with monkeypatch.context() as patch:
        patch.setattr(ShareStates, "write", lambda *args: late.append(args))
        correlations = []
        for each in (member, other):
            fields = each.fetch_fields()
            correlations.append(each.client.send(ApiKey.SHARE_FETCH, 2, encode_request(ApiKey.SHARE_FETCH, 2, fields)))
            machine.run_for(20_000 + 15_000 * (each is member))
    for args in late:
        write(*args)
    machine.run_for(1_000)
    found = []
    for each, correlation in zip((member, other), correlations, strict=True):
        frame, position = each.client.last_reply(ApiKey.SHARE_FETCH, 2, correlation)
        found.append(acquired_in(decode_response(ApiKey.SHARE_FETCH, 2, frame, position)))
    assert found == [[], [(0, 0, 2)]], "the first lock ended before its delivery was written"


def test_a_fetch_is_answered_when_the_coordinator_refuses_the_new_start_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, client, member = queue_machine()
    send(machine, client, (0, 0), (0, 0))
    send(machine, client, (0, 0))
    assert member.acquired(max_records=1, share_acquire_mode=1) == [(0, 0, 1)]
    partition = {"partition_index": 0, "offset": 2}
    client.call(ApiKey.DELETE_RECORDS, 2, topics=[{"name": "orders", "partitions": [partition]}], timeout_ms=1_000)

    def refuse(_: ShareStates, __: object, ___: object, on_done: OnDone, ____: object) -> None:
        on_done(None, ApiError(ErrorCode.FENCED_STATE_EPOCH))

    with monkeypatch.context() as patch:
        patch.setattr(ShareStates, "write", refuse)
        found = partition_in(member.fetch())
    assert found is not None
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert member.acquired() == [(2, 2, 1)]


def test_a_batch_whose_keys_cannot_be_read_does_not_stop_an_ordered_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    _, client, member = queue_machine()
    assert configure(client, tidelog_share_order="key") == 0
    monkeypatch.setattr(key_order, "BATCH_RECORDS_MAX", 3)
    for keys in ("aa", "aaaa", "a"):
        send_keys(client, keys)
    assert member.acquired() == [(0, 0, 1), (2, 5, 1)]


def test_what_is_locked_is_handed_out_although_what_follows_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, client, member = queue_machine()
    for _ in range(2):
        client.append(records=build_batch([Record(0, 1, None, b"x" * 70_000)]))

    def read_first(log: PartitionLog, offset: int, bytes_max: int, isolation: Isolation) -> LogRead:
        if offset:
            raise OSError("the disk is gone")
        return read(log, offset, bytes_max, isolation)

    with monkeypatch.context() as patch:
        patch.setattr(share_partitions, "read", read_first)
        assert member.acquired() == [(0, 0, 1)]
    assert member.acquired() == [(1, 1, 1)]
    machine.run_for(31_000)
    assert member.acquired() == [(0, 0, 2), (1, 1, 2)], "their locks end"
