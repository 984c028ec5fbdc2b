"""Spread keys: on different partitions, the same for every producer, and merged by the reading side."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.producing import new_topic, read
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.errors import InvalidArgument
from tidelog.client.partitioners import murmur2_partition
from tidelog.client.producer import Producer
from tidelog.client.spread import merge, spread, spread_keys, unspread


@given(st.text(max_size=20), st.integers(min_value=1, max_value=8))
def test_a_spread_key_comes_back(key: str, n: int) -> None:
    assert unspread(spread(key, n)) == key
    assert unspread(spread(key.encode(), n)) == key.encode()
    assert spread(key, n) in spread_keys(key, n)
    assert [part.encode() for part in spread_keys(key, n)] == spread_keys(key.encode(), n)


@given(st.binary(max_size=20), st.integers(min_value=1, max_value=40), st.data())
def test_with_the_partition_count_every_suffix_has_a_partition_of_its_own(
    key: bytes, partitions: int, data: st.DataObject
) -> None:
    n = data.draw(st.integers(min_value=1, max_value=partitions))
    placed = [murmur2_partition(part, partitions) for part in spread_keys(key, n, partitions=partitions)]
    assert len(set(placed)) == n


def test_an_id_always_gives_the_same_suffix() -> None:
    ids = [f"order-{number}" for number in range(1000)]
    first = [spread("celebrity", 8, by=message_id) for message_id in ids]
    assert first == [spread("celebrity", 8, by=message_id.encode()) for message_id in ids]
    counted = Counter(first)
    assert len(counted) == 8
    assert min(counted.values()) > 80


def test_without_an_id_it_is_random() -> None:
    assert len({spread("celebrity", 8) for _ in range(500)}) == 8


def test_keys_that_were_not_spread_stay() -> None:
    assert [unspread(key) for key in ("plain", "a#b", "a#", "#", "a#1x")] == ["plain", "a#b", "a#", "#", "a#1x"]
    assert unspread("a#b#3") == "a#b"
    assert unspread(b"room#\xb2") == b"room#\xb2"


def test_partial_results_are_put_together() -> None:
    partials = {"celebrity#0": 3, "celebrity#1": 4, "other": 1}
    assert merge(partials, lambda one, other: one + other) == {"celebrity": 7, "other": 1}
    assert merge([("a#0", {1}), ("a#1", {2})], lambda one, other: one | other) == {"a": {1, 2}}


@pytest.mark.parametrize("n", [0, -1, 9])
def test_a_number_of_suffixes_that_makes_no_sense_is_refused(n: int) -> None:
    with pytest.raises(InvalidArgument, match="over 1 to 8 partitions"):
        spread("key", n, partitions=8)


def test_a_hot_key_is_spread_counted_where_it_is_read_and_merged(kafka: ToolkitBroker) -> None:
    """One counter per partition, as one consumer each would have, that drops second copies by itself; then the merge."""
    topic = new_topic(kafka, partitions=4)
    sent = [(f"order-{number}", "celebrity" if number % 4 else f"user-{number % 8}") for number in range(400)]
    with Producer(kafka.bootstrap) as producer:
        for message_id, key in [*sent, *sent[:50]]:
            hot = key == "celebrity"
            producer.send(topic, message_id, key=spread(key, 4, by=message_id, partitions=4) if hot else key)
    messages = read(kafka, topic, 450)
    assert {message.partition() for message in messages if unspread(message.key()) == b"celebrity"} == {0, 1, 2, 3}

    partials: list[tuple[bytes, int]] = []
    for partition in range(4):
        seen: set[bytes] = set()
        counts: Counter[bytes] = Counter()
        for message in messages:
            if message.partition() == partition and message.value() not in seen:
                seen.add(message.value())
                counts[message.key()] += 1
        partials += counts.items()
    merged = merge(partials, lambda one, other: one + other)
    assert merged == {key.encode(): count for key, count in Counter(key for _, key in sent).items()}
