"""What a batch must satisfy: each refusal is a typed error that says what was wrong, and costs bounded memory."""

import contextlib
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.harness import START_MS, batch
from tidelog.log.append_check import (
    QUEUE_BATCH_RECORDS_MAX,
    AppendOrigin,
    BatchValidation,
    ValidatedBatch,
    WorkBudget,
    begin_validation,
    checked_batches,
    decoded_bytes_max,
    validate_batch,
    whole_batches_bytes,
)
from tidelog.log.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    LogError,
    MissingKey,
    RecordsRefused,
    RecordTooLarge,
    UnsupportedRecordFormat,
)
from tidelog.log.settings import LogSettings
from tidelog.records.batch import build_batch, read_records, rebuild_batch
from tidelog.records.compression import CompressionType, compress
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.header import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER_SIZE,
    BatchHeader,
    batch_crc,
    crc_is_valid,
    read_header,
)
from tidelog.records.record import Record
from tidelog.records.record_walk import REFUSED_MAX

COMPACTED = LogSettings(compact=True, delete=False)
# Where fields of the header stand.
MAGIC, ATTRIBUTES, LAST_OFFSET_DELTA, RECORD_COUNT = 16, 21, 23, 57


def check(data: bytes, settings: LogSettings | None = None) -> ValidatedBatch:
    """A client's batch."""
    return validate_batch(memoryview(data), settings or LogSettings(), START_MS)


def check_ours(data: bytes, origin: AppendOrigin = AppendOrigin.COORDINATOR) -> list[tuple[int, BatchHeader]]:
    return checked_batches(memoryview(data), origin)


def with_field(data: bytes, position: int, layout: str, value: int) -> bytes:
    """The batch with another header field and the CRC that goes with it."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, value)
    return with_crc(changed)


def with_crc(data: bytearray) -> bytes:
    struct.pack_into(">I", data, CRC_POSITION, batch_crc(data, 0, len(data)))
    return bytes(data)


def marker() -> bytes:
    ending = EndTransactionMarker(ControlType.COMMIT, 0)
    return build_end_transaction_marker(ending, producer_id=7, producer_epoch=0, timestamp=START_MS)


def test_positions_and_headers_of_several_batches() -> None:
    first, second = batch(3), batch(1, size=500)
    found = check_ours(first + second)
    assert [(position, header.record_count) for position, header in found] == [(0, 3), (len(first), 1)]


@pytest.mark.parametrize("compression", CompressionType)
def test_every_codec_is_taken_on_a_compacted_topic(compression: CompressionType) -> None:
    data = batch(20, compression=compression)
    assert check(data, COMPACTED) == ValidatedBatch(memoryview(data), read_header(data), COMPACTED)


@pytest.mark.parametrize("length", [1, 11, 16, 17, 60])
def test_a_cut_off_header_is_corrupt(length: int) -> None:
    with pytest.raises(CorruptRecord):
        check(batch()[:length])


@pytest.mark.parametrize("cut", [1, 10, 39])
def test_a_cut_off_batch_is_corrupt(cut: int) -> None:
    with pytest.raises(CorruptRecord, match=f"100 bytes, but only {100 - cut} were sent"):
        check(batch(size=100)[:-cut])


@pytest.mark.parametrize("bit", range(ATTRIBUTES_POSITION * 8, 100 * 8, 37))
def test_a_flipped_bit_under_the_crc_is_corrupt(bit: int) -> None:
    damaged = bytearray(batch(size=100))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptRecord, match="CRC"):
        check(bytes(damaged))


def test_damage_in_a_later_batch_is_found() -> None:
    good = batch(size=100)
    damaged = bytearray(good)
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecord, match="position 100"):
        check_ours(good + bytes(damaged))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", [34, 200])
def test_old_message_sets_are_named_as_such(magic: int, size: int) -> None:
    old = struct.pack(">qiIb", 0, size - 12, 0, magic).ljust(size, b"\0")
    with pytest.raises(UnsupportedRecordFormat, match=f"format {magic} is not supported"):
        check(old)


@pytest.mark.parametrize("batch_length", [-(2**31), -13, -1, 0, 48, 2**31 - 1])
def test_an_impossible_length_is_corrupt(batch_length: int) -> None:
    changed = bytearray(batch(size=100))
    struct.pack_into(">i", changed, 8, batch_length)
    with pytest.raises(CorruptRecord):
        check(bytes(changed))


def test_nothing_to_append() -> None:
    for refuse in (check, check_ours):
        with pytest.raises(InvalidRecord, match="no record batch"):
            refuse(b"")


@given(st.binary(max_size=300))
def test_garbage_is_always_a_typed_error(data: bytes) -> None:
    with pytest.raises(LogError):
        check(data)


@given(st.integers(0, 99), st.binary(min_size=1, max_size=30), st.booleans())
def test_a_damaged_batch_is_taken_or_a_typed_error(position: int, damage: bytes, fix_crc: bool) -> None:
    """Whatever a client writes into its batch, and even when it then computes the CRC."""
    changed = bytearray(batch(2, size=100))
    changed[position : position + len(damage)] = damage
    data = with_crc(changed) if fix_crc and len(changed) >= HEADER_SIZE else bytes(changed)
    for settings in (LogSettings(), COMPACTED):
        with contextlib.suppress(LogError):
            check(data, settings)


def test_the_largest_message_that_may_be() -> None:
    settings = LogSettings(message_bytes_max=200)
    check(batch(size=200), settings)
    with pytest.raises(RecordTooLarge, match=r"201 bytes is larger than max\.message\.bytes=200"):
        check(batch(size=201), settings)


def test_a_queue_takes_no_batch_that_it_could_not_look_into() -> None:
    one = Record(0, START_MS, None, b"")
    most = [one._replace(offset=offset) for offset in range(QUEUE_BATCH_RECORDS_MAX + 1)]
    data, settings = build_batch(most), LogSettings(message_bytes_max=1 << 22)
    check(data, settings)
    with pytest.raises(RecordTooLarge, match=r"20001 records is larger than a queue takes \(20000\); send smaller batches"):
        check(data, replace(settings, is_queue=True))
    check(build_batch(most[:-1]), replace(settings, is_queue=True))


def test_what_the_broker_itself_writes_is_not_bound_by_the_topics_size() -> None:
    size = LogSettings().message_bytes_max + 1
    assert len(check_ours(marker())) == len(check_ours(batch(size=size))) == 1
    assert len(check_ours(batch(size=size), AppendOrigin.REPLICATION)) == 1


@pytest.mark.parametrize(("count", "last_offset_delta"), [(0, 0), (-1, 0), (1, 1), (3, 1), (1, 2**31 - 1)])
def test_counts_must_agree(count: int, last_offset_delta: int) -> None:
    data = with_field(batch(), RECORD_COUNT, ">i", count)
    with pytest.raises(InvalidRecord, match="last offset delta"):
        check(with_field(data, LAST_OFFSET_DELTA, ">i", last_offset_delta))


def test_more_records_than_bytes_could_hold_are_refused() -> None:
    smallest = build_batch([Record(number, START_MS, None, None, ()) for number in range(3)])
    assert len(smallest) == HEADER_SIZE + 3 * 7
    check(smallest)
    for count in (4, 2**31 - 1):
        data = with_field(smallest, RECORD_COUNT, ">i", count)
        with pytest.raises(InvalidRecord, match=f"claims {count} records in 21 bytes"):
            check(with_field(data, LAST_OFFSET_DELTA, ">i", count - 1))


def test_a_follower_takes_what_compaction_left() -> None:
    """Records are missing, or all of them: the leader's batches are as they are."""
    gaps = build_batch([Record(11, START_MS, b"k", b"v")], base_offset=10, last_offset_delta=5)
    empty = build_batch([], base_offset=16, last_offset_delta=2, producer_id=3, producer_epoch=0, base_sequence=0)
    assert len(check_ours(gaps + empty, AppendOrigin.REPLICATION)) == 2
    with pytest.raises(InvalidRecord):
        check(gaps)


def test_control_batches_are_for_the_broker() -> None:
    with pytest.raises(InvalidRecord, match="control"):
        check(marker())
    assert len(check_ours(marker())) == 1


@pytest.mark.parametrize("code", [5, 6, 7])
def test_an_unknown_codec_is_refused(code: int) -> None:
    with pytest.raises((InvalidRecord, UnsupportedRecordFormat), match=f"{code}"):
        check(with_field(batch(), ATTRIBUTES, ">h", code))


def test_a_producer_needs_a_sequence_and_a_transaction_a_producer() -> None:
    with pytest.raises(InvalidRecord, match="sequence"):
        check(build_batch([Record(0, START_MS, b"k", b"v")], producer_id=5, producer_epoch=0))
    with pytest.raises(InvalidRecord, match="producer id"):
        check(build_batch([Record(0, START_MS, b"k", b"v")], transactional=True))


def test_a_client_sends_one_batch() -> None:
    for producer_id in (-1, 5):
        with pytest.raises(InvalidRecord, match="one record batch"):
            check(batch(producer_id=producer_id) + batch())


@pytest.mark.parametrize(
    ("timestamps", "is_taken"),
    [
        ([START_MS + 1000], True),
        ([START_MS + 1001], False),
        ([START_MS, START_MS + 1001], False),
        ([START_MS - 500], True),
        ([START_MS - 501], False),
        ([-1], True),
    ],
)
def test_timestamps_are_bound_by_the_brokers_clock(timestamps: list[int], is_taken: bool) -> None:
    settings = LogSettings(timestamp_before_max_ms=500, timestamp_after_max_ms=1000)
    data = batch(timestamps=timestamps)
    if is_taken:
        check(data, settings)
    else:
        with pytest.raises(InvalidTimestamp, match=r"message\.timestamp\.(before|after)\.max\.ms"):
            check(data, settings)
    # Under LogAppendTime the producer's time counts for nothing.
    check(data, LogSettings(timestamp_before_max_ms=500, timestamp_after_max_ms=1000, log_append_time=True))


def test_a_producer_cannot_claim_the_brokers_time() -> None:
    claimed = build_batch([Record(0, START_MS, b"k", b"v")], log_append_time_ms=START_MS)
    with pytest.raises(InvalidTimestamp, match="CreateTime"):
        check(claimed)


@pytest.mark.parametrize("compression", CompressionType)
def test_compacted_topics_need_keys(compression: CompressionType) -> None:
    records = [Record(0, START_MS, b"k", b"v"), Record(1, START_MS, None, b"v")]
    data = build_batch(records, compression=compression)
    check(data)
    with pytest.raises(MissingKey, match=r"^record 1 of the batch has no key") as refused:
        check(data, COMPACTED)
    assert [index for index, _ in refused.value.record_errors] == [1]


@pytest.mark.parametrize("compression", CompressionType)
def test_the_producer_is_told_which_timestamps_were_refused(compression: CompressionType) -> None:
    timestamps = [START_MS, START_MS + 5000, START_MS - 9000, START_MS + 1]
    data = build_batch([Record(offset, time, b"k", b"v") for offset, time in enumerate(timestamps)], compression=compression)
    with pytest.raises(InvalidTimestamp) as refused:
        check(data, LogSettings(timestamp_before_max_ms=8000, timestamp_after_max_ms=1000))
    assert [index for index, _ in refused.value.record_errors] == [1, 2]


@pytest.mark.parametrize("settings", [COMPACTED, LogSettings(timestamp_after_max_ms=-1)])
def test_refused_records_are_named_unless_they_are_too_many(settings: LogSettings) -> None:
    for count in (3, REFUSED_MAX, REFUSED_MAX + 1):
        data = build_batch([Record(offset, START_MS, None, b"v") for offset in range(count)])
        with pytest.raises(RecordsRefused, match=f"record 0 .*, and {count - 1} more") as refused:
            check(data, settings)
        assert [index for index, _ in refused.value.record_errors] == list(range(count if count <= REFUSED_MAX else 0))


def test_the_first_refused_record_decides_about_the_error() -> None:
    settings = LogSettings(compact=True, timestamp_after_max_ms=1000)
    late, keyless = Record(0, START_MS + 1001, b"k", b"v"), Record(1, START_MS, None, b"v")
    with pytest.raises(InvalidTimestamp, match="record 0"):
        check(build_batch([late, keyless]), settings)
    with pytest.raises(MissingKey, match="record 0"):
        check(build_batch([keyless._replace(offset=0), late._replace(offset=1)]), settings)


# -- records -----------------------------------------------------------------------------------------------------------------

GOOD = build_batch([Record(number, START_MS + number, b"key", b"value" * 10) for number in range(8)])
GOOD_BODY = GOOD[HEADER_SIZE:]


def with_body(body: bytes, compression: CompressionType = CompressionType.NONE, data: bytes = GOOD) -> bytes:
    """A batch with another body, and the length, codec and CRC that go with it."""
    return rebuild_batch(read_header(data)._replace(attributes=int(compression)), body)


@pytest.mark.parametrize("compression", CompressionType)
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff" * len(GOOD_BODY), "more than 32 bits"),
        (bytes(len(GOOD_BODY)), "cannot be read"),
        (GOOD_BODY[: len(GOOD_BODY) // 2], "cannot be read"),
        (GOOD_BODY + GOOD_BODY[:60], "more follow"),
        # The second record says that it is the third.
        (GOOD_BODY[:63] + b"\x04" + GOOD_BODY[64:], "record 1 has offset delta"),
    ],
)
def test_what_is_not_the_claimed_records_is_refused(compression: CompressionType, body: bytes, reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason):
        check(with_body(compress(compression, body), compression))


@pytest.mark.parametrize("compression", [kind for kind in CompressionType if kind])
def test_what_is_not_compressed_as_the_header_says_is_refused(compression: CompressionType) -> None:
    with pytest.raises(InvalidRecord, match=compression.name.lower()):
        check(with_body(GOOD_BODY, compression))


@pytest.mark.parametrize("compression", CompressionType)
@pytest.mark.parametrize("count", [1, 7, 9, 500, 2**31 - 1])
def test_a_claim_must_match_what_is_there(compression: CompressionType, count: int) -> None:
    data = with_body(compress(compression, GOOD_BODY), compression)
    header = read_header(data)._replace(record_count=count, last_offset_delta=count - 1)
    with pytest.raises(InvalidRecord, match=r"claims|cut off|more follow"):
        check(rebuild_batch(header, data[HEADER_SIZE:]))


def test_a_record_far_ahead_of_its_header_is_refused() -> None:
    ten_years_ms = 10 * 365 * 86_400_000
    records = [Record(0, START_MS, b"k", b"v"), Record(1, START_MS + ten_years_ms, b"k", b"v")]
    with pytest.raises(InvalidTimestamp, match=r"record 1 .*after\.max\.ms=3600000"):
        check(build_batch(records, max_timestamp=START_MS))


@pytest.mark.parametrize("claimed", [-1, START_MS - 1, START_MS, START_MS + 499, START_MS + 10**9])
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZSTD])
def test_the_maximum_timestamp_is_that_of_the_records(claimed: int, compression: CompressionType) -> None:
    """Lookups by time rely on it. Like Kafka, the broker corrects it."""
    records = [Record(number, START_MS + number // 2, b"k", b"v") for number in range(1000)]
    validated = check(build_batch(records, max_timestamp=claimed, compression=compression))
    assert read_header(validated.view) == validated.header
    assert validated.header.max_timestamp == START_MS + 499
    assert validated.view == build_batch(records, compression=compression)


@pytest.mark.parametrize("target", CompressionType)
@pytest.mark.parametrize("source", CompressionType)
def test_a_topic_chooses_its_codec(source: CompressionType, target: CompressionType) -> None:
    records = [Record(number, START_MS + number, b"key", b"value" * 10, (("h", b"1"),)) for number in range(100)]
    data = build_batch(records, compression=source, producer_id=3, producer_epoch=1, base_sequence=5, transactional=True)
    validated = check(data, LogSettings(compression=target))
    header = read_header(validated.view)
    assert crc_is_valid(validated.view, 0, header)
    assert header == validated.header
    assert (header.compression, header.is_transactional, header.base_sequence) == (target, True, 5)
    assert list(read_records(validated.view, 0, header, size_max=1 << 20, count_max=100)) == records
    assert source != target or validated.view == data


def test_levels_and_what_grows_too_large_by_the_topics_codec() -> None:
    data = build_batch([Record(0, START_MS, b"k", b"abcdefgh" * 4000)], compression=CompressionType.ZSTD)
    sizes = [
        len(check(data, LogSettings(compression=CompressionType.GZIP, compression_level=level)).view) for level in (1, 9, -1)
    ]
    assert sizes[0] > sizes[1]
    with pytest.raises(RecordTooLarge, match=r"compression\.type"):
        check(data, LogSettings(compression=CompressionType.NONE, message_bytes_max=1000))


def test_a_validation_goes_on_where_it_stopped() -> None:
    """In steps of a few records, with the codecs' work done elsewhere, and with a buffer that is overwritten."""
    records = [Record(number, START_MS, b"k", b"v" * (number % 50)) for number in range(2000)]
    settings = LogSettings(compression=CompressionType.GZIP)
    expected = check(build_batch(records, compression=CompressionType.LZ4), settings)
    buffer = bytearray(build_batch(records, compression=CompressionType.LZ4))
    validation = begin_validation(memoryview(buffer), settings, START_MS)
    assert isinstance(validation, BatchValidation)
    validation.advance(WorkBudget(100, 100))
    validation.keep()
    buffer[:] = bytes(len(buffer))
    steps, works = 0, 0
    while not validation.is_complete:
        work = validation.work
        if work is not None:
            works += 1
            validation.finish_work(work(), None)
        else:
            steps += 1
            validation.advance(WorkBudget(100, 0))
    assert validation.result == expected
    assert works == 2
    assert steps >= 2000 // 400


def bomb(compression: CompressionType, compress: Callable[[bytes], object]) -> bytes:
    """A batch of a few KB whose records would fill gigabytes: compressed zeros, compressed again and again into one stream."""
    part = bytes(compress(bytes(64 << 20)))  # type: ignore[call-overload]  # cramjam's Buffer speaks the buffer protocol
    body = part * (4 << 30 >> 26)
    head = bytearray(batch(compression=compression)[:HEADER_SIZE])
    struct.pack_into(">i", head, 8, HEADER_SIZE - 12 + len(body))
    return with_crc(head + body)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_decompression_bomb_is_a_typed_error_in_bounded_memory(kind: str) -> None:
    compression, compress = {
        "gzip": (CompressionType.GZIP, cramjam.gzip.compress),
        "zstd": (CompressionType.ZSTD, cramjam.zstd.compress),
    }[kind]
    data = bomb(compression, compress)
    settings = LogSettings(compact=True, message_bytes_max=max(1 << 18, len(data)))
    tracemalloc.start()
    try:
        with pytest.raises(RecordTooLarge, match="send smaller batches"):
            check(data, settings)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * decoded_bytes_max(settings)


def test_only_whole_batches_count() -> None:
    """A fetch may cut its last batch anywhere, and what follows need not be a batch at all."""
    one = batch()
    for rest in (b"", one[:1], one[:11], one[:12], one[:-1]):
        assert whole_batches_bytes(memoryview(one + one + rest)) == 2 * len(one), len(rest)
    large = batch(1, size=300)
    assert whole_batches_bytes(memoryview(large)) == 300
    negative = bytes(8) + (-13).to_bytes(4, "big", signed=True)
    assert whole_batches_bytes(memoryview(one + negative + one)) == len(one)
    # Twelve bytes that claim to be followed by none are a batch of the smallest length.
    assert whole_batches_bytes(memoryview(bytes(12))) == 12


def test_a_producer_with_the_first_id_is_a_producer() -> None:
    twice = batch(producer_id=0) * 2
    with pytest.raises(InvalidRecord):
        check(twice)
