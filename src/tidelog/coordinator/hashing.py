"""Which shard is responsible for a group or a transactional id: Kafka's choice, so that its directories open here."""

from functools import lru_cache

# Every request of every member asks for its group's shard, and a character takes 0.2 us to hash. Long keys are hashed each time:
# so the cache holds a few megabytes at most, whatever clients send.
CACHED_KEYS_MAX = 10_000
CACHED_KEY_LENGTH_MAX = 100


def partition_for(key: str, partitions: int) -> int:
    """Java's ``String.hashCode`` without its sign, modulo the number of partitions."""
    return (_cached_hash(key) if len(key) <= CACHED_KEY_LENGTH_MAX else _positive_hash(key)) % partitions


def _positive_hash(key: str) -> int:
    value = 0
    data = key.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    if value == 0x80000000:
        return 0  # The one number that has no positive twin in 32 bits.
    return value if value < 0x80000000 else 0x100000000 - value


_cached_hash = lru_cache(CACHED_KEYS_MAX)(_positive_hash)
