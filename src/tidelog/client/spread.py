"""Spreads a hot key over several partitions: the key gets a suffix, ``celebrity#0`` to ``celebrity#7``, and each is an ordinary
key.

All messages of one key go to one partition. That keeps their order, and makes the partition hot if one key has most of the
messages. ``spread`` abandons that order for this key; it holds within each suffix only. The reading side merges:

- Commutative results (counts, sums, sets, the latest by timestamp) are computed per suffixed key where it is read, and ``merge``
  combines the partial results under their ``unspread`` keys.
- With ``by=`` (an id of the message) a message that is sent twice goes to the same partition both times, so the consumer of that
  partition can drop the second one without asking any other: deduplication stays local.

Two suffixes may hash to one partition. With ``partitions=``, the topic's partition count, suffixes are chosen that do not.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

from tidelog.client.errors import InvalidArgument
from tidelog.client.partitioners import murmur2, murmur2_partition

Key = TypeVar("Key", str, bytes)
Value = TypeVar("Value")

SEPARATOR = "#"
_SEPARATOR_BYTES = SEPARATOR.encode()
# The number of keys whose suffixes are cached. Hot keys are few, or they would not be hot.
_KEYS_MAX = 1_024
# The number of suffixes that are tried for one key, per partition of the topic.
_TRIES_PER_PARTITION = 64


def spread(key: Key, n: int, *, by: str | bytes | None = None, partitions: int | None = None) -> Key:
    """``key`` with one of ``n`` suffixes: a random one, or the one that ``by`` determines.

    ``partitions``, the topic's partition count, puts the suffixes on ``n`` different partitions (under ``key_hash``).
    """
    keys = spread_keys(key, n, partitions=partitions)
    if by is None:
        return keys[random.randrange(n)]  # noqa: S311 - no secret
    return keys[murmur2(by.encode() if isinstance(by, str) else by) % n]


def spread_keys(key: Key, n: int, *, partitions: int | None = None) -> list[Key]:
    """All keys that ``spread`` makes of ``key``: look up these to find ``key``."""
    if n < 1 or (partitions is not None and n > partitions):
        raise InvalidArgument(f"a key is spread over 1 to {partitions or 'the number of'} partitions: not over {n}")
    if isinstance(key, str):
        return [f"{key}{SEPARATOR}{number}" for number in _suffixes(key.encode(), n, partitions)]
    return [key + _SEPARATOR_BYTES + b"%d" % number for number in _suffixes(key, n, partitions)]


def unspread(key: Key) -> Key:
    """The original key. A key that was not spread stays as it is, unless it looks like one that was: ``room#12``."""
    if isinstance(key, str):
        original, separator, suffix = key.rpartition(SEPARATOR)
        return original if separator and suffix.isascii() and suffix.isdigit() else key
    before, found, number = key.rpartition(_SEPARATOR_BYTES)
    return before if found and number.isdigit() else key


def merge(
    partials: Mapping[Key, Value] | Iterable[tuple[Key, Value]], combine: Callable[[Value, Value], Value]
) -> dict[Key, Value]:
    """Combine partial results by suffixed key into results by key. ``combine`` must not depend on the order: a sum, a maximum, a
    union."""
    merged: dict[Key, Value] = {}
    for key, value in partials.items() if isinstance(partials, Mapping) else partials:
        original = unspread(key)
        merged[original] = combine(merged[original], value) if original in merged else value
    return merged


@lru_cache(maxsize=_KEYS_MAX)
def _suffixes(key: bytes, n: int, partitions: int | None) -> tuple[int, ...]:
    """Return the first numbers whose keys lie on different partitions. Only the arguments decide, so that every producer
    agrees."""
    if partitions is None:
        return tuple(range(n))
    chosen: dict[int, int] = {}
    number = 0
    while len(chosen) < n and number < partitions * _TRIES_PER_PARTITION:
        chosen.setdefault(murmur2_partition(key + _SEPARATOR_BYTES + b"%d" % number, partitions), number)
        number += 1
    numbers = sorted(chosen.values())
    # It is next to impossible that no suffix hashes to a partition; the key is then spread over one partition fewer.
    return tuple(numbers[place % len(numbers)] for place in range(n))
