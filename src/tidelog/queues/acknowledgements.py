"""What a member says about records that it was given: the types of acknowledgement, and the checks that need no state.

Each batch names consecutive offsets, and one type for all of them or one for each. Error messages are Kafka's.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from tidelog.controller.errors import ApiError
from tidelog.wire.errors import ErrorCode


class AcknowledgeType(IntEnum):
    GAP = 0
    """There is no record at this offset: it was compacted away, or is a marker."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """Extend the lock (KIP-1222); changes no state."""


class AcknowledgementBatch(NamedTuple):
    first_offset: int
    last_offset: int
    acknowledge_types: Sequence[int]

    def runs(self) -> Iterator[tuple[int, int, AcknowledgeType]]:
        """The offsets by type: (first, last, type), with as few entries as possible."""
        types = self.acknowledge_types
        if len(types) == 1:
            yield self.first_offset, self.last_offset, AcknowledgeType(types[0])
            return
        begin = 0
        for index in range(1, len(types) + 1):
            if index == len(types) or types[index] != types[begin]:
                yield self.first_offset + begin, self.first_offset + index - 1, AcknowledgeType(types[begin])
                begin = index


def check_acknowledgements(batches: Sequence[AcknowledgementBatch], type_max: int, is_renewal: bool) -> None:
    """Raises ApiError (INVALID_REQUEST) when the batches of one partition make no sense in themselves. ``type_max`` is the
    highest type that the request's version knows; renewals are allowed only in a request that says that it renews."""
    end = -1
    for batch in batches:
        first, last, types = batch
        if first > last:
            raise _invalid(f"First offset {first} is greater than last offset {last} in acknowledgement batch.")
        if first < end:
            raise _invalid(f"Acknowledgement batches overlap or are out of order: {first} follows {end - 1}.")
        if len(types) not in (1, last - first + 1):
            raise _invalid(f"There are {len(types)} acknowledge types for {last - first + 1} offsets; expected 1 or all.")
        for kind in types:
            if not 0 <= kind <= type_max:
                raise _invalid(f"Invalid acknowledge type: {kind}.")
            if kind == AcknowledgeType.RENEW and not is_renewal:
                raise _invalid("Renew acknowledgement type is not allowed without the renew flag of the request.")
        end = last + 1


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
