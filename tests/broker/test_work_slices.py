"""Work in slices: turns, order, cancelling, helper threads, and the bound on decoded requests."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.broker.handlers.classic_members import Member
from tests.broker.handlers.group_clients import find_coordinator
from tests.broker.harness import FakeClient, Machine, produce_request
from tests.broker.loop_watch import watch_loop
from tests.log.harness import START_MS, batch
from tidelog.broker.handlers import TABLE
from tidelog.broker.session import LARGE_FRAME_BYTES_MAX, SMALL_FRAME_BYTES_MAX
from tidelog.broker.work_slices import STEPS_PER_SLICE
from tidelog.ports.steps import Steps
from tidelog.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    decode_fetch_response,
    encode_fetch_request,
)
from tidelog.wire.messages import encode_request
from tidelog.wire.produce import encode_produce_request
from tidelog.wire.protocol import ApiKey, request_header

PARTITIONS = 20_000


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def client(machine: Machine) -> FakeClient:
    return machine.client()


def counting(done: list[str], name: str, count: int) -> Steps[None]:
    for _ in range(count):
        done.append(name)
        yield


def test_work_takes_turns_and_is_done_in_slices(machine: Machine) -> None:
    done: list[str] = []
    ended: list[Exception | None] = []
    slices = machine.broker.work_slices
    slices.run(counting(done, "a", 2 * STEPS_PER_SLICE), ended.append)
    assert done == ["a"] * STEPS_PER_SLICE
    slices.run(counting(done, "b", 3), ended.append)
    assert len(done) == STEPS_PER_SLICE, "the other work is first in line"
    machine.run_until(lambda: len(ended) == 2)
    assert done[STEPS_PER_SLICE:][:6] == ["a", "b"] * 3
    assert ended == [None, None]
    assert not len(slices)


def test_a_call_runs_in_a_helper_thread_and_the_work_goes_on_with_its_outcome(machine: Machine) -> None:
    seen: list[Any] = []

    def fail() -> None:
        raise ValueError("no")

    def steps() -> Steps[None]:
        seen.append((yield lambda: 7))
        try:
            yield fail
        except ValueError as error:
            seen.append(str(error))

    ended: list[Exception | None] = []
    machine.broker.work_slices.run(steps(), ended.append)
    assert not seen
    machine.run_until(lambda: bool(ended))
    assert (seen, ended) == ([7, "no"], [None])


def test_cancelled_work_does_not_go_on(machine: Machine) -> None:
    done: list[str] = []
    ended: list[Exception | None] = []
    work = machine.broker.work_slices.run(counting(done, "a", 1000), ended.append)
    work.cancel()
    machine.run_for(1000)
    assert (len(done), ended) == (STEPS_PER_SLICE, [])


def large_fetch(*, wait_ms: int = 0, offset: int = 0) -> FetchRequest:
    wanted = [FetchPartition(index % PARTITIONS, offset, 1 << 20) for index in range(2 * PARTITIONS)]
    return FetchRequest(-1, wait_ms, 1, 1 << 20, 0, 0, -1, [FetchTopic("orders", None, wanted)], [], "")


def send_fetch(client: FakeClient, request: FetchRequest) -> None:
    client.send(ApiKey.FETCH, 12, encode_fetch_request(12, request))


def test_answers_stay_in_order_and_other_clients_come_in_between(machine: Machine, client: FakeClient) -> None:
    client.create_topic()
    client.append()
    replies = len(client.replies)
    send_fetch(client, large_fetch())
    assert not client.session.wants_reading, "one long request at a time"
    client.send(ApiKey.API_VERSIONS, 3, encode_request(ApiKey.API_VERSIONS, 3, {}))
    assert machine.client().read().records, "another client is served first"
    assert len(client.replies) == replies
    machine.run_until(lambda: len(client.replies) == replies + 2)
    (topic,) = decode_fetch_response(12, memoryview(client.replies[replies]), 5).topics
    assert len(topic.partitions) == PARTITIONS, "a partition that is named twice is answered once"
    assert topic.partitions[0].records
    machine.run_until(lambda: client.session.wants_reading)


def test_a_large_fetch_waits_for_records_like_any_other(machine: Machine, client: FakeClient) -> None:
    client.create_topic(partitions=2)
    wanted = [FetchPartition(index % 2, 0, 1 << 20) for index in range(2000)]
    request = FetchRequest(-1, 800, 1, 1 << 20, 0, 0, -1, [FetchTopic("orders", None, wanted)], [], "")
    replies = len(client.replies)
    send_fetch(client, request)
    machine.run_for(200)
    assert len(client.replies) == replies
    machine.client().append(partition=1)
    machine.run_until(lambda: len(client.replies) > replies)
    (topic,) = decode_fetch_response(12, memoryview(client.replies[-1]), 5).topics
    assert [bool(each.records) for each in topic.partitions] == [False, True]
    assert machine.broker.work_slices.admitted_bytes == 0
    # And it is answered when its time is up.
    replies = len(client.replies)
    began_ms = machine.clock.monotonic_ms()
    request = request._replace(topics=[FetchTopic("orders", None, [FetchPartition(0, 0, 1 << 20)] * 2000)])
    send_fetch(client, request)
    machine.run_until(lambda: len(client.replies) > replies)
    assert 800 <= machine.clock.monotonic_ms() - began_ms < 1000


def test_a_client_that_goes_away_takes_its_work_along(machine: Machine, client: FakeClient) -> None:
    client.create_topic()
    send_fetch(client, large_fetch())
    slices = machine.broker.work_slices
    assert len(slices) == 1
    assert slices.admitted_bytes
    client.session.closed()
    assert slices.admitted_bytes == 0
    machine.run_for(100)
    assert not len(slices)
    waiting = machine.client()
    wanted = [FetchTopic("orders", None, [FetchPartition(0, 0, 1)] * 900)]
    send_fetch(waiting, FetchRequest(-1, 900, 1, 1 << 20, 0, 0, -1, wanted, [], ""))
    machine.run_for(100)
    assert slices.admitted_bytes
    waiting.session.closed()
    assert slices.admitted_bytes == 0


def test_decoded_requests_are_bounded_together() -> None:
    machine = Machine(
        {"queued.max.request.bytes": str(1 << 20), "socket.request.max.bytes": "200000", "message.max.bytes": "100000"}
    )
    machine.client().create_topic()
    slices = machine.broker.work_slices
    # Each takes a third of the memory and waits for records.
    wanted = [FetchPartition(0, 0, 1 << 20)] * 240
    request = FetchRequest(-1, 500, 1, 1 << 20, 0, 0, -1, [FetchTopic("orders", None, wanted)], [], "")
    body = encode_fetch_request(12, request)
    assert len(body) > SMALL_FRAME_BYTES_MAX
    clients = [machine.client() for _ in range(6)]
    for client in clients:
        send_fetch(client, request)
    most = 0

    def all_answered() -> bool:
        nonlocal most
        most = max(most, slices.admitted_bytes)
        return all(client.replies for client in clients)

    assert slices.waiting_count == 4
    # One that is gone before there was memory for it is forgotten.
    clients.pop().session.closed()
    machine.run_until(all_answered)
    assert len(body) * TABLE[ApiKey.FETCH].decoded_bytes_per_byte_max < most <= 1 << 20
    assert (slices.admitted_bytes, slices.waiting_count) == (0, 0)


@pytest.mark.parametrize("api_key", [ApiKey.FETCH, ApiKey.METADATA])
def test_a_request_without_records_that_is_far_too_large_ends_the_connection(machine: Machine, api_key: int) -> None:
    client = machine.client()
    client.send_bytes(request_header(api_key, 12, 1, "test") + bytes(LARGE_FRAME_BYTES_MAX))
    assert client.closed is not None
    assert str(LARGE_FRAME_BYTES_MAX) in client.closed


def test_a_malformed_large_request_ends_the_connection(machine: Machine) -> None:
    client = machine.client()
    body = encode_request(ApiKey.METADATA, 12, {"topics": [{"name": f"t{number}"} for number in range(2000)]})
    client.send_bytes(request_header(ApiKey.METADATA, 12, 1, "test") + body[:-20])
    machine.run_until(lambda: client.closed is not None)
    assert client.closed is not None
    assert client.closed.startswith("malformed Metadata request")
    assert machine.broker.work_slices.admitted_bytes == 0


def test_a_lookup_by_time_in_a_large_batch_holds_nobody(machine: Machine, client: FakeClient) -> None:
    client.create_topic()
    count = 30_000
    client.append(records=batch(count, timestamps=range(START_MS, START_MS + count)))
    question = {"partition_index": 0, "timestamp": START_MS + count - 1}
    with watch_loop(machine) as watch:
        (topic,) = client.call(
            ApiKey.LIST_OFFSETS, 7, replica_id=-1, topics=[{"name": "orders", "partitions": [question]}]
        ).topics
    assert topic.partitions[0].offset == count - 1
    assert watch.longest_ms < 50


# -- what must not happen ----------------------------------------------------------------------------------------------------


def metadata_of(count: int) -> bytes:
    topics = [{"name": f"topic-{number:05}"} for number in range(count)]
    return encode_request(ApiKey.METADATA, 12, {"topics": topics, "allow_auto_topic_creation": False})


def test_an_error_at_the_end_of_one_work_does_not_stop_the_others(machine: Machine) -> None:
    def fail(error: Exception | None) -> None:
        raise OSError("the event log is full")

    machine.broker.work_slices.run(counting([], "a", 3 * STEPS_PER_SLICE), fail)
    with pytest.raises(OSError, match="event log"):
        machine.run_for(10)
    client = machine.client()
    client.send(ApiKey.METADATA, 12, metadata_of(400))
    machine.run_until(lambda: bool(client.replies))


def test_no_request_overtakes_a_large_one_that_waits_for_memory() -> None:
    machine = Machine({"queued.max.request.bytes": str(2 << 20), "socket.request.max.bytes": str(2 << 20)})
    machine.client().create_topic("orders")
    slices = machine.broker.work_slices
    other, client = machine.client(), machine.client()
    # A fetch that waits for records holds the memory.
    wanted = [FetchPartition(number, 0, 1 << 20) for number in range(3_000)]
    fetch = FetchRequest(-1, 500, 1, 1 << 20, 0, 0, -1, [FetchTopic("orders", None, wanted)], [], "")
    other.send(ApiKey.FETCH, 12, encode_fetch_request(12, fetch))
    assert slices.admitted_bytes
    client.send(ApiKey.METADATA, 12, metadata_of(1_500))
    assert slices.waiting_count == 1
    assert not client.session.wants_reading
    machine.run_until(lambda: len(client.replies) == 1 and client.session.wants_reading)


def test_errors_of_helper_threads_reach_metered_work(machine: Machine) -> None:
    handled: list[str] = []

    def work() -> Steps[None]:
        try:
            yield lambda: None
        except ValueError as error:
            handled.append(str(error))

    context = SimpleNamespace(session=SimpleNamespace(now_ns=lambda: 0), usage=None)
    steps = machine.broker.throttling.metered(context, work())  # type: ignore[arg-type]  # only these two are looked at
    next(steps)
    with pytest.raises(StopIteration):
        steps.throw(ValueError("broken batch"))
    assert handled == ["broken batch"]


def test_large_fetches_are_answered_while_producers_go_on(machine: Machine, client: FakeClient) -> None:
    partitions, fetchers = 300, [machine.client() for _ in range(12)]
    client.create_topic("orders", partitions, flush_messages="1000")
    wanted = [FetchPartition(number, 0, 1 << 20) for number in range(partitions)]
    fetch = FetchRequest(-1, 500, 1, 1 << 20, 0, 0, -1, [FetchTopic("orders", None, wanted)], [], "")
    for fetcher in fetchers:
        fetcher.send(ApiKey.FETCH, 12, encode_fetch_request(12, fetch))
    machine.run_for(50)
    producer = machine.client()
    for turn in range(300):
        produced = produce_request("orders", batch(1), partition=turn * 7 % partitions, acks=1)
        producer.send(ApiKey.PRODUCE, 9, encode_produce_request(9, produced))
        machine.broker.end_of_burst()
        machine.broker.tick()
        if all(fetcher.replies for fetcher in fetchers):
            return
    answered = sum(bool(fetcher.replies) for fetcher in fetchers)
    raise AssertionError(f"{answered} of {len(fetchers)} fetches were answered")


def test_members_with_much_metadata_do_not_wait_for_each_others_memory() -> None:
    machine = Machine({"queued.max.request.bytes": str(2 << 20), "socket.request.max.bytes": str(2 << 20)})
    find_coordinator(machine.client())
    members = [Member(machine, "orders") for _ in range(8)]
    for member in members:
        member.metadata = bytes(100_000)
        member.member_id = member.send_join().answer().member_id
    # The first round makes the group; in the second each answer waits for all of them.
    for _ in range(2):
        joins = [member.send_join() for member in members]
        machine.run_for(8_000)
        assert [join.is_answered for join in joins] == [True] * len(joins)


def test_a_large_decision_does_not_hold_its_connection_for_ever(machine: Machine, client: FakeClient) -> None:
    """It is decided within its first slice, and keeps its frame for a controller that may have to answer it."""
    topics = [{"name": f"{'x' * 240}-{number}", "num_partitions": 1, "replication_factor": 1} for number in range(17)]
    body = encode_request(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 30_000})
    assert len(body) > SMALL_FRAME_BYTES_MAX
    client.send(ApiKey.CREATE_TOPICS, 7, body)
    machine.run_until(lambda: len(client.replies) == 1 and client.session.wants_reading)
