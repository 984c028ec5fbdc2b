"""Share groups over the wire: what members get, what is settled when, sessions, crashes, and the exact code of every mistake."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.broker.handlers.share_client import GROUP, ShareMember, acquired_in, configure, partition_in, share_machine
from tests.broker.harness import Machine, offsets_in
from tidelog.broker import share_states
from tidelog.broker.share_partitions import ShareFetched, ShareLeader
from tidelog.broker.share_states import ShareStates
from tidelog.coordinator.shard import Shard
from tidelog.log.errors import StorageError
from tidelog.queues.acknowledgements import AcknowledgeType
from tidelog.queues.share_coordinator import ShareCoordinator
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import decode_response, encode_request
from tidelog.wire.protocol import ApiKey

ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)


def member_of(machine: Machine, topic_id: bytes, name: str = "a", **fields: Any) -> ShareMember:
    member = ShareMember(machine, name, topic_id, **fields)
    member.join()
    return member


def wait_ready(machine: Machine) -> None:
    """After a start, or after one was dropped, the coordinators' shards load first."""
    machine.run_until(lambda: machine.broker.unready_reason() is None)


# -- the life of a group -----------------------------------------------------------------------------------------------------


def test_a_member_joins_and_is_assigned_everything_at_once() -> None:
    machine, _, topic_id = share_machine(partitions=2)
    response = ShareMember(machine, "a", topic_id).join()
    (topic,) = response.assignment.topic_partitions
    assert (topic.topic_id, tuple(topic.partitions)) == (topic_id, (0, 1))


def test_records_are_delivered_acknowledged_and_not_delivered_again_also_after_a_crash() -> None:
    machine, client, topic_id = share_machine()
    client.append(count=5)
    member = member_of(machine, topic_id)
    assert member.acquired() == [(0, 4, 1)]
    assert member.settle(0, 2, ACCEPT) == ErrorCode.NONE
    machine.crash()
    wait_ready(machine)
    member = member_of(machine, topic_id)
    assert wait_for_records(machine, member) == [(3, 4, 1)], "never settled, so the attempt is forgotten with the lock"
    assert member.acquired((0, 3, 4, [ACCEPT])) == []
    machine.crash()
    wait_ready(machine)
    assert member_of(machine, topic_id).acquired(max_wait_ms=500) == []


def wait_for_records(machine: Machine, member: ShareMember) -> list[tuple[int, int, int]]:
    """A fetch that finds the state being read is answered without records."""
    for _ in range(20):
        found = member.acquired(max_wait_ms=500)
        if found:
            return found
    raise AssertionError("no records came")


def test_an_acknowledgement_is_answered_when_it_is_durable_and_not_before() -> None:
    machine, client, topic_id = share_machine()
    client.append(count=1)
    member = member_of(machine, topic_id)
    member.acquired()
    fields = {"group_id": GROUP, "member_id": "a", "share_session_epoch": 1, "topics": member.topics([(0, 0, 0, [ACCEPT])])}
    before = len(member.client.replies)
    member.client.send(ApiKey.SHARE_ACKNOWLEDGE, 1, encode_request(ApiKey.SHARE_ACKNOWLEDGE, 1, fields))
    machine.broker.end_of_burst()
    assert len(member.client.replies) == before, "appended, and not synced"
    machine.run_until(lambda: len(member.client.replies) > before)


def begin_settling(member: ShareMember, first: int, last: int, kind: AcknowledgeType) -> Callable[[], int | None]:
    """Acknowledge without waiting. The result returns the error code; None as long as there is no answer."""
    topics = member.topics([(0, first, last, [kind])])
    fields = {"group_id": GROUP, "member_id": member.name, "share_session_epoch": member.epoch, "topics": topics}
    fields["is_renew_ack"] = kind is RENEW
    before = len(member.client.replies)
    correlation_id = member.client.send(ApiKey.SHARE_ACKNOWLEDGE, 2, encode_request(ApiKey.SHARE_ACKNOWLEDGE, 2, fields))
    member.epoch += 1

    def code() -> int | None:
        if len(member.client.replies) == before:
            return None
        frame, position = member.client.last_reply(ApiKey.SHARE_ACKNOWLEDGE, 2, correlation_id)
        response = decode_response(ApiKey.SHARE_ACKNOWLEDGE, 2, frame, position)
        return int(response.responses[0].partitions[0].error_code)

    return code


@pytest.mark.parametrize("fails", [False, True], ids=["written", "failed"])
def test_a_late_acknowledgement_waits_for_the_write_of_whoever_has_settled_the_records(fails: bool, monkeypatch: Any) -> None:
    machine, client, topic_id = share_machine(share_record_lock_duration_ms="1000")
    client.append(count=3)
    late, quick = member_of(machine, topic_id, "late"), member_of(machine, topic_id, "quick")
    renewing = member_of(machine, topic_id, "renewing")
    late.acquired()
    renewing.acquired()
    machine.run_for(1_500)
    assert quick.acquired() == [(0, 2, 2)]
    settled, ignored = begin_settling(quick, 0, 1, ACCEPT), begin_settling(late, 0, 1, ACCEPT)
    renewed = begin_settling(renewing, 0, 1, RENEW)
    machine.broker.end_of_burst()
    assert settled() is None
    assert ignored() is None, "a crash would deliver the records again"
    assert renewed() == ErrorCode.NONE
    if fails:
        monkeypatch.setattr(share_states, "ATTEMPTS_MAX", 1)
        used_shard(machine).drop(StorageError("the disk failed"))
    machine.run_until(lambda: settled() is not None and ignored() is not None)
    assert settled() == ignored() == (ErrorCode.COORDINATOR_NOT_AVAILABLE if fails else ErrorCode.NONE)


@pytest.mark.parametrize("second", [2, 0], ids=["in order", "out of order"])
def test_a_partition_that_is_named_twice_settles_what_is_said_in_both_places_or_nothing(second: int) -> None:
    machine, client, topic_id = share_machine()
    client.append(count=4)
    member = member_of(machine, topic_id)
    assert member.acquired() == [(0, 3, 1)]
    twice = [*member.topics([(0, 1, 1, [ACCEPT])]), *member.topics([(0, second, second, [ACCEPT])])]
    answers = member.acknowledge(topics=twice).responses
    code = ErrorCode.NONE if second else ErrorCode.INVALID_REQUEST
    assert [partition.error_code for topic in answers for partition in topic.partitions] == [code, code]
    member.client.session.closed()
    expected = [(0, 0, 2), (3, 3, 2)] if second else [(0, 3, 2)]
    assert member_of(machine, topic_id, "b").acquired(max_wait_ms=500) == expected


def test_released_and_rejected_records_and_the_delivery_limit() -> None:
    machine, client, topic_id = share_machine(share_delivery_count_limit="2")
    client.append(count=3)
    member = member_of(machine, topic_id)
    assert member.acquired() == [(0, 2, 1)]
    assert member.settle(0, 2, RELEASE, REJECT, ACCEPT) == ErrorCode.NONE
    assert member.acquired() == [(0, 0, 2)]
    assert member.settle(0, 0, RELEASE) == ErrorCode.NONE
    assert member.acquired() == [], "twice is the limit"


def test_a_lock_ends_after_its_time_and_a_renewed_one_later() -> None:
    machine, client, topic_id = share_machine(share_record_lock_duration_ms="2000")
    client.append(count=2)
    slow, other = member_of(machine, topic_id, "slow"), member_of(machine, topic_id, "other")
    assert slow.acquired() == [(0, 1, 1)]
    machine.run_for(1_500)
    assert slow.settle(0, 0, RENEW, is_renew_ack=True) == ErrorCode.NONE
    assert other.acquired() == []
    machine.run_for(700)
    assert other.acquired() == [(1, 1, 2)]
    assert slow.settle(1, 1, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
    assert slow.settle(0, 0, ACCEPT) == ErrorCode.NONE


def test_a_waiting_fetch_is_woken_by_a_produce_a_release_an_expiry_and_freed_room() -> None:
    machine, client, topic_id = share_machine(share_record_lock_duration_ms="2000", share_partition_max_record_locks="100")
    holder, waiter = member_of(machine, topic_id, "holder"), member_of(machine, topic_id, "waiter")
    holder.acquired()
    waiter.acquired()

    def woken_by(action: Callable[[], Any]) -> list[tuple[int, int, int]]:
        body = encode_request(ApiKey.SHARE_FETCH, 2, waiter.fetch_fields(max_wait_ms=60_000))
        correlation_id = waiter.client.send(ApiKey.SHARE_FETCH, 2, body)
        waiter.epoch += 1
        before = len(waiter.client.replies)
        action()
        machine.run_until(lambda: len(waiter.client.replies) > before)
        assert machine.clock.monotonic_ms() - began_ms < 60_000, "it was woken, and did not time out"
        frame, position = waiter.client.last_reply(ApiKey.SHARE_FETCH, 2, correlation_id)
        return acquired_in(decode_response(ApiKey.SHARE_FETCH, 2, frame, position))

    began_ms = machine.clock.monotonic_ms()
    assert woken_by(lambda: client.append(count=2)) == [(0, 1, 1)]
    waiter.settle(0, 1, ACCEPT)
    client.append(count=1)
    assert holder.acquired() == [(2, 2, 1)]
    assert woken_by(lambda: holder.settle(2, 2, RELEASE)) == [(2, 2, 2)]
    waiter.settle(2, 2, ACCEPT)
    client.append(count=1)
    assert holder.acquired() == [(3, 3, 1)]
    assert woken_by(lambda: None) == [(3, 3, 2)], "the lock ended"
    waiter.settle(3, 3, ACCEPT)
    client.append(count=100)
    assert holder.acquired() == [(4, 103, 1)]
    client.append(count=1)
    assert waiter.acquired() == [], "the window is full"
    assert woken_by(lambda: holder.settle(4, 4, ACCEPT)) == [(104, 104, 1)]


def test_when_its_time_is_up_a_fetch_gets_what_there_is_and_one_that_wants_a_byte_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, client, topic_id = share_machine()
    client.append(count=5)
    member = member_of(machine, topic_id)
    assert member.acquired(min_bytes=1 << 20) == [(0, 4, 1)]
    tries = []

    def fetch(leader: ShareLeader, *arguments: Any) -> ShareFetched:
        tries.append(leader)
        return original(leader, *arguments)

    original = ShareLeader.fetch
    monkeypatch.setattr(ShareLeader, "fetch", fetch)
    assert member.acquired(max_wait_ms=500) == []
    assert len(tries) == 1, "everything that could have come would have woken it"


def test_a_waiting_fetch_ends_when_its_topic_is_deleted() -> None:
    machine, client, topic_id = share_machine()
    member = member_of(machine, topic_id)
    member.acquired()
    body = encode_request(ApiKey.SHARE_FETCH, 2, member.fetch_fields(max_wait_ms=60_000))
    member.client.send(ApiKey.SHARE_FETCH, 2, body)
    before, began_ms = len(member.client.replies), machine.clock.monotonic_ms()
    client.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "orders", "topic_id": bytes(16)}], timeout_ms=1000)
    machine.run_until(lambda: len(member.client.replies) > before)
    assert machine.clock.monotonic_ms() - began_ms < 5_000
    assert len(machine.broker.share_sessions.share_partitions) == 0


def test_only_batches_with_acquired_records_are_sent() -> None:
    machine, client, topic_id = share_machine()
    for _ in range(3):
        client.append(count=2)
    member = member_of(machine, topic_id)
    assert member.acquired() == [(0, 5, 1)]
    assert member.settle(2, 3, ACCEPT) == ErrorCode.NONE
    assert member.settle(0, 1, RELEASE) == ErrorCode.NONE
    assert member.settle(4, 5, RELEASE) == ErrorCode.NONE
    found = partition_in(member.fetch())
    assert found is not None
    assert offsets_in(memoryview(found.records)) == [0, 1, 4, 5]


def test_with_a_strict_limit_several_members_share_one_batch() -> None:
    machine, client, topic_id = share_machine()
    client.append(count=10)
    a, b = member_of(machine, topic_id, "a"), member_of(machine, topic_id, "b")
    assert a.acquired(share_acquire_mode=1, max_records=4) == [(0, 3, 1)]
    assert b.acquired(share_acquire_mode=1, max_records=4) == [(4, 7, 1)]
    assert a.acquired(max_records=1) == [(8, 9, 1)], "whole batches, as far as they are available"


def test_a_group_that_says_nothing_begins_at_the_end() -> None:
    machine, client, topic_id = share_machine(share_isolation_level="read_committed")
    assert configure(client, share_auto_offset_reset="latest") == 0
    client.append(count=3)
    member = member_of(machine, topic_id)
    assert member.acquired(max_wait_ms=500) == []
    machine.crash()
    wait_ready(machine)
    machine.client().append(count=2)
    assert wait_for_records(machine, member_of(machine, topic_id)) == [(3, 4, 1)], "where it began is written at once"


def test_nothing_is_handed_out_before_it_is_written_where_the_group_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, client, topic_id = share_machine()
    client.append(count=3)
    member = member_of(machine, topic_id)
    held: list[Callable[[], None]] = []
    write = ShareStates.write
    monkeypatch.setattr(ShareStates, "write", lambda *arguments: held.append(partial(write, *arguments)))
    assert member.acquired(max_wait_ms=500) == []
    monkeypatch.undo()
    (begin,) = held
    begin()
    assert wait_for_records(machine, member) == [(0, 2, 1)]


@pytest.mark.parametrize("is_read_later", [False, True], ids=["read at once", "read when the log has grown again"])
def test_what_was_settled_of_records_that_the_log_has_lost_says_nothing_about_their_successors(is_read_later: bool) -> None:
    machine, client, topic_id = share_machine(topic_configs={"flush_messages": "1000000"})
    client.append(count=2)
    member = member_of(machine, topic_id)
    assert member.acquired() == [(0, 1, 1)]
    # Everything was synced when the topic of the states was created. What comes later is lost with the power.
    client.append(count=4)
    assert member.acquired() == [(2, 5, 1)]
    assert member.settle(0, 0, ACCEPT) == member.settle(4, 4, ACCEPT) == ErrorCode.NONE
    if is_read_later:
        assert member.settle(1, 3, ACCEPT) == member.settle(5, 5, ACCEPT) == ErrorCode.NONE
    machine.crash()
    wait_ready(machine)
    assert machine.broker.partitions.find("orders", None, 0).log.log_end_offset == 2
    if is_read_later:
        machine.client().append(count=7)
    member = member_of(machine, topic_id)
    if not is_read_later:
        assert wait_for_records(machine, member) == [(1, 1, 1)], "what the log still has is as it was"
        assert member.settle(1, 1, ACCEPT) == ErrorCode.NONE
        machine.client().append(count=7)
    assert wait_for_records(machine, member) == [(2, 8, 1)]
    assert [each["start_offset"] for each in machine.facts("share_state_cut")] == [6 if is_read_later else 1]
    assert member.settle(2, 8, ACCEPT) == ErrorCode.NONE
    machine.crash("all")
    wait_ready(machine)
    assert member_of(machine, topic_id).acquired(max_wait_ms=500) == [], "what was settled since stays settled"


def test_a_log_that_begins_later_takes_the_group_with_it() -> None:
    machine, client, topic_id = share_machine()
    client.append(count=5)
    member = member_of(machine, topic_id)
    assert member.acquired() == [(0, 4, 1)]
    partitions = [{"partition_index": 0, "offset": 3}]
    client.call(ApiKey.DELETE_RECORDS, 2, topics=[{"name": "orders", "partitions": partitions}], timeout_ms=1000)
    assert member.settle(0, 4, ACCEPT) == ErrorCode.NONE, "what is gone is ignored"
    client.append(count=1)
    assert member.acquired() == [(5, 5, 1)]


# -- sessions ----------------------------------------------------------------------------------------------------------------


def test_a_lost_connection_releases_at_once_without_lowering_the_count() -> None:
    machine, client, topic_id = share_machine()
    client.append(count=2)
    lost, other = member_of(machine, topic_id, "lost"), member_of(machine, topic_id, "other")
    assert lost.acquired() == [(0, 1, 1)]
    assert other.acquired() == []
    lost.client.session.closed()
    assert other.acquired(max_wait_ms=1_000) == [(0, 1, 2)]


def test_a_session_that_was_opened_again_survives_what_comes_over_the_first_connection_and_its_end() -> None:
    machine, client, topic_id = share_machine()
    client.append(count=2)
    member = member_of(machine, topic_id)
    assert member.acquired() == [(0, 1, 1)]
    first, member.client, member.epoch = member.client, machine.client(), 0
    assert member.acquired() == []
    for epoch in (1, -1):
        fields = {"group_id": GROUP, "member_id": "a", "share_session_epoch": epoch, "is_renew_ack": False}
        late = first.call(ApiKey.SHARE_ACKNOWLEDGE, 2, topics=member.topics([(0, 0, 0, [RELEASE])]), **fields)
        assert late.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    first.session.closed()
    assert member.settle(0, 1, ACCEPT) == ErrorCode.NONE, "it still holds its records"


def test_the_last_request_of_a_session_settles_and_releases() -> None:
    machine, client, topic_id = share_machine()
    client.append(count=3)
    a, b = member_of(machine, topic_id, "a"), member_of(machine, topic_id, "b")
    assert a.acquired() == [(0, 2, 1)]
    assert a.fetch((0, 0, 0, [ACCEPT]), share_session_epoch=-1).error_code == 0
    assert b.acquired(max_wait_ms=1_000) == [(1, 2, 2)]
    assert a.fetch().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert len(machine.broker.share_sessions) == 1


@pytest.mark.parametrize("ends", ["closed", "opened again elsewhere"])
def test_a_fetch_that_outlives_its_session_locks_nothing(ends: str) -> None:
    machine, client, topic_id = share_machine()
    member, other = member_of(machine, topic_id), member_of(machine, topic_id, "other")
    member.acquired()
    other.acquired()
    before = len(member.client.replies)
    body = encode_request(ApiKey.SHARE_FETCH, 2, member.fetch_fields(max_wait_ms=60_000))
    member.client.send(ApiKey.SHARE_FETCH, 2, body)
    if ends == "closed":
        fields = {"group_id": GROUP, "member_id": "a", "share_session_epoch": -1, "is_renew_ack": False, "topics": []}
        member.client.send(ApiKey.SHARE_ACKNOWLEDGE, 2, encode_request(ApiKey.SHARE_ACKNOWLEDGE, 2, fields))
        machine.broker.end_of_burst()
    else:
        again = ShareMember(machine, "a", topic_id)
        assert again.acquired() == []
    client.append(count=2)
    assert other.acquired() == [(0, 1, 1)]
    machine.run_until(lambda: len(member.client.replies) > before)


def used_shard(machine: Machine) -> Shard[ShareCoordinator]:
    """The shard of the share coordinator that has a state."""
    service = machine.broker.coordinators.share_states.service
    return next(shard for shard in service.runtime if shard.machine is not None and len(shard.machine))


def test_an_acknowledgement_waits_for_a_coordinator_that_is_away_and_locks_are_kept() -> None:
    machine, client, topic_id = share_machine()
    client.append(count=2)
    member, other = member_of(machine, topic_id), member_of(machine, topic_id, "other")
    assert member.acquired() == [(0, 1, 1)]
    machine.run_for(100)
    used_shard(machine).drop(StorageError("the disk failed"))
    assert member.settle(0, 0, ACCEPT) == ErrorCode.NONE
    assert other.acquired() == []
    assert member.settle(1, 1, RELEASE) == ErrorCode.NONE
    assert other.acquired() == [(1, 1, 2)]


def test_a_write_that_fails_for_long_drops_the_leader_and_the_next_fetch_begins_with_what_was_written(monkeypatch: Any) -> None:
    machine, client, topic_id = share_machine()
    client.append(count=2)
    member = member_of(machine, topic_id)
    assert member.acquired() == [(0, 1, 1)]
    machine.run_for(100)
    monkeypatch.setattr(share_states, "ATTEMPTS_MAX", 1)
    used_shard(machine).drop(StorageError("the disk failed"))
    assert member.settle(0, 0, ACCEPT) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    wait_ready(machine)
    assert wait_for_records(machine, member) == [(0, 1, 1)]


# -- administration ----------------------------------------------------------------------------------------------------------


def described_offsets(machine: Machine, group: str = GROUP, topics: list[dict[str, Any]] | None = None) -> Any:
    groups = [{"group_id": group, "topics": topics}]
    (described,) = machine.client().call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=groups).groups
    return described


def alter(machine: Machine, offset: int, group: str = GROUP, topic: str = "orders", partition: int = 0) -> tuple[int, int | None]:
    topics = [{"topic_name": topic, "partitions": [{"partition_index": partition, "start_offset": offset}]}]
    response = machine.client().call(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, group_id=group, topics=topics)
    return response.error_code, response.responses[0].partitions[0].error_code if response.responses else None


def test_offsets_are_described_with_lag_altered_and_deleted() -> None:
    machine, client, topic_id = share_machine()
    client.append(count=10)
    member = member_of(machine, topic_id)
    member.acquired()
    member.settle(0, 1, ACCEPT)
    member.settle(4, 6, ACCEPT)
    (topic,) = described_offsets(machine).topics
    (partition,) = topic.partitions
    assert (topic.topic_name, partition.start_offset, partition.lag) == ("orders", 2, 5)
    # Fields of our own, which Kafka's clients skip.
    assert (partition.log_start_offset, partition.end_offset) == (0, 10)
    assert (partition.acquired_count, partition.delayed_count, partition.redelivered_count) == (5, 0, 0)
    assert partition.oldest_timestamp_ms >= 0
    member.settle(3, 3, RELEASE)
    (partition,) = described_offsets(machine).topics[0].partitions
    assert (partition.lag, partition.acquired_count, partition.redelivered_count) == (5, 4, 1)
    assert alter(machine, 7) == (ErrorCode.NON_EMPTY_GROUP, None)
    member.client.session.closed()
    ShareMember(machine, "a", topic_id).beat(-1)
    assert alter(machine, 7) == (ErrorCode.NONE, ErrorCode.NONE)
    assert alter(machine, 7, partition=9) == (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert wait_for_records(machine, member_of(machine, topic_id, "b")) == [(7, 9, 1)]
    ShareMember(machine, "b", topic_id).beat(-1)
    response = client.call(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, group_id=GROUP, topics=[{"topic_name": "orders"}])
    assert (response.error_code, response.responses[0].error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert described_offsets(machine).topics == ()
    (partition,) = described_offsets(machine, topics=[{"topic_name": "orders", "partitions": [0]}]).topics[0].partitions
    assert partition.start_offset == -1


def test_a_group_is_listed_described_and_deleted_with_its_states() -> None:
    machine, client, topic_id = share_machine()
    member = member_of(machine, topic_id)
    member.acquired()
    (listed,) = client.call(ApiKey.LIST_GROUPS, 5, states_filter=[], types_filter=["share"]).groups
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (GROUP, "share", "Stable", "Share")
    (described,) = client.call(ApiKey.SHARE_GROUP_DESCRIBE, 1, group_ids=[GROUP], include_authorized_operations=True).groups
    assert (described.group_state, described.assignor_name, len(described.members)) == ("Stable", "simple", 1)
    (topic,) = described.members[0].assignment.topic_partitions
    assert (topic.topic_name, tuple(topic.partitions)) == ("orders", (0,))
    deleted = client.call(ApiKey.DELETE_GROUPS, 2, groups_names=[GROUP]).results[0].error_code
    assert deleted == ErrorCode.NON_EMPTY_GROUP
    member.beat(-1)
    member.client.session.closed()
    assert client.call(ApiKey.DELETE_GROUPS, 2, groups_names=[GROUP]).results[0].error_code == ErrorCode.NONE
    service = machine.broker.coordinators.share_states.service
    assert sum(len(shard.machine) for shard in service.runtime if shard.machine is not None) == 0
    assert client.call(ApiKey.SHARE_GROUP_DESCRIBE, 1, group_ids=[GROUP]).groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    client.append(count=1)
    assert member_of(machine, topic_id, "b").acquired() == [(0, 0, 1)], "a new group of the same name starts from the beginning"


def test_the_states_of_a_topic_are_deleted_with_it_also_if_their_shard_was_not_loaded() -> None:
    machine, client, topic_id = share_machine(settings={"share.coordinator.cold.partition.snapshot.interval.ms": "5000"})
    member_of(machine, topic_id).acquired()
    shard = used_shard(machine)
    shard.drop(StorageError("the disk failed"))

    def states() -> int | None:
        return None if shard.machine is None else len(shard.machine)

    client.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "orders", "topic_id": bytes(16)}], timeout_ms=1000)
    assert states() is None, "it is not loaded"
    wait_ready(machine)
    machine.run_for(5_000)
    assert states() == 1, "this broker may not have heard of the topic yet"
    machine.run_for(share_states.ORPHANED_MS_MIN + 5_000)
    assert states() == 0


def test_the_share_coordinator_is_found_by_kafkas_key() -> None:
    _, client, _ = share_machine()
    key = "jobs:AAECAwQFBgcICQoLDA0ODw:0"
    (found,) = client.call(ApiKey.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[key]).coordinators
    assert (found.error_code, found.node_id) == (ErrorCode.NONE, 1)
    for bad in ("jobs", "jobs:x:0", "jobs:AAECAwQFBgcICQoLDA0ODw:x", ":AAECAwQFBgcICQoLDA0ODw:0"):
        (found,) = client.call(ApiKey.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[bad]).coordinators
        assert found.error_code == ErrorCode.INVALID_REQUEST, bad
    (found,) = client.call(ApiKey.FIND_COORDINATOR, 5, key_type=2, coordinator_keys=[key]).coordinators
    assert found.error_code == ErrorCode.INVALID_REQUEST


def test_redundant_records_of_the_state_are_deleted() -> None:
    settings = {
        "share.coordinator.snapshot.update.records.per.snapshot": "5",
        "share.coordinator.state.topic.prune.interval.ms": "1000",
        "share.coordinator.state.topic.num.partitions": "1",
    }
    machine, client, topic_id = share_machine(settings=settings)
    member = member_of(machine, topic_id)
    member.acquired()
    for offset in range(12):
        client.append(count=1)
        assert member.acquired() == [(offset, offset, 1)]
        assert member.settle(offset, offset, ACCEPT) == ErrorCode.NONE
    machine.run_for(2_000)
    log = machine.broker.directory.logs["__share_group_state", 0]
    assert log.log_start_offset > 0
    machine.crash()
    wait_ready(machine)
    machine.client().append(count=1)
    assert wait_for_records(machine, member_of(machine, topic_id)) == [(12, 12, 1)]


# -- mistakes ----------------------------------------------------------------------------------------------------------------


def test_without_the_feature_every_call_is_refused() -> None:
    machine, client, topic_id = share_machine()
    member = member_of(machine, topic_id)
    update = [{"feature": "share.version", "max_version_level": 0, "upgrade_type": 2}]
    assert client.call(ApiKey.UPDATE_FEATURES, 1, timeout_ms=1000, feature_updates=update).error_code == ErrorCode.NONE
    assert member.beat(1).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert member.fetch().error_code == ErrorCode.UNSUPPORTED_VERSION
    assert member.acknowledge().error_code == ErrorCode.UNSUPPORTED_VERSION
    assert described_offsets(machine).error_code == ErrorCode.UNSUPPORTED_VERSION


FETCH_REFUSALS: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "no group": ({"group_id": None}, ErrorCode.INVALID_REQUEST),
    "no member": ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
    "an unknown session": ({"member_id": "nobody"}, ErrorCode.SHARE_SESSION_NOT_FOUND),
    "the end of an unknown session": ({"member_id": "nobody", "share_session_epoch": -1}, ErrorCode.SHARE_SESSION_NOT_FOUND),
    "a wrong epoch": ({"share_session_epoch": 7}, ErrorCode.INVALID_SHARE_SESSION_EPOCH),
    "a renewal that wants bytes": ({"is_renew_ack": True}, ErrorCode.INVALID_REQUEST),
}


@pytest.mark.parametrize("name", FETCH_REFUSALS)
def test_a_fetch_that_is_refused_as_a_whole(name: str) -> None:
    machine, _, topic_id = share_machine()
    member = member_of(machine, topic_id)
    member.acquired()
    fields, code = FETCH_REFUSALS[name]
    assert member.fetch(**fields).error_code == code


def test_a_first_request_cannot_acknowledge_and_a_session_does_not_begin_with_an_acknowledgement() -> None:
    machine, _, topic_id = share_machine()
    member = member_of(machine, topic_id)
    assert member.fetch((0, 0, 0, [ACCEPT])).error_code == ErrorCode.INVALID_REQUEST
    assert member.acknowledge((0, 0, 0, [ACCEPT])).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge(share_session_epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_the_number_of_sessions_is_limited_and_the_refusal_comes_late() -> None:
    machine, _, topic_id = share_machine(settings={"group.share.max.share.sessions": "1"})
    a, b = member_of(machine, topic_id, "a"), member_of(machine, topic_id, "b")
    a.acquired()
    began_ms = machine.clock.monotonic_ms()
    assert b.fetch(max_wait_ms=700).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert machine.clock.monotonic_ms() - began_ms >= 700
    a.client.session.closed()
    assert b.fetch().error_code == ErrorCode.NONE


ACKNOWLEDGE_REFUSALS: dict[str, tuple[tuple[int, int, list[int]], int, bool, ErrorCode]] = {
    "first after last": ((3, 2, [1]), 2, False, ErrorCode.INVALID_REQUEST),
    "two types for three offsets": ((0, 2, [1, 1]), 2, False, ErrorCode.INVALID_REQUEST),
    "an unknown type": ((0, 0, [5]), 2, True, ErrorCode.INVALID_REQUEST),
    "a renewal in version 1": ((0, 0, [4]), 1, False, ErrorCode.INVALID_REQUEST),
    "a renewal without its flag": ((0, 0, [4]), 2, False, ErrorCode.INVALID_REQUEST),
    "beyond the window": ((4, 5, [1]), 2, False, ErrorCode.INVALID_REQUEST),
    "not acquired": ((1, 1, [1]), 2, False, ErrorCode.INVALID_RECORD_STATE),
    "partly acquired": ((0, 2, [1]), 2, False, ErrorCode.INVALID_RECORD_STATE),
}


@pytest.mark.parametrize("name", ACKNOWLEDGE_REFUSALS)
def test_an_acknowledgement_that_is_refused_changes_nothing(name: str) -> None:
    machine, client, topic_id = share_machine()
    client.append(count=5)
    member = member_of(machine, topic_id)
    member.acquired()
    assert member.settle(1, 1, RELEASE) == ErrorCode.NONE
    (first, last, types), version, renews, code = ACKNOWLEDGE_REFUSALS[name]
    extra = {"is_renew_ack": renews} if version > 1 else {}
    response = member.acknowledge((0, first, last, types), version=version, **extra)
    assert response.responses[0].partitions[0].error_code == code
    assert member.acquired() == [(1, 1, 2)], "only what was released before"
    assert member.settle(0, 0, ACCEPT) == ErrorCode.NONE


def test_another_members_record_an_unknown_topic_and_a_disabled_renewal() -> None:
    machine, client, topic_id = share_machine()
    client.append(count=2)
    a, b = member_of(machine, topic_id, "a"), member_of(machine, topic_id, "b")
    a.acquired()
    b.acquired()
    assert b.settle(0, 0, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
    assert configure(client, share_renew_acknowledge_enable="false") == 0
    assert a.settle(0, 0, RENEW, is_renew_ack=True) == ErrorCode.INVALID_RECORD_STATE
    stranger = ShareMember(machine, "c", b"?" * 16)
    found = partition_in(stranger.fetch())
    assert found is not None
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("share_record_lock_duration_ms", "999"),
        ("share_delivery_count_limit", "1"),
        ("share_partition_max_record_locks", "99"),
        ("share_isolation_level", "serializable"),
        ("share_auto_offset_reset", "by_duration:1h"),
        ("share_renew_acknowledge_enable", "perhaps"),
        ("share_heartbeat_interval_ms", "45000"),
    ],
)
def test_settings_out_of_range_are_refused(setting: str, value: str) -> None:
    _, client, _ = share_machine()
    assert configure(client, **{setting: value}) == ErrorCode.INVALID_CONFIG


def test_an_empty_share_group_is_not_joined_by_a_classic_member() -> None:
    machine, client, topic_id = share_machine()
    member = member_of(machine, topic_id)
    member.beat(-1)
    fields = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer", "member_id": ""}
    protocols = [{"name": "range", "metadata": b""}]
    response = client.call(ApiKey.JOIN_GROUP, 9, group_id=GROUP, protocols=protocols, **fields)
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    (listed,) = client.call(ApiKey.LIST_GROUPS, 5, states_filter=[], types_filter=[]).groups
    assert listed.group_type == "Share"
