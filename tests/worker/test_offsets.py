"""Offsets: nothing is committed above what is unfinished, and what is finished above it is not repeated after a restart. Run
lengths come back as they were encoded, the lowest first within their bytes, and foreign metadata says nothing."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.worker.offsets import PREFIX, PartitionOffsets, Run, decode_runs, encode_runs


@given(st.data())
def test_the_position_is_the_first_that_is_not_finished(data: st.DataObject) -> None:
    """Against a model that keeps every offset. Offsets have gaps, are begun in pieces and finished in any order."""
    offsets = PartitionOffsets()
    begun: list[int] = []
    finished: set[int] = set()
    last_position = -1
    for _ in range(data.draw(st.integers(1, 12))):
        gaps = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
        more: list[int] = []
        for gap in gaps:
            more.append((more or begun or [-1])[-1] + gap)
        offsets.begin(more)
        begun += more
        open_ones = [offset for offset in begun if offset not in finished]
        some = data.draw(st.lists(st.sampled_from(open_ones), unique=True))
        offsets.finish(some)
        finished.update(some)
        unfinished = [offset for offset in begun if offset not in finished]
        position = offsets.position
        assert position == (unfinished[0] if unfinished else begun[-1] + 1)
        assert position >= last_position
        last_position = position
        covered = {offset for start, end in offsets.finished_runs() for offset in range(start, end)}
        assert covered & set(begun) == {offset for offset in finished if offset > position}
        assert not covered & set(unfinished)


@given(st.data())
def test_a_restart_repeats_only_what_was_not_finished(data: st.DataObject) -> None:
    """Runs of a worker, each ended at any moment; what a run finished and committed is never handled again."""
    count = 40
    handled: list[int] = []
    committed: int | None = None
    metadata = ""
    durable: set[int] = set()
    for _ in range(data.draw(st.integers(1, 5))):
        runs = [] if committed is None else decode_runs(committed, metadata)
        offsets = PartitionOffsets(committed, runs)
        waiting: list[int] = []
        position = committed or 0
        while position < count and data.draw(st.booleans()):
            skip = offsets.was_finished(position)
            offsets.begin([position])
            if skip:
                assert position in durable
                offsets.finish([position])
            else:
                assert position not in durable
                waiting.append(position)
            position += 1
        done = data.draw(st.lists(st.sampled_from(waiting), unique=True)) if waiting else []
        for offset in done:
            offsets.finish([offset])
            handled.append(offset)
        if offsets.position is not None:
            committed = offsets.position
            metadata = encode_runs(committed, offsets.finished_runs(), 4096)
            durable.update(done)
        assert durable == set(handled)
        restored = {offset for start, end in decode_runs(committed or 0, metadata) for offset in range(start, end)}
        assert {offset for offset in durable if offset >= (committed or 0)} == restored & durable
    assert len(handled) == len(set(handled))


def test_a_log_that_was_made_again_skips_nothing() -> None:
    offsets = PartitionOffsets(1000, [(1005, 1010)])
    assert not offsets.was_finished(0)
    assert not offsets.was_finished(1006)


def test_nothing_begun_commits_nothing_new() -> None:
    assert PartitionOffsets().position is None
    assert PartitionOffsets(7).position == 7
    assert PartitionOffsets(7, [(9, 12)]).finished_runs() == [(9, 12)]


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[Run]]:
    committed = draw(st.integers(0, 1 << 40))
    end = committed
    found = []
    # Runs of several sizes: a small one may fit where a large one before it did not.
    number = st.integers(1, 100) | st.integers(1, 1 << 40)
    for gap, length in draw(st.lists(st.tuples(number, number), max_size=60)):
        found.append((end + gap, end + gap + length))
        end += gap + length
    return committed, found


@given(runs())
def test_what_is_encoded_comes_back(case: tuple[int, list[Run]]) -> None:
    committed, found = case
    assert decode_runs(committed, encode_runs(committed, found, 4096)) == found


@given(runs(), st.integers(0, 400))
def test_the_highest_are_dropped_when_there_is_no_room(case: tuple[int, list[Run]], bytes_max: int) -> None:
    committed, found = case
    metadata = encode_runs(committed, found, bytes_max)
    assert len(metadata) <= bytes_max
    kept = decode_runs(committed, metadata)
    assert kept == found[: len(kept)]
    if len(kept) < len(found):
        # The next one would not have fit.
        assert len(encode_runs(committed, found[: len(kept) + 1], 1 << 20)) > bytes_max


def test_a_run_above_one_that_did_not_fit_is_not_kept() -> None:
    far = 1 << 40
    runs = [(far, 2 * far), (2 * far + 5, 2 * far + 6)]
    assert len(encode_runs(0, runs[1:], 100)) < len(encode_runs(0, runs[:1], 100))
    assert encode_runs(0, runs, len(encode_runs(0, runs[1:], 100))) == ""


def test_the_format_is_fixed() -> None:
    assert encode_runs(10, [(11, 12), (300, 301)], 100) == "tidelog:1:AQGgAgE="
    assert decode_runs(10, "tidelog:1:AQGgAgE=") == [(11, 12), (300, 301)]


@given(st.text(max_size=40))
def test_anything_else_says_nothing_or_makes_sense(text: str) -> None:
    for metadata in (text, PREFIX + text):
        found = decode_runs(5, metadata)
        assert all(5 < start < end for start, end in found)


@pytest.mark.parametrize("content", [b"\x01", b"\x00\x01", b"\x01\x00", b"\x80", b"\xff" * 10 + b"\x01\x01"])
def test_damage_says_nothing(content: bytes) -> None:
    assert decode_runs(5, PREFIX + base64.b64encode(content).decode()) == []
    assert decode_runs(5, None) == []
