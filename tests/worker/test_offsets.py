"""Offsets: nothing is committed above what is unfinished, and what is finished above it is not repeated after a restart."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.worker.offsets import PartitionOffsets
from tidelog.worker.run_lengths import decode, encode


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
        runs = [] if committed is None else decode(committed, metadata)
        offsets = PartitionOffsets(committed, runs)
        waiting: list[int] = []
        position = committed or 0
        while position < count and data.draw(st.booleans()):
            skip = offsets.is_finished_before(position)
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
            metadata = encode(committed, offsets.finished_runs(), 4096)
            durable.update(done)
        assert durable == set(handled)
        restored = {offset for start, end in decode(committed or 0, metadata) for offset in range(start, end)}
        assert {offset for offset in durable if offset >= (committed or 0)} == restored & durable
    assert len(handled) == len(set(handled))


def test_a_log_that_was_made_anew_skips_nothing() -> None:
    offsets = PartitionOffsets(1000, [(1005, 1010)])
    assert not offsets.is_finished_before(0)
    assert not offsets.is_finished_before(1006)


def test_nothing_begun_commits_nothing_new() -> None:
    assert PartitionOffsets().position is None
    assert PartitionOffsets(7).position == 7
    assert PartitionOffsets(7, [(9, 12)]).finished_runs() == [(9, 12)]
