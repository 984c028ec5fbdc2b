"""Space-saving against exact counts: never too low, never too high by more than the error, no hot key missed."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.hot_keys import HotKeys, SpaceSaving

KEPT = 8


@given(st.lists(st.integers(min_value=0, max_value=30), max_size=400))
def test_counts_are_within_their_error_and_no_hot_key_is_missed(numbers: list[int]) -> None:
    counted = SpaceSaving(KEPT)
    exact = Counter(b"%d" % number for number in numbers)
    for number in numbers:
        counted.add(b"%d" % number)
    found = {key: (messages, error) for key, messages, error in counted.top(KEPT)}
    assert len(found) <= KEPT
    for key, (messages, error) in found.items():
        assert messages - error <= exact[key] <= messages
    assert [key for key, messages in exact.items() if messages > len(numbers) / KEPT and key not in found] == []
    assert counted.total == len(numbers)


def test_few_keys_are_counted_exactly() -> None:
    counted = SpaceSaving(KEPT)
    for key in [b"a"] * 5 + [b"b"] * 3 + [b"c"]:
        counted.add(key)
    assert counted.top(2) == [(b"a", 5, 0), (b"b", 3, 0)]


def test_the_report_of_a_sample() -> None:
    sample = HotKeys(range(4))
    for number in range(90):
        sample.add(1, b"celebrity", 100)
        sample.add(number % 4, b"user-%d" % number, 10)
    for _ in range(20):
        sample.add(0, None, 1)
    assert sample.messages == 200
    assert sample.without_key == 20
    first = sample.keys(3)[0]
    assert (first.key, first.messages, first.error, first.share) == (b"celebrity", 90, 0, 0.45)
    shares = sample.partitions()
    assert [share.partition for share in shares] == [0, 1, 2, 3]
    assert sum(share.messages for share in shares) == 200
    hottest = max(shares, key=lambda share: share.messages)
    assert hottest.partition == 1
    assert hottest.skew == hottest.messages / 50
    assert hottest.bytes == 90 * 100 + 23 * 10


def test_an_empty_sample_has_no_keys_and_no_skew() -> None:
    sample = HotKeys(range(2))
    assert sample.keys(5) == []
    assert [(share.messages, share.share, share.skew) for share in sample.partitions()] == [(0, 0.0, 0.0)] * 2
