"""Allocates blocks of producer ids: each block goes to one broker, and is never allocated again."""

from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.errors import ApiError
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import ProducerIdsRecord
from tidelog.wire.errors import ErrorCode

# The same as in Kafka.
BLOCK_SIZE = 1_000
PRODUCER_ID_MAX = 2**63 - 1


def allocate_producer_ids(image: ClusterImage, broker_id: int, broker_epoch: int) -> ControllerResult[int]:
    """Allocate a block of BLOCK_SIZE. The response is its first id."""
    first = image.next_producer_id
    if first > PRODUCER_ID_MAX - BLOCK_SIZE:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
    return ControllerResult([ProducerIdsRecord(broker_id, broker_epoch, first + BLOCK_SIZE)], first)
