"""A hot key over several partitions: the key gets a suffix, ``celebrity#0`` to ``celebrity#7``, and each is a key like any other.

All messages of one key go to one partition, which is what keeps their order, and what makes one partition hot when one key has
most of the messages. ``spread`` gives that order up for this key: it holds within each suffix only. So the reading side merges:

- what is commutative (counts, sums, sets, the latest by timestamp) is computed per suffixed key where it is read, and the
  partial results are put together by ``merge``, on ``unspread`` keys;
- with ``by=`` (an id of the message) a message that is sent twice goes to the same partition both times, so the consumer of that
  partition can drop the second one without asking any other: deduplication downstream stays local.

Two suffixes may hash to one partition. With ``partitions=``, the topic's partition count, they are chosen so that they do not.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

from tidelog.client.errors import InvalidArgument
from tidelog.client.murmur2 import murmur2, murmur2_partition

Key = TypeVar("Key", str, bytes)
Value = TypeVar("Value")

SEPARATOR = "#"
_SEPARATOR_BYTES = SEPARATOR.encode()
# Keys whose suffixes are remembered: hot keys are few, or they would not be hot.
_KEYS_MAX = 1_024
# More than this many suffixes are tried for one key only if the topic has that many partitions, several times over.
_TRIES_PER_PARTITION = 64


def spread(key: Key, n: int, *, by: str | bytes | None = None, partitions: int | None = None) -> Key:
    """``key`` with one of ``n`` suffixes: at random, or the one that ``by`` always gives.

    ``partitions``, the topic's partition count, puts the suffixes on ``n`` different partitions (under ``key_hash``).
    """
    keys = spread_keys(key, n, partitions=partitions)
    if by is None:
        return keys[random.randrange(n)]  # noqa: S311 - no secret
    return keys[murmur2(by.encode() if isinstance(by, str) else by) % n]


def spread_keys(key: Key, n: int, *, partitions: int | None = None) -> list[Key]:
    """All keys that ``spread`` makes of ``key``: what to look up where one asks for ``key``."""
    if n < 1 or (partitions is not None and n > partitions):
        raise InvalidArgument(f"a key is spread over 1 to {partitions or 'the number of'} partitions: not over {n}")
    if isinstance(key, str):
        return [f"{key}{SEPARATOR}{number}" for number in _suffixes(key.encode(), n, partitions)]
    return [key + _SEPARATOR_BYTES + b"%d" % number for number in _suffixes(key, n, partitions)]


def unspread(key: Key) -> Key:
    """The key that it was made of; a key that was not spread stays as it is, unless it ends like one: ``room#12``."""
    if isinstance(key, str):
        original, separator, suffix = key.rpartition(SEPARATOR)
        return original if separator and suffix.isascii() and suffix.isdigit() else key
    before, found, number = key.rpartition(_SEPARATOR_BYTES)
    return before if found and number.isdigit() else key


def merge(
    partials: Mapping[Key, Value] | Iterable[tuple[Key, Value]], combine: Callable[[Value, Value], Value]
) -> dict[Key, Value]:
    """Partial results by suffixed key -> results by key. ``combine`` must not care for the order: a sum, a maximum, a union."""
    merged: dict[Key, Value] = {}
    for key, value in partials.items() if isinstance(partials, Mapping) else partials:
        original = unspread(key)
        merged[original] = combine(merged[original], value) if original in merged else value
    return merged


@lru_cache(maxsize=_KEYS_MAX)
def _suffixes(key: bytes, n: int, partitions: int | None) -> tuple[int, ...]:
    """The first numbers whose keys lie on different partitions. Nothing but the arguments decides: every producer agrees."""
    if partitions is None:
        return tuple(range(n))
    chosen: dict[int, int] = {}
    number = 0
    while len(chosen) < n and number < partitions * _TRIES_PER_PARTITION:
        chosen.setdefault(murmur2_partition(key + _SEPARATOR_BYTES + b"%d" % number, partitions), number)
        number += 1
    numbers = sorted(chosen.values())
    # A partition that no suffix hashes to is next to impossible; the key is then spread over one fewer.
    return tuple(numbers[place % len(numbers)] for place in range(n))
