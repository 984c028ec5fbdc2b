"""What the operations answer."""

from typing import NamedTuple

from tidelog.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.wire.errors import ErrorCode


class InitProducerIdResult(NamedTuple):
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class EndTransactionResult(NamedTuple):
    """Id and epoch are for the producer's next transaction; -1 for clients that keep their epoch."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


# From these versions on a client knows PRODUCER_FENCED.
FENCED_SINCE_INIT_PRODUCER_ID = 4
FENCED_SINCE_ADD_PARTITIONS = 2
FENCED_SINCE_ADD_OFFSETS = 2
FENCED_SINCE_END_TRANSACTION = 2


def error_for_version(error: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    """Older clients hear INVALID_PRODUCER_EPOCH instead."""
    if error is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
