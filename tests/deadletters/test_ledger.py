"""Marks of letters, their sum, and the intervals of offsets that it consists of."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidelog.deadletters import ledger as ledger_module
from tidelog.deadletters.ledger import DISCARDED, REPLAYED, Ledger, LedgerMark, OffsetIntervals, Place

TOPIC, ID = "orders.email.dlq", "id-1"
NUMBERS = st.integers(0, (1 << 63) - 1)
OFFSETS = st.integers(0, 40)


def new_ledger(**log_starts: int) -> Ledger:
    return Ledger(TOPIC, ID, {int(name.removeprefix("p")): start for name, start in log_starts.items()})


def mark(ledger: Ledger, partition: int, offset: int, kind: str = REPLAYED) -> None:
    ledger.replay(ledger.place(partition, offset).to_key(), LedgerMark(kind, 5).to_value())


def test_golden_bytes() -> None:
    assert Place(TOPIC, ID, 3, 17).to_key() == b'["orders.email.dlq","id-1",3,17]'
    replayed = LedgerMark(REPLAYED, 5, target="orders.email.retry.0")
    assert replayed.to_value() == b'{"as":"replayed","at":5,"to":"orders.email.retry.0"}'
    assert LedgerMark(DISCARDED, 5, reason="old").to_value() == b'{"as":"discarded","at":5,"reason":"old"}'


@given(st.text(), st.text(), NUMBERS, NUMBERS)
def test_places_come_back(topic: str, topic_id: str, partition: int, offset: int) -> None:
    place = Place(topic, topic_id, partition, offset)
    assert Place.from_key(place.to_key()) == place


@given(st.sampled_from([REPLAYED, DISCARDED]), NUMBERS, st.none() | st.text(), st.none() | st.text(max_size=100))
def test_marks_come_back(kind: str, at_ms: int, target: str | None, reason: str | None) -> None:
    assert LedgerMark.from_value(LedgerMark(kind, at_ms, target, reason).to_value()) == LedgerMark(kind, at_ms, target, reason)


def test_a_long_reason_is_cut() -> None:
    assert len(LedgerMark(DISCARDED, 5, reason="x" * 100_000).to_value()) < 2000


@given(st.none() | st.binary(), st.none() | st.binary())
def test_what_is_no_mark_changes_nothing(key: bytes | None, value: bytes | None) -> None:
    ledger = new_ledger(p0=0)
    ledger.replay(key, value)
    ledger.replay(ledger.place(0, 0).to_key(), value)
    ledger.replay(key, LedgerMark(REPLAYED, 5).to_value())
    assert not ledger.is_handled(0, 0)
    assert ledger.stale_keys() == []


def test_keys_and_values_of_other_shapes_are_none() -> None:
    for key in (b"7", b"[]", b'["t","i",0]', b'["t","i",-1,0]', b'["t","i",true,0]', b'[1,"i",0,0]', b'["t","i",0,1.5]', b"[[]]"):
        assert Place.from_key(key) is None
    for value in (b"7", b"[]", b"{}", b'{"as":"lost","at":1}', b'{"as":"replayed"}', b'{"as":"replayed","at":"1"}'):
        assert LedgerMark.from_value(value) is None
    assert LedgerMark.from_value(b'{"as":"replayed","at":1,"to":5,"reason":[]}') == LedgerMark(REPLAYED, 1)


def test_marks_add_up() -> None:
    ledger = new_ledger(p0=0, p1=0)
    mark(ledger, 0, 4)
    mark(ledger, 0, 5)
    mark(ledger, 0, 5)
    mark(ledger, 1, 5, DISCARDED)
    assert [offset for offset in range(8) if ledger.is_handled(0, offset)] == [4, 5]
    assert [offset for offset in range(8) if ledger.is_handled(1, offset)] == [5]
    assert not ledger.is_handled(2, 5)
    assert ledger.counts == {REPLAYED: 2, DISCARDED: 1}
    assert ledger.handled(0).first_missing(4) == 6


def test_the_mark_of_one_place_is_kept_whole() -> None:
    ledger = Ledger(TOPIC, ID, {0: 0}, watched=Place(TOPIC, ID, 0, 3))
    mark(ledger, 0, 2)
    assert ledger.watched_mark is None
    ledger.replay(ledger.place(0, 3).to_key(), LedgerMark(DISCARDED, 9, reason="old").to_value())
    assert ledger.watched_mark == LedgerMark(DISCARDED, 9, reason="old")


def test_marks_of_deleted_letters_and_of_another_topic_are_stale() -> None:
    ledger = new_ledger(p0=10)
    mark(ledger, 0, 9)
    mark(ledger, 0, 10)
    others = [Place(TOPIC, "id-0", 0, 12), Place("billing.email.dlq", ID, 0, 12)]
    for place in others:
        ledger.replay(place.to_key(), LedgerMark(REPLAYED, 5).to_value())
    assert not ledger.is_handled(0, 9)
    assert not ledger.is_handled(0, 12)
    assert ledger.is_handled(0, 10)
    assert ledger.stale_keys() == [place.to_key() for place in (ledger.place(0, 9), *others)]
    ledger.replay(ledger.place(0, 9).to_key(), None)
    assert ledger.stale_keys() == [place.to_key() for place in others]


def test_stale_keys_are_bounded() -> None:
    ledger = new_ledger(p0=1 << 40)
    for offset in range(ledger_module.STALE_MAX + 5):
        mark(ledger, 0, offset)
    assert len(ledger.stale_keys()) == ledger_module.STALE_MAX


def made_of(offsets: list[int]) -> OffsetIntervals:
    intervals = OffsetIntervals()
    for offset in offsets:
        intervals.add(offset)
    return intervals


@given(st.lists(OFFSETS), OFFSETS, OFFSETS)
def test_it_is_a_set(offsets: list[int], start: int, end: int) -> None:
    intervals, model = OffsetIntervals(), set[int]()
    for offset in offsets:
        assert intervals.add(offset) is (offset not in model)
        model.add(offset)
    assert {offset for offset in range(42) if offset in intervals} == model
    assert {offset for first, last in intervals for offset in range(first, last)} == model
    assert intervals.count(start, end) == len(model & set(range(start, end)))
    assert intervals.first_missing(start) == next(offset for offset in range(start, 100) if offset not in model)


@given(st.lists(OFFSETS))
def test_intervals_are_in_order_and_never_touch(offsets: list[int]) -> None:
    found = list(made_of(offsets))
    assert len(made_of(offsets)) == len(found)
    assert all(first < last for first, last in found)
    assert all(left[1] < right[0] for left, right in pairwise(found))


def test_a_run_is_one_interval() -> None:
    assert list(made_of([5, 3, 4, 9, 6, 8, 7])) == [(3, 10)]
