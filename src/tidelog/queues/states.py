"""The states of a record in a share group, and the range of offsets that the state is kept for."""

from enum import IntEnum
from typing import NamedTuple


class RecordState(IntEnum):
    """The states, with Kafka's numbers. Only 0, 2 and 4 are ever written: a lock does not survive its broker."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """Its dead letter is being written. It is archived when the letter is durable."""
    ARCHIVED = 4
    DELAYED = 5
    """It may not be handed out before it is due. Only on queue topics, and not one of Kafka's: it is written as available."""
    WAITING = 6
    """An earlier record with its key is not settled. Only in groups with an order by key, and written as available, too."""


FINAL_STATES = frozenset((RecordState.ACKNOWLEDGED, RecordState.ARCHIVED))


class StateBatch(NamedTuple):
    """The state of consecutive offsets, as it is written. Kafka uses this name and these fields in its records and requests."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int
