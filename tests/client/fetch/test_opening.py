"""Which batches of a response a reader sees: transactions, markers, ends that are cut off, and what is broken."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.fetch import opening
from tidelog.client.fetch.opening import opened_batches, whole_batches
from tidelog.records.batch import build_batch
from tidelog.records.compression import CompressionType
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.errors import CorruptBatch, DecompressionLimitExceeded
from tidelog.records.record import Record

Aborted = Sequence[tuple[int, int]] | None


def data(base_offset: int, producer_id: int = -1, count: int = 2, *, transactional: bool = False) -> bytes:
    records = [Record(base_offset + index, 0, None, b"%d" % producer_id) for index in range(count)]
    return build_batch(records, base_offset=base_offset, producer_id=producer_id, producer_epoch=0, transactional=transactional)


def marker(base_offset: int, producer_id: int, kind: ControlType) -> bytes:
    end = EndTransactionMarker(kind, 0)
    return build_end_transaction_marker(end, producer_id=producer_id, producer_epoch=0, timestamp=0, base_offset=base_offset)


def seen(log: bytes, aborted: Aborted = None, start: int = 0, end: int = 1 << 62, *, checks_crcs: bool = True) -> list[int]:
    """The base offsets of the batches."""
    view = memoryview(log)
    opened = opened_batches(view, whole_batches(view), aborted, start, end, checks_crcs=checks_crcs)
    return [batch.header.base_offset for batch in opened]


def test_an_aborted_transaction_is_left_out_up_to_its_marker() -> None:
    log = data(0, 1, transactional=True) + data(2, 2, transactional=True) + data(4) + marker(6, 1, ControlType.ABORT)
    log += data(7, 1, transactional=True) + marker(9, 1, ControlType.COMMIT) + marker(10, 2, ControlType.COMMIT)
    assert seen(log, [(1, 0)]) == [2, 4, 7]
    assert seen(log, None) == [0, 2, 4, 7]
    assert seen(log, []) == [0, 2, 4, 7]


def test_two_aborted_transactions_of_one_producer() -> None:
    log = data(0, 1, transactional=True) + marker(2, 1, ControlType.ABORT) + data(3, 1, transactional=True)
    log += marker(5, 1, ControlType.COMMIT) + data(6, 1, transactional=True) + marker(8, 1, ControlType.ABORT)
    assert seen(log, [(1, 6), (1, 0)]) == [3]


def test_messages_of_the_same_producer_outside_of_transactions_are_seen() -> None:
    assert seen(data(0, 1, transactional=True) + data(2, 1), [(1, 0)]) == [2]


def test_an_aborted_transaction_that_began_before_the_response() -> None:
    log = data(10, 1, transactional=True) + marker(12, 1, ControlType.ABORT) + data(13, 1, transactional=True)
    assert seen(log, [(1, 3)]) == [13]


producers = st.integers(1, 3)
steps = st.lists(st.tuples(producers, st.sampled_from(["send", "plain", "commit", "abort"])), max_size=30)


@given(steps)
def test_whatever_producers_do(moves: list[tuple[int, str]]) -> None:
    """Against what each batch became in the end; open transactions lie past the last stable offset and are not sent."""
    log, offset = b"", 0
    open_batches: dict[int, list[int]] = {}
    visible: list[int] = []
    aborted: list[tuple[int, int]] = []
    for producer, move in [*moves, *[(producer, "commit") for producer in (1, 2, 3)]]:
        if move in ("send", "plain"):
            is_open = move == "send"
            log += data(offset, producer, transactional=is_open)
            (open_batches.setdefault(producer, []) if is_open else visible).append(offset)
            offset += 2
        elif batches := open_batches.pop(producer, []):
            log += marker(offset, producer, ControlType.COMMIT if move == "commit" else ControlType.ABORT)
            offset += 1
            if move == "commit":
                visible += batches
            else:
                aborted.append((producer, batches[0]))
    assert seen(log, aborted) == sorted(visible)


def test_a_batch_that_is_cut_off_is_not_there_yet() -> None:
    log = data(0) + data(2)
    for size in range(len(data(0)), len(log)):
        assert seen(log[:size]) == [0]


def test_only_the_range() -> None:
    log = data(0) + data(2) + data(4) + data(6)
    assert seen(log, None, 3, 5) == [2, 4]
    assert seen(log, None, 2, 4) == [2]


def test_batches_that_compaction_emptied_are_nothing() -> None:
    assert seen(data(0) + build_batch([], base_offset=2, last_offset_delta=5) + data(8)) == [0, 8]


def test_the_checksum() -> None:
    log = bytearray(data(0) + data(2))
    log[-1] ^= 1
    with pytest.raises(CorruptBatch, match="offset 2 fails its checksum"):
        seen(bytes(log))
    assert seen(bytes(log), checks_crcs=False) == [0, 2]


@pytest.mark.parametrize("compression", [kind for kind in CompressionType if kind is not CompressionType.NONE])
def test_a_bomb_is_not_opened(compression: CompressionType, monkeypatch: pytest.MonkeyPatch) -> None:
    log = build_batch([Record(0, 0, None, bytes(100_000))], compression=compression)
    assert seen(log) == [0]
    monkeypatch.setattr(opening, "DECOMPRESSED_BYTES_MAX", 100_000)
    with pytest.raises(DecompressionLimitExceeded):
        seen(log)
