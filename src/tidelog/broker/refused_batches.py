"""The batches of idempotent producers that a connection had refused, so that they leave no holes in their sequences.

A producer may have five batches of a partition on the wire. If the first one is refused for a passing reason (this broker does
not lead the partition yet, or too few replicas are in sync), and the reason has passed when the second one is handled, then the
second one does not follow what is in the log. OUT_OF_ORDER_SEQUENCE_NUMBER would be true, but librdkafka takes it for a sign of
lost records: it begins a new producer epoch in *all* partitions, and numbers what it has queued from 0. That includes batches
that another leader has appended and whose acknowledgement was lost: their leader takes them for the first batches of the new
epoch, and they are written twice (issue 4953 of librdkafka). So the second batch gets the error of the first one, and the client
sends both again, in order. Nothing is appended, so this is safe for every client.

For the same reason the second batch is refused while the log does not know the producer: the log would take it for the first
one, and then the real first one would come too late.

An entry lasts until the log has the refused batch or a later one, or until the client must know of the refusal: it sends the
refused batch again before any other, so the entry is only for those that were on the wire. An entry that is out of date, because
another broker led the partition in the meantime, costs its producer a few retries.
"""

from typing import NamedTuple

from tidelog.log.producers.producer_state import BATCHES_KEPT_MAX
from tidelog.records.header import SEQUENCE_COUNT, BatchHeader
from tidelog.wire.errors import ErrorCode

# The limit for a connection: 300 kB. The oldest entries are forgotten first, and their producers get Kafka's answer.
ENTRIES_MAX = 1000
# How many batches of the partition may have been on the wire behind the one that was refused.
FOLLOWING_MAX = BATCHES_KEPT_MAX - 1
# Codes that a client retries after, but which do not say that an intact batch was not appended.
_NOT_REFUSED = (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.CORRUPT_MESSAGE)

# A topic, by its name or its id, and the number of a partition.
PartitionKey = tuple[str | bytes | None, int]


class _Refusal(NamedTuple):
    """The first batch of a producer that was refused; ``following_left`` is how many later ones may still have been under way."""

    producer_epoch: int
    base_sequence: int
    code: ErrorCode
    following_left: int


class RefusedBatches:
    """What one connection remembers. It is made when the first batch is refused, and ends with the connection."""

    __slots__ = ("_refusals",)

    def __init__(self) -> None:
        self._refusals: dict[tuple[PartitionKey, int], _Refusal] = {}

    def __len__(self) -> int:
        return len(self._refusals)

    def follows_refused(self, partition: PartitionKey, header: BatchHeader) -> bool:
        """Whether an earlier batch of this producer was refused and is still missing."""
        refusal = self._refusals.get((partition, header.producer_id))
        return refusal is not None and _is_later(header, refusal)

    def note_appended(self, partition: PartitionKey, header: BatchHeader) -> None:
        """The log has the batch, and so every earlier one."""
        self._refusals.pop((partition, header.producer_id), None)

    def note_failed(self, partition: PartitionKey, header: BatchHeader, code: ErrorCode) -> ErrorCode:
        """A batch of an idempotent producer was not appended, because of ``code``. Returns the code for its client."""
        key = partition, header.producer_id
        refusal = self._refusals.get(key)
        if refusal is not None and _is_later(header, refusal):
            if refusal.following_left > 1:
                self._refusals[key] = refusal._replace(following_left=refusal.following_left - 1)
            else:
                del self._refusals[key]
            return refusal.code if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER else code
        if refusal is not None:
            del self._refusals[key]
        if is_refusal(code):
            if len(self._refusals) == ENTRIES_MAX:
                del self._refusals[next(iter(self._refusals))]
            self._refusals[key] = _Refusal(header.producer_epoch, header.base_sequence, code, FOLLOWING_MAX)
        return code


def is_refusal(code: ErrorCode) -> bool:
    """Whether the client will send the batch again, which was not appended."""
    return code.is_retriable and code not in _NOT_REFUSED


def _is_later(header: BatchHeader, refusal: _Refusal) -> bool:
    """Whether the batch comes after the refused one in the same epoch. Sequence numbers wrap around."""
    distance = (header.base_sequence - refusal.base_sequence) % SEQUENCE_COUNT
    return header.producer_epoch == refusal.producer_epoch and 0 < distance < SEQUENCE_COUNT // 2
