"""A share fetch of records that are not in the page cache: a helper thread reads them, and the event loop never waits."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from tests.broker.handlers.share_client import QUEUE, acquired_in, share_machine
from tests.broker.handlers.test_share_groups import begin_settling, member_of
from tests.broker.test_share_seeds import SharedRun
from tidelog.broker import share_partitions
from tidelog.broker.share_partitions import ShareLeader
from tidelog.queues.acknowledgements import AcknowledgeType
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import decode_response, encode_request
from tidelog.wire.protocol import ApiKey


class ColdLog:
    """A log whose records at some offsets have to be read from the disk first: the index, and then the batches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *offsets: int) -> None:
        self.missing = {(offset, what) for offset in offsets for what in ("index", "batches")}
        self.trips: list[tuple[int, str]] = []
        monkeypatch.setattr(share_partitions, "cold_read", lambda _, offset: self.read_of(offset, "index"))
        monkeypatch.setattr(share_partitions, "cold_slice", lambda _, offset, __: self.read_of(offset, "batches"))

    def read_of(self, offset: int, what: str) -> Callable[[], object] | None:
        return partial(self.read, offset, what) if (offset, what) in self.missing else None

    def read(self, offset: int, what: str) -> None:
        self.trips.append((offset, what))
        self.missing.discard((offset, what))
        raise OSError(5, "whoever reads it again is told")


@pytest.mark.pure_python
@pytest.mark.parametrize("configs", [{}, QUEUE], ids=["ordinary topic", "queue topic"])
@pytest.mark.parametrize("bytes_min", [1, 2])
def test_records_that_are_not_in_memory_are_read_in_a_helper_thread(
    configs: dict[str, str], bytes_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, client, topic_id = share_machine(topic_configs=configs)
    member = member_of(machine, topic_id)
    assert member.acquired() == []
    client.append(count=3)
    log = ColdLog(monkeypatch, 0)
    body = encode_request(ApiKey.SHARE_FETCH, 2, member.fetch_fields(max_wait_ms=0, min_bytes=bytes_min))
    correlation_id, before = member.client.send(ApiKey.SHARE_FETCH, 2, body), len(member.client.replies)
    assert (log.trips, before) == ([], len(member.client.replies)), "the loop does not wait for the disk"
    machine.run_until(lambda: len(member.client.replies) > before)
    assert log.trips == [(0, "index"), (0, "batches")]
    frame, position = member.client.last_reply(ApiKey.SHARE_FETCH, 2, correlation_id)
    assert acquired_in(decode_response(ApiKey.SHARE_FETCH, 2, frame, position)) == [(0, 2, 1)]


@pytest.mark.pure_python
def test_records_that_become_available_and_are_not_in_memory_are_read_once_for_all_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, client, topic_id = share_machine()
    client.append(count=1)
    client.append(count=1)
    holder = member_of(machine, topic_id, "holder")
    assert holder.acquired() == [(0, 1, 1)]
    waiting = [member_of(machine, topic_id, f"waiting-{number}") for number in range(3)]
    for member in waiting:
        assert member.acquired() == []
        body = encode_request(ApiKey.SHARE_FETCH, 2, member.fetch_fields(max_wait_ms=60_000, max_records=1))
        member.client.send(ApiKey.SHARE_FETCH, 2, body)
    log = ColdLog(monkeypatch, 0, 1)
    replies = [len(member.client.replies) for member in waiting]
    began_ms = machine.clock.monotonic_ms()
    assert holder.settle(0, 1, AcknowledgeType.RELEASE) == ErrorCode.NONE

    def answered() -> list[bool]:
        return [len(member.client.replies) > before for member, before in zip(waiting, replies, strict=True)]

    machine.run_until(lambda: sum(answered()) == 2)
    assert machine.clock.monotonic_ms() - began_ms < 1_000
    assert log.trips == [(0, "index"), (0, "batches"), (1, "index"), (1, "batches")]


@pytest.mark.pure_python
def test_records_that_are_never_in_memory_are_delivered_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, client, topic_id = share_machine()
    member = member_of(machine, topic_id)
    assert member.acquired() == []
    client.append(count=2)
    monkeypatch.setattr(share_partitions, "cold_slice", lambda *_: lambda: None)
    assert member.acquired() == [(0, 1, 1)]


@pytest.mark.pure_python
def test_messages_that_expired_long_ago_and_are_not_in_memory_do_not_hold_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, client, topic_id = share_machine(topic_configs={**QUEUE, "tidelog_queue_ttl_ms": "1000"})
    client.append(count=1)
    member = member_of(machine, topic_id)
    assert member.acquired() == [(0, 0, 1)]
    count = 3 * share_partitions.COLD_TRIPS_MAX
    for _ in range(count):
        client.append(count=1)
    machine.run_for(2_000)
    client.append(count=1)
    log = ColdLog(monkeypatch, *range(count + 2))
    # One batch at a time.
    monkeypatch.setattr(share_partitions, "QUEUE_READ_BYTES", 1)
    trips_before_settling: list[int] = []
    settle = ShareLeader.acknowledge

    def noted(*arguments: Any) -> None:
        trips_before_settling.append(len(log.trips))
        settle(*arguments)

    monkeypatch.setattr(ShareLeader, "acknowledge", noted)
    before = len(member.client.replies)
    member.client.send(ApiKey.SHARE_FETCH, 2, encode_request(ApiKey.SHARE_FETCH, 2, member.fetch_fields(max_wait_ms=60_000)))
    member.epoch += 1
    settled = begin_settling(member, 0, 0, AcknowledgeType.ACCEPT)
    machine.run_until(lambda: len(member.client.replies) == before + 2)
    assert settled() == ErrorCode.NONE
    assert len(log.trips) == 2 * (count + 1)
    assert trips_before_settling[0] < count, "it did not wait for the fetch before it"


@pytest.mark.pure_python
@pytest.mark.parametrize("seed", [2, 4, 5, 8, 12])
def test_what_holds_for_share_groups_holds_for_records_that_are_not_in_memory(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr(share_partitions, "cold_slice", lambda *_: (lambda: None) if random.random() < 0.5 else None)
    SharedRun(seed).run()


@pytest.mark.pure_python
def test_a_partition_that_is_not_in_memory_is_read_while_others_are_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, client, topic_id = share_machine(partitions=2)
    member = member_of(machine, topic_id, partitions=(0, 1))
    member.fetch()
    client.append(count=2, partition=0)
    client.append(count=2, partition=1)
    missing = {"orders-0"}
    monkeypatch.setattr(
        share_partitions, "cold_slice", lambda log, *_: partial(missing.discard, log.name) if log.name in missing else None
    )
    answer = member.fetch()
    assert (acquired_in(answer, 0), acquired_in(answer, 1)) == ([], [(0, 1, 1)])
    machine.run_until(lambda: not missing)
    assert member.acquired() == [(0, 1, 1)]
