"""Kafka's hash of a key: 32-bit murmur2 with the seed 0x9747b28c, as Java clients partition by."""

import struct

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash as an unsigned number of 32 bits."""
    length = len(data)
    hashed = _SEED ^ length
    whole = length & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed = (word * _M) & _MASK
        mixed ^= mixed >> 24
        hashed = ((hashed * _M) ^ (mixed * _M)) & _MASK
    tail = data[whole:]
    if tail:
        hashed = ((hashed ^ int.from_bytes(tail, "little")) * _M) & _MASK
    hashed ^= hashed >> 13
    hashed = (hashed * _M) & _MASK
    return hashed ^ (hashed >> 15)


def murmur2_partition(key: bytes, partition_count: int) -> int:
    """Where a Java client, librdkafka's murmur2 and our producer put ``key``."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
