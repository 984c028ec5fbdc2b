"""The shard of a key is Kafka's: these were computed by Java."""

import pytest

from tidelog.coordinator import runtime
from tidelog.coordinator.runtime import partition_for


@pytest.mark.parametrize(
    ("key", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("consumer-group", -1738392088),
        ("polygenelubricants", -(2**31)),
        ("grüße", 98768023),
    ],
)
def test_partition_for(key: str, java_hash: int) -> None:
    expected = 0 if java_hash == -(2**31) else abs(java_hash)
    for partitions in (1, 7, 50):
        assert partition_for(key, partitions) == expected % partitions


def test_characters_beyond_the_basic_plane_count_as_two() -> None:
    value = 0
    for unit in (0xD83D, 0xDE00):
        value = 31 * value + unit
    assert partition_for("\N{GRINNING FACE}", 50) == value % 50


def test_long_keys_are_hashed_without_being_kept() -> None:
    runtime._cached_hash.cache_clear()
    key = "k" * (runtime.CACHED_KEY_LENGTH_MAX + 1)
    value = 0
    for character in key:
        value = (31 * value + ord(character)) % 2**32
    assert partition_for(key, 50) == (value if value < 2**31 else 2**32 - value) % 50
    assert runtime._cached_hash.cache_info().currsize == 0
    partition_for("short and not asked for before", 50)
    assert runtime._cached_hash.cache_info().currsize == 1
