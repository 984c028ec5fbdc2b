"""How far a consumer is behind: by partition, the offsets between its position and the end that it may read to.

With read_committed the end is the last stable offset, so an open transaction does not count as lag; the markers at the ends of
transactions take offsets of their own and are counted until they are passed.
"""

from collections.abc import Mapping

from tidelog.client.consumer_settings import Start
from tidelog.client.start import OffsetLookup, start_offsets
from tidelog.client.topic_partition import Partition


def lag(
    lookup: OffsetLookup,
    partitions: list[Partition],
    positions: Mapping[Partition, int],
    start: Start,
    *,
    has_group: bool,
    timeout: float,
) -> dict[Partition, int]:
    """A partition that nothing was read of yet counts from the group's committed offset, else from where it will start."""
    unknown = [partition for partition in partitions if partition not in positions]
    known = dict(positions)
    if unknown and has_group:
        known.update(lookup.committed(unknown, timeout))
        unknown = [partition for partition in unknown if partition not in known]
    known.update(start_offsets(lookup, unknown, start, timeout))
    ends = lookup.ends(partitions, timeout)
    return {partition: max(0, ends[partition] - known[partition]) for partition in partitions}
