"""The order by key: which records wait until an earlier one with the same key is settled.

Of each key, one record has its turn: the first one that is not settled. Those behind it wait, whoever asks, so a key's records
are handed out in the order of their offsets, and to one member at a time. A record that is released keeps its turn; one that is
acknowledged, archived, or has become a dead letter gives it to the next. Records without a key wait for nobody.

The keys of records are known up to the *frontier*; behind it, nothing may be handed out. Keys are found in the log again after a
restart. A long key stands here as its digest: two keys that agree in it would only wait for each other.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from tidelog.ports.disk import Buffer
from tidelog.queues.record_times import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from tidelog.records.batch import iterate_keys
from tidelog.records.header import BatchHeader

# How far beyond the first record that is not settled keys are kept: some megabytes of memory at most.
LOOK_AHEAD_MAX = 20_000
KEY_BYTES_MAX = 16


class RecordKey(NamedTuple):
    offset: int
    key: bytes


def read_record_keys(data: Buffer, position: int, header: BatchHeader) -> Sequence[RecordKey]:
    """The records of the batch at ``position`` that have a key. Raises RecordError for a batch that cannot be read."""
    pairs = iterate_keys(data, position, header, size_max=BATCH_BYTES_MAX, count_max=BATCH_RECORDS_MAX)
    return [RecordKey(header.base_offset + delta, _short(key)) for delta, key, _ in pairs if key is not None]


def _short(key: bytes) -> bytes:
    return key if len(key) <= KEY_BYTES_MAX else blake2b(key, digest_size=KEY_BYTES_MAX).digest()


class KeyOrder:
    __slots__ = ("_key_of", "_turns", "frontier")

    def __init__(self, start_offset: int) -> None:
        self.frontier = start_offset
        """The first offset whose key is not known."""
        self._key_of: dict[int, bytes] = {}
        # The unsettled records of each key in the order of their offsets. The first has its turn.
        self._turns: dict[bytes, deque[int]] = {}

    def __len__(self) -> int:
        """The number of unsettled records with keys."""
        return len(self._key_of)

    def add(self, record: RecordKey) -> bool:
        """Note an unsettled record at the frontier. Returns whether it has to wait."""
        offset, key = record
        self._key_of[offset] = key
        turns = self._turns.get(key)
        if turns is None:
            self._turns[key] = deque((offset,))
            return False
        turns.append(offset)
        return True

    def move_frontier(self, offset: int) -> None:
        self.frontier = max(self.frontier, offset)

    def settle(self, offset: int) -> int | None:
        """A record is settled. Returns the one whose turn it is because of that."""
        key = self._key_of.pop(offset, None)
        if key is None:
            return None
        turns = self._turns[key]
        had_its_turn = turns[0] == offset
        turns.remove(offset)
        if not turns:
            del self._turns[key]
            return None
        return turns[0] if had_its_turn else None

    def settle_below(self, start_offset: int) -> Iterator[int]:
        """The log begins at ``start_offset``. Returns the records whose turn it is because of that."""
        self.move_frontier(start_offset)
        for offset in [each for each in self._key_of if each < start_offset]:
            following = self.settle(offset)
            if following is not None:
                yield following
