"""Which delayed records are due when: never early, hardly late, and with little memory."""

import tracemalloc
from random import Random

from tidelog.queues.delays import HORIZON_MS, LOOK_AHEAD_MS, STRETCH_OFFSETS_MAX, TAKEN_MAX, DelayWheel
from tidelog.queues.lock_wheel import BUCKET_MS

NOW_MS = 1_700_000_000_000
RECORDS = 100_000
BYTES_MAX = 24
TRIES = 5


def test_every_record_comes_once_not_early_and_at_most_a_bucket_late() -> None:
    random = Random(7)
    wheel = DelayWheel()
    due = {offset: NOW_MS + random.randrange(1, HORIZON_MS) for offset in range(2_000)}
    for offset, due_ms in due.items():
        wheel.add(due_ms, offset, NOW_MS)
    found: set[int] = set()
    while (now_ms := wheel.next_ms()) is not None:
        for first, last in wheel.take_due(now_ms):
            for offset in range(first, last + 1):
                assert offset not in found
                assert 0 <= now_ms - due[offset] < BUCKET_MS
                found.add(offset)
    assert found == due.keys()
    assert wheel.entry_count == 0


def test_what_is_due_soon_takes_at_most_24_bytes_and_what_is_due_later_takes_none() -> None:
    random = Random(7)
    times = [NOW_MS + random.randrange(1, HORIZON_MS) for _ in range(RECORDS)]
    # Threads of other tests in this process can only add to what is seen, so the least counts.
    soon, later = (min(sizes) for sizes in zip(*(sizes_of(times) for _ in range(TRIES)), strict=True))
    assert soon / RECORDS <= BYTES_MAX
    assert later / RECORDS <= 1, "a stretch of a thousand records has one entry"


def sizes_of(times: list[int]) -> tuple[int, int]:
    """Bytes for records that are due at these times, and for as many a month later."""
    wheel = DelayWheel()
    tracemalloc.start()
    try:
        for offset, due_ms in enumerate(times):
            wheel.add(due_ms, offset, NOW_MS)
        soon, _ = tracemalloc.get_traced_memory()
        for offset, due_ms in enumerate(times):
            wheel.add(due_ms + 30 * 24 * 3_600_000, RECORDS + offset, NOW_MS)
        both, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert wheel.stretch_count == -(-RECORDS // STRETCH_OFFSETS_MAX)
    return soon, both - soon


def test_what_is_due_later_is_looked_at_again_a_minute_before_one_stretch_at_a_time() -> None:
    wheel = DelayWheel()
    first_ms = NOW_MS + HORIZON_MS + 10_000
    for offset in range(3 * STRETCH_OFFSETS_MAX):
        wheel.add(first_ms + offset % 7, offset, NOW_MS)
    assert wheel.next_ms() == first_ms - LOOK_AHEAD_MS
    assert list(wheel.take_due(first_ms - LOOK_AHEAD_MS - 1)) == []
    stretches = [list(wheel.take_due(first_ms - LOOK_AHEAD_MS)) for _ in range(4)]
    assert [len(each) for each in stretches] == [1, 1, 1, 0]
    assert sorted(each[0] for each in stretches[:3]) == [
        (number * STRETCH_OFFSETS_MAX, (number + 1) * STRETCH_OFFSETS_MAX - 1) for number in range(3)
    ]


def test_what_is_due_at_once_is_taken_in_turns() -> None:
    wheel = DelayWheel()
    count = 2 * TAKEN_MAX + 7
    for number in range(count):
        wheel.add(NOW_MS + 1_000, 2 * number, NOW_MS)
    taken = wheel.take_due(NOW_MS + 1_000)
    assert len(taken) == TAKEN_MAX
    wheel.add(NOW_MS + 1_000, 1, NOW_MS)
    while wheel.next_ms() is not None:
        assert wheel.next_ms() == 0, "there is more at once"
        more = wheel.take_due(NOW_MS + 1_000)
        assert len(more) <= TAKEN_MAX
        taken += more
    assert sorted(taken) == sorted([(1, 1), *[(2 * number, 2 * number) for number in range(count)]])
