"""Places new partitions on brokers.

The active brokers take turns, starting with a random one, so that leaders are spread evenly and small topics do not all begin on
the same broker. A broker that is down gets a replica only where the active ones do not suffice, and copies it when it is back: a
cluster that has lost a broker can create topics with as many replicas as before. Replicas of a partition go to as many racks as
there are (``broker.rack``), so that a whole rack may fail. If the client chose the assignment, it is checked instead.
"""

import itertools
from collections.abc import Mapping, Sequence

from tidelog.controller.errors import ApiError
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import NO_LEADER, PartitionRecord
from tidelog.ports.randomness import Randomness
from tidelog.wire.errors import ErrorCode

Replicas = tuple[int, ...]


def place(image: ClusterImage, partitions: int, replication_factor: int, randomness: Randomness) -> list[Replicas]:
    # A broker without a rack is a rack of its own.
    racks = {broker.broker_id: broker.rack or broker.broker_id for broker in image.brokers}
    active = _alternating({broker_id: rack for broker_id, rack in racks.items() if image.brokers.is_active(broker_id)})
    away = _alternating({broker_id: rack for broker_id, rack in racks.items() if not image.brokers.is_active(broker_id)})
    if not active or replication_factor > len(racks):
        # Kafka's words, which scripts search for.
        reason = f"only {len(racks)} broker(s) are registered" if active else "all brokers are currently fenced"
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because {reason}.",
        )
    start = randomness.integer(0, len(active) - 1)
    return [
        _spread([*_rotated(active, start + partition), *_rotated(away, start + partition)], racks, replication_factor)
        for partition in range(partitions)
    ]


def _rotated(brokers: Sequence[int], turn: int) -> list[int]:
    at = turn % len(brokers) if brokers else 0
    return [*brokers[at:], *brokers[:at]]


def _alternating(racks: Mapping[int, str | int]) -> list[int]:
    """The brokers in such an order that neighbours are in different racks, as far as possible."""
    members: dict[str | int, list[int]] = {}
    for broker_id in sorted(racks):
        members.setdefault(racks[broker_id], []).append(broker_id)
    turns = itertools.zip_longest(*members.values())
    return [broker_id for turn in turns for broker_id in turn if broker_id is not None]


def _spread(candidates: Sequence[int], racks: Mapping[int, str | int], count: int) -> Replicas:
    """The first candidates that are each in another rack, and when no rack is left, the first of the others."""
    chosen: list[int] = []
    used: set[str | int] = set()
    for broker_id in candidates:
        if len(chosen) < count and racks[broker_id] not in used:
            chosen.append(broker_id)
            used.add(racks[broker_id])
    others = [broker_id for broker_id in candidates if broker_id not in chosen]
    return (*chosen, *others[: count - len(chosen)])


def check_assignment(image: ClusterImage, replicas: Sequence[int], replication_factor: int | None) -> Replicas:
    """If ``replication_factor`` is None, any number of replicas is accepted, but at least one."""
    if not replicas:
        raise _invalid("a manual assignment names no broker for a partition")
    if len(set(replicas)) != len(replicas):
        raise _invalid(f"the assignment {list(replicas)} names a broker twice")
    for broker_id in replicas:
        if broker_id not in image.brokers:
            raise _invalid(f"the assignment {list(replicas)} names broker {broker_id}, which is not registered")
    if replication_factor is not None and len(replicas) != replication_factor:
        raise _invalid(f"the assignment {list(replicas)} has {len(replicas)} replica(s), another partition {replication_factor}")
    if not any(image.brokers.is_active(broker_id) for broker_id in replicas):
        raise _invalid(f"all brokers of the assignment {list(replicas)} are fenced or shutting down")
    return tuple(replicas)


def new_partitions(image: ClusterImage, topic_id: bytes, first_index: int, placed: Sequence[Replicas]) -> list[PartitionRecord]:
    """Make the records of new partitions. The first active replica leads; replicas that are not active are out of sync from the
    start."""
    # Thousands of partitions have only as many distinct placements as there are brokers.
    known: dict[Replicas, tuple[Replicas, tuple[bytes, ...]]] = {}
    records = []
    for index, replicas in enumerate(placed, start=first_index):
        found = known.get(replicas)
        if found is None:
            isr = tuple(broker_id for broker_id in replicas if image.brokers.is_active(broker_id))
            found = known[replicas] = isr, tuple(directory_of(image, broker_id) for broker_id in replicas)
        isr, directories = found
        records.append(
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=replicas,
                isr=isr,
                leader=isr[0] if isr else NO_LEADER,
                leader_epoch=0,
                partition_epoch=0,
                directories=directories,
            )
        )
    return records


def directory_of(image: ClusterImage, broker_id: int) -> bytes:
    """A broker with one log directory uses that; for others the zero id leaves the choice to the broker."""
    broker = image.brokers.find(broker_id)
    return broker.log_dirs[0] if broker is not None and len(broker.log_dirs) == 1 else bytes(16)


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
