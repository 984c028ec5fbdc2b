"""Reading a partition while things go wrong, from brokers that say what the test wants: which failures pass, and which do not."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.client.fetch.rows import Row, oracle_rows, rows_of, without_headers
from tests.client.wire.fake_broker import HANG_UP, SILENCE, FakeBroker
from tidelog.client.errors import BrokerUnavailable, NotAuthorized, TidelogError, TimedOut, UnknownTopic
from tidelog.client.fetch import columns, librdkafka_source, ranges_reader
from tidelog.client.fetch.client import FetchClient
from tidelog.client.fetch.errors import BrokenBatch, OffsetsLost, OffsetsMissing, TopicRecreated
from tidelog.client.fetch.types import FetchRange
from tidelog.records.batch import build_batch
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.record import Record
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

TOPIC_ID, OTHER_ID, NO_ID = b"1" * 16, b"2" * 16, bytes(16)
# Codecs are made on first use, which takes a while on a busy machine.
PATIENT = {"socket.timeout.ms": "20000", "fetch.wait.max.ms": "50"}
IMPATIENT = {**PATIENT, "socket.timeout.ms": "1500"}


def metadata(
    fake: FakeBroker, topic_id: bytes = TOPIC_ID, error: ErrorCode = ErrorCode.NONE, port: int | None = None
) -> dict[str, Any]:
    answer = fake.metadata(1, {"t": 1})
    answer["topics"][0] |= {"topic_id": topic_id, "error_code": error}
    if port is not None:
        answer["brokers"][0]["port"] = port
    return answer


def fetched(
    records: bytes = b"",
    error: ErrorCode = ErrorCode.NONE,
    *,
    readable: int = 100,
    aborted: list[tuple[int, int]] | None = None,
    topic_id: bytes = TOPIC_ID,
) -> dict[str, Any]:
    partition = {
        "partition_index": 0,
        "error_code": error,
        "high_watermark": 100,
        "last_stable_offset": readable,
        "log_start_offset": 0,
        "aborted_transactions": [{"producer_id": producer, "first_offset": first} for producer, first in aborted or []],
        "records": records,
    }
    return {
        "throttle_time_ms": 0,
        "error_code": 0,
        "responses": [{"topic_id": topic_id, "topic": "t", "partitions": [partition]}],
    }


def listed(offset: int, error: ErrorCode = ErrorCode.NONE) -> dict[str, Any]:
    partition = {"partition_index": 0, "error_code": error, "offset": offset, "timestamp": -1}
    return {"topics": [{"name": "t", "partitions": [partition]}]}


def batch(first: int, count: int, **fields: Any) -> bytes:
    return build_batch(
        [Record(first + index, 5, None, b"%d" % (first + index)) for index in range(count)], base_offset=first, **fields
    )


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker() as opened:
        opened.versions |= {ApiKey.FETCH: (4, 17), ApiKey.LIST_OFFSETS: (1, 10)}
        opened.answer(ApiKey.METADATA, metadata(opened))
        yield opened


@pytest.fixture
def client(fake: FakeBroker) -> Iterator[FetchClient]:
    with FetchClient(fake.bootstrap_servers, settings=PATIENT) as opened:
        yield opened


@pytest.fixture
def impatient(fake: FakeBroker) -> Iterator[FetchClient]:
    with FetchClient(fake.bootstrap_servers, settings=IMPATIENT) as opened:
        yield opened


@pytest.fixture
def hurried(client: FetchClient, monkeypatch: pytest.MonkeyPatch) -> FetchClient:
    """Gives up soon, but has patience with each request: a busy machine may take seconds for one."""

    def progressed(cursor: ranges_reader._Cursor, seconds_max: float) -> None:
        cursor.deadline, cursor.unknown_deadline = time.monotonic() + seconds_max / 40, 0.0

    monkeypatch.setattr(ranges_reader._Cursor, "progressed", progressed)
    return client


def offsets(client: FetchClient, start: int, end: int, **options: Any) -> list[int]:
    return [row.offset for row in rows_of(client.read("t", 0, start, end, **options), "t", 0)]


def wanted_offsets(fake: FakeBroker) -> list[int]:
    return [request.topics[0].partitions[0].fetch_offset for request in fake.asked(ApiKey.FETCH)]


# -- where it ends ----------------------------------------------------------------------------------------------------------


def test_a_request_is_under_way_while_rows_are_read(fake: FakeBroker, client: FetchClient) -> None:
    fake.answer(ApiKey.FETCH, fetched(batch(0, 5) + batch(5, 5)), fetched(batch(10, 10)))
    assert offsets(client, 3, 15) == list(range(3, 15))
    assert wanted_offsets(fake) == [3, 10]


def test_what_compaction_removed_is_no_loss(fake: FakeBroker, client: FetchClient) -> None:
    kept = [Record(offset, 5, None, b"v") for offset in (12, 17)]
    log = build_batch(kept, base_offset=10, last_offset_delta=9) + build_batch([], base_offset=20, last_offset_delta=29)
    fake.answer(ApiKey.FETCH, fetched(log))
    assert offsets(client, 5, 50) == [12, 17]
    assert wanted_offsets(fake) == [5]


def test_the_last_offsets_may_be_gone_altogether(fake: FakeBroker, client: FetchClient) -> None:
    """What follows them is an open transaction, which a reader of committed messages is not given."""
    fake.answer(ApiKey.FETCH, fetched(batch(0, 5)), fetched(b"", readable=10))
    assert offsets(client, 0, 10) == [0, 1, 2, 3, 4]


def test_nothing_yet_is_asked_for_again(fake: FakeBroker, client: FetchClient) -> None:
    fake.answer(ApiKey.FETCH, fetched(b"", readable=9), fetched(b"", readable=9), fetched(batch(0, 10)))
    assert offsets(client, 0, 10) == list(range(10))


def test_markers_and_aborted_transactions(fake: FakeBroker, client: FetchClient) -> None:
    end = EndTransactionMarker(ControlType.ABORT, 0)
    log = batch(0, 3) + batch(3, 3, producer_id=7, producer_epoch=0, transactional=True)
    log += build_end_transaction_marker(end, producer_id=7, producer_epoch=0, timestamp=5, base_offset=6)
    fake.answer(ApiKey.FETCH, fetched(log, aborted=[(7, 3)]))
    assert offsets(client, 0, 7) == [0, 1, 2]
    assert wanted_offsets(fake) == [0]


def test_a_batch_that_is_cut_off_comes_again(fake: FakeBroker, client: FetchClient) -> None:
    fake.answer(ApiKey.FETCH, fetched(batch(0, 5) + batch(5, 5)[:-1]), fetched(batch(5, 5)))
    assert offsets(client, 0, 10) == list(range(10))
    assert wanted_offsets(fake) == [0, 5]


def test_an_end_that_stays_out_of_reach(fake: FakeBroker, hurried: FetchClient) -> None:
    fake.answer(ApiKey.FETCH, fetched(batch(0, 5)), fetched(b"", readable=5))
    with pytest.raises(OffsetsMissing, match="offsets 5 to 9 are missing: the last stable offset is 5"):
        offsets(hurried, 0, 10)


# -- what passes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    [
        fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        fetched(error=ErrorCode.FENCED_LEADER_EPOCH),
        fetched(error=ErrorCode.UNKNOWN_TOPIC_ID),
        fetched(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        HANG_UP,
        {"throttle_time_ms": 20, "error_code": 0, "responses": []},
    ],
)
def test_failures_that_pass(fake: FakeBroker, client: FetchClient, problem: Any) -> None:
    fake.answer(ApiKey.FETCH, problem, fetched(batch(0, 5)), problem, fetched(batch(5, 5)))
    assert offsets(client, 0, 10) == list(range(10))
    assert set(wanted_offsets(fake)) == {0, 5}


def test_the_new_leader_is_asked(fake: FakeBroker, client: FetchClient) -> None:
    with FakeBroker() as other:
        other.versions |= {ApiKey.FETCH: (4, 17)}
        other.answer(ApiKey.FETCH, fetched(batch(5, 5)))
        fake.answer(ApiKey.METADATA, metadata(fake), metadata(fake, port=other.port))
        other.answer(ApiKey.METADATA, metadata(fake, port=other.port))
        fake.answer(ApiKey.FETCH, fetched(batch(0, 5)), fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        assert offsets(client, 0, 10) == list(range(10))
        assert wanted_offsets(other) == [5]


def test_no_leader_for_a_while(fake: FakeBroker, client: FetchClient) -> None:
    none = metadata(fake)
    none["topics"][0]["partitions"][0] |= {"leader_id": -1, "error_code": ErrorCode.LEADER_NOT_AVAILABLE}
    fake.answer(ApiKey.METADATA, none, metadata(fake))
    fake.answer(ApiKey.FETCH, fetched(batch(0, 10)))
    assert offsets(client, 0, 10) == list(range(10))


def test_brokers_without_topic_ids(fake: FakeBroker, client: FetchClient) -> None:
    fake.answer(ApiKey.METADATA, metadata(fake, NO_ID))
    fake.answer(ApiKey.FETCH, fetched(batch(0, 10)))
    assert offsets(client, 0, 10, expected_topic_id=NO_ID) == list(range(10))
    assert [version for api, version, _ in fake.requests if api is ApiKey.FETCH] == [12]


@pytest.mark.parametrize("version", [4, 5, 7, 9, 11, 12, 13, 15, 16, 17])
def test_every_version_of_fetch(fake: FakeBroker, client: FetchClient, version: int) -> None:
    fake.versions[ApiKey.FETCH] = (4, version)
    fake.answer(ApiKey.FETCH, fetched(batch(0, 10)))
    assert offsets(client, 0, 10, expected_topic_id=TOPIC_ID) == list(range(10))
    assert [used for api, used, _ in fake.requests if api is ApiKey.FETCH] == [version]


# -- what does not pass -----------------------------------------------------------------------------------------------------


def test_a_topic_created_again_before_the_read(fake: FakeBroker, client: FetchClient) -> None:
    fake.answer(ApiKey.METADATA, metadata(fake, OTHER_ID))
    with pytest.raises(TopicRecreated, match=f"{OTHER_ID.hex()} now, and {TOPIC_ID.hex()} was asked for"):
        offsets(client, 0, 10, expected_topic_id=TOPIC_ID)


def test_a_topic_created_again_during_the_read(fake: FakeBroker, client: FetchClient) -> None:
    fake.answer(ApiKey.METADATA, metadata(fake), metadata(fake, OTHER_ID))
    fake.answer(ApiKey.FETCH, fetched(batch(0, 5)), fetched(error=ErrorCode.UNKNOWN_TOPIC_ID))
    with pytest.raises(TopicRecreated):
        offsets(client, 0, 10)


def test_a_topic_that_stays_unknown(fake: FakeBroker, client: FetchClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges_reader, "UNKNOWN_TOPIC_SECONDS", 0.1)
    fake.answer(ApiKey.METADATA, metadata(fake, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    with pytest.raises(UnknownTopic, match="there is no topic t"):
        offsets(client, 0, 10)


def test_offsets_that_get_lost_during_the_read(fake: FakeBroker, client: FetchClient) -> None:
    fake.answer(ApiKey.FETCH, fetched(batch(0, 5)), fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    fake.answer(ApiKey.LIST_OFFSETS, listed(8))
    with pytest.raises(OffsetsLost, match=r"t\[0\]: offsets 5 to 7 are lost"):
        offsets(client, 0, 10)


def test_out_of_range_beyond_the_end_may_pass(fake: FakeBroker, client: FetchClient) -> None:
    """A new leader does not know at first how far it may show its log."""
    fake.answer(ApiKey.LIST_OFFSETS, listed(0))
    fake.answer(ApiKey.FETCH, fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE), fetched(batch(5, 5)))
    assert offsets(client, 5, 10) == list(range(5, 10))


def test_out_of_range_beyond_the_end_that_does_not_pass(fake: FakeBroker, hurried: FetchClient) -> None:
    fake.answer(ApiKey.LIST_OFFSETS, listed(3))
    fake.answer(ApiKey.FETCH, fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    with pytest.raises(OffsetsMissing, match="offsets 5 to 9 are missing: the last stable offset is 3"):
        offsets(hurried, 5, 10)


def test_not_allowed(fake: FakeBroker, client: FetchClient) -> None:
    fake.answer(ApiKey.FETCH, fetched(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(NotAuthorized, match=r"read t\[0\]"):
        offsets(client, 0, 10)


def test_a_broker_that_does_not_come_back(fake: FakeBroker, impatient: FetchClient) -> None:
    fake.answer(ApiKey.FETCH, fetched(batch(0, 5)), HANG_UP)
    with pytest.raises(TimedOut, match=r"nothing arrived for 1\.5 s at offset 5"):
        offsets(impatient, 0, 10)


def test_a_broker_that_falls_silent(fake: FakeBroker, impatient: FetchClient) -> None:
    fake.answer(ApiKey.FETCH, fetched(batch(0, 5)), SILENCE)
    with pytest.raises((TimedOut, BrokerUnavailable), match=r"at offset 5|did not answer"):
        offsets(impatient, 0, 10)


def test_bytes_that_are_no_answer(fake: FakeBroker, client: FetchClient) -> None:
    fake.answer(ApiKey.FETCH, b"\0\0\0\x08\0\0\0\x07\xff\xff\xff\xff")
    with pytest.raises(TidelogError, match="invalid response"):
        offsets(client, 0, 10)


@pytest.mark.parametrize("include_headers", [False, True])
def test_a_broken_batch_is_named_and_what_is_before_it_is_read(
    fake: FakeBroker, client: FetchClient, include_headers: bool
) -> None:
    broken = bytearray(batch(5, 5))
    broken[-1] ^= 1
    fake.answer(ApiKey.FETCH, fetched(batch(0, 5) + bytes(broken)))
    read = client.read("t", 0, 0, 10, include_headers=include_headers)
    assert len(rows_of([next(read)], "t", 0)) == 5
    with pytest.raises(BrokenBatch, match=r"t\[0\] .*offset 5 fails its checksum"):
        next(read)


def test_a_batch_whose_records_make_no_sense_is_named(fake: FakeBroker, client: FetchClient) -> None:
    lying = bytearray(batch(5, 5))
    lying[57:61] = (4).to_bytes(4, "big")
    fake.answer(ApiKey.FETCH, fetched(batch(0, 5) + bytes(lying)))
    trusting = FetchClient(fake.bootstrap_servers, settings={**PATIENT, "check.crcs": "false"})
    with trusting, pytest.raises(BrokenBatch, match=r"t\[0\] at offset 5: 4 records end at byte"):
        offsets(trusting, 0, 10)


@pytest.mark.parametrize("records", [b"\0" * 80, batch(0, 5)[:-1], batch(0, 3)])
def test_records_that_do_not_lead_on(fake: FakeBroker, client: FetchClient, records: bytes) -> None:
    fake.answer(ApiKey.FETCH, fetched(records))
    with pytest.raises(BrokenBatch, match=r"t\[0\].* 3"):
        offsets(client, 3, 10)


def test_messages_of_old_formats_are_left_to_librdkafka(
    fake: FakeBroker, client: FetchClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = bytearray(batch(5, 5))
    old[16] = 1
    fake.answer(ApiKey.FETCH, fetched(batch(0, 5)), fetched(bytes(old)))
    asked: list[FetchRange] = []

    class Librdkafka:
        def __init__(self, *arguments: object) -> None:
            pass

        def read(self, ranges: Sequence[FetchRange], on_loss: object) -> Iterator[Any]:
            asked.extend(ranges)
            yield from ()

    monkeypatch.setattr(librdkafka_source, "LibrdkafkaSource", Librdkafka)
    assert offsets(client, 0, 10) == [0, 1, 2, 3, 4]
    assert [(wanted.start, wanted.end) for wanted in asked] == [(5, 10)]


def test_small_batches_become_large_ones(fake: FakeBroker, client: FetchClient) -> None:
    answers = [fetched(b"".join(batch(first + each, 1) for each in range(50))) for first in range(0, 1000, 50)]
    fake.answer(ApiKey.FETCH, *answers)
    batches = list(client.read("t", 0, 0, 1000, max_rows_per_batch=400))
    assert [each.num_rows for each in batches] == [400, 400, 200]
    rows: list[Row] = rows_of(batches, "t", 0)
    assert rows == without_headers(oracle_rows(b"".join(batch(each, 1) for each in range(1000))))


def test_many_bytes_become_several_batches(fake: FakeBroker, client: FetchClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CHUNK_BYTES", 10_000)
    log = b"".join(build_batch([Record(offset, 5, None, bytes(4000))], base_offset=offset) for offset in range(9))
    fake.answer(ApiKey.FETCH, fetched(log))
    assert [each.num_rows for each in client.read("t", 0, 0, 9)] == [3, 3, 3]


# -- many ranges ------------------------------------------------------------------------------------------------------------


def many(*numbers: int, end: int = 10, topic_id: bytes = TOPIC_ID) -> list[FetchRange]:
    return [FetchRange("t", number, 0, end, topic_id, 1000, False) for number in numbers]


def answered(*parts: dict[str, Any]) -> dict[str, Any]:
    """One response with the partitions of several; ``number`` says which partition each is."""
    partitions = [part["responses"][0]["partitions"][0] | {"partition_index": number} for number, part in enumerate(parts)]
    whole = fetched()
    whole["responses"][0]["partitions"] = partitions
    return whole


def places(batches: Iterator[Any]) -> list[tuple[int, int]]:
    return [
        place
        for batch in batches
        for place in zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
    ]


def every(*numbers: int, count: int = 10) -> list[tuple[int, int]]:
    return [(number, offset) for number in numbers for offset in range(count)]


@pytest.fixture
def three(fake: FakeBroker) -> FakeBroker:
    answer = fake.metadata(1, {"t": 3})
    answer["topics"][0]["topic_id"] = TOPIC_ID
    fake.answer(ApiKey.METADATA, answer)
    return fake


def asked_partitions(fake: FakeBroker) -> list[list[tuple[int, int]]]:
    return [
        [(each.partition, each.fetch_offset) for topic in request.topics for each in topic.partitions]
        for request in fake.asked(ApiKey.FETCH)
    ]


def test_small_ranges_share_a_request_and_an_arrow_batch(three: FakeBroker, client: FetchClient) -> None:
    three.answer(ApiKey.FETCH, answered(*[fetched(batch(0, 10))] * 3))
    batches = list(client.read_ranges(many(0, 1, 2)))
    assert len(batches) == 1
    assert places(iter(batches)) == every(0, 1, 2)
    assert asked_partitions(three) == [[(0, 0), (1, 0), (2, 0)]]
    assert len(three.asked(ApiKey.METADATA)) == 1


def test_a_large_range_has_a_request_to_itself(three: FakeBroker, client: FetchClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges_reader, "OFFSETS_PER_REQUEST", 10)
    three.answer(ApiKey.FETCH, answered(fetched(batch(0, 10))), answered(fetched(), fetched(batch(0, 10))))
    assert places(client.read_ranges(many(0, 1))) == every(0, 1)
    assert asked_partitions(three) == [[(0, 0)], [(1, 0)]]


def test_what_a_response_had_no_room_for_is_asked_for_again(three: FakeBroker, client: FetchClient) -> None:
    """The second partition is cut off within its first batch, and the third is empty although there is something to read."""
    full = answered(fetched(batch(0, 10)), fetched(batch(0, 10)[:70]), fetched())
    rest = answered(fetched(), fetched(batch(0, 10)), fetched(batch(0, 10)))
    three.answer(ApiKey.FETCH, full, rest)
    assert places(client.read_ranges(many(0, 1, 2))) == every(0, 1, 2)
    assert asked_partitions(three) == [[(0, 0), (1, 0), (2, 0)], [(1, 0), (2, 0)]]


def test_a_partition_that_fails_does_not_hold_up_the_others(three: FakeBroker, client: FetchClient) -> None:
    moved = answered(fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER), fetched(batch(0, 5)), fetched(batch(0, 10)))
    three.answer(ApiKey.FETCH, moved, answered(fetched(batch(0, 10)), fetched(batch(5, 5))))
    found = places(client.read_ranges(many(0, 1, 2)))
    assert sorted(found) == every(0, 1, 2)
    assert [offset for number, offset in found if number == 1] == list(range(10))
    assert asked_partitions(three) == [[(0, 0), (1, 0), (2, 0)], [(1, 5), (0, 0)]]
    assert len(three.asked(ApiKey.METADATA)) == 2, "the error says that what was remembered is outdated"


def test_two_ranges_of_a_partition_are_never_in_one_request(three: FakeBroker, client: FetchClient) -> None:
    ranges = [*many(0, end=3), *[wanted._replace(start=7) for wanted in many(0, end=10)]]
    three.answer(ApiKey.FETCH, answered(fetched(batch(0, 10))))
    assert places(client.read_ranges(ranges)) == [(0, 0), (0, 1), (0, 2), (0, 7), (0, 8), (0, 9)]
    assert asked_partitions(three) == [[(0, 0)], [(0, 7)]]


def test_leaders_are_remembered_from_one_read_to_the_next(three: FakeBroker, client: FetchClient) -> None:
    three.answer(ApiKey.FETCH, answered(*[fetched(batch(0, 10))] * 3))
    for _ in range(3):
        assert places(client.read_ranges(many(0, 1, 2))) == every(0, 1, 2)
    assert len(three.asked(ApiKey.METADATA)) == 1


def test_a_topic_created_again_under_what_is_remembered(three: FakeBroker, client: FetchClient) -> None:
    three.answer(ApiKey.FETCH, answered(fetched(batch(0, 10))))
    assert places(client.read_ranges(many(0))) == every(0)
    three.answer(ApiKey.METADATA, metadata(three, OTHER_ID))
    three.answer(ApiKey.FETCH, answered(fetched(error=ErrorCode.UNKNOWN_TOPIC_ID)))
    with pytest.raises(TopicRecreated):
        list(client.read_ranges(many(0)))
    # Whoever asks for the new topic, or for whichever there is, gets it.
    three.answer(ApiKey.FETCH, fetched(batch(0, 10), topic_id=OTHER_ID))
    assert places(client.read_ranges(many(0, topic_id=OTHER_ID))) == every(0)
    assert offsets(client, 0, 10) == list(range(10))


def test_brokers_without_topic_ids_are_asked_which_topic_it_is_at_every_read(three: FakeBroker, client: FetchClient) -> None:
    three.versions[ApiKey.FETCH] = (4, 12)
    three.answer(ApiKey.FETCH, answered(fetched(batch(0, 10))))
    assert places(client.read_ranges(many(0))) == every(0)
    three.answer(ApiKey.METADATA, metadata(three, OTHER_ID))
    with pytest.raises(TopicRecreated):
        list(client.read_ranges(many(0)))


def test_lost_offsets_are_left_out_where_the_caller_says_so(three: FakeBroker, client: FetchClient) -> None:
    three.answer(
        ApiKey.FETCH,
        answered(fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE), fetched(batch(0, 10))),
        answered(fetched(batch(8, 2))),
    )
    three.answer(ApiKey.LIST_OFFSETS, listed(8))
    lost: list[tuple[int, int, int]] = []
    found = places(client.read_ranges(many(0, 1), lambda partition, wanted, start: lost.append((partition[1], wanted, start))))
    assert found == [*every(1), (0, 8), (0, 9)]
    assert lost == [(0, 0, 8)]
