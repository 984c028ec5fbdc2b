"""Places new partitions on brokers.

The active brokers take turns, starting with a random one, so that leaders are spread evenly and small topics do not all begin on
the same broker. If the client chose the assignment, it is checked instead.
"""

from collections.abc import Sequence

from tidelog.controller.errors import ApiError
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import NO_LEADER, PartitionRecord
from tidelog.ports.randomness import Randomness
from tidelog.wire.errors import ErrorCode

Replicas = tuple[int, ...]


def place(image: ClusterImage, partitions: int, replication_factor: int, randomness: Randomness) -> list[Replicas]:
    active = sorted(broker.broker_id for broker in image.brokers if broker.is_active)
    if replication_factor > len(active):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            # Kafka's words, which scripts search for.
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(active)} broker(s) are registered.",
        )
    count = len(active)
    start = randomness.integer(0, count - 1)
    return [
        tuple(active[(start + partition + replica) % count] for replica in range(replication_factor))
        for partition in range(partitions)
    ]


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
