"""The control batch with which a leader begins its epoch.

Its value, in flexible encoding: version i16 (0) | leader id i32 | voters | granting voters | tagged fields, where each voter is
its id i32 and tagged fields. Version 0 is the one for voters that stand in the configuration.
"""

from collections.abc import Sequence

from tidelog.records.batch import build_batch
from tidelog.records.control import ControlType, control_key
from tidelog.records.record import Record
from tidelog.wire.primitives import INT16, INT32, NO_TAGGED_FIELDS, write_compact_length

_VERSION = 0


def leader_change_value(leader_id: int, voters: Sequence[int], granting_voters: Sequence[int]) -> bytes:
    parts = [INT16.pack(_VERSION), INT32.pack(leader_id)]
    for group in (voters, granting_voters):
        parts.append(write_compact_length(len(group)))
        parts += [INT32.pack(voter) + NO_TAGGED_FIELDS for voter in group]
    parts.append(NO_TAGGED_FIELDS)
    return b"".join(parts)


def build_leader_change(leader_id: int, voters: Sequence[int], granting_voters: Sequence[int], timestamp: int) -> bytes:
    value = leader_change_value(leader_id, voters, granting_voters)
    return build_batch([Record(0, timestamp, control_key(ControlType.LEADER_CHANGE), value)], control=True)
