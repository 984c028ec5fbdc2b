"""Adding partitions to a topic. They can only grow: to take one away would take its records away."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.controller.errors import ApiError
from tidelog.controller.placement import Replicas, check_assignment, new_partitions, place
from tidelog.controller.result import ControllerResult
from tidelog.controller.topics import AskQuota, TopicRules, check_partitions_of_request
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import MetadataRecord
from tidelog.metadata.topics import TopicImage
from tidelog.ports.randomness import Randomness
from tidelog.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class NewPartitions:
    topic: str
    count: int
    """How many there are to be, with those that are there."""
    assignments: tuple[Replicas, ...] | None = None
    """For each partition that is added, when the client chose the brokers by itself."""


@dataclass(frozen=True, slots=True)
class PartitionsCreation:
    topic: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def create_partitions(
    image: ClusterImage,
    rules: TopicRules,
    requests: Sequence[NewPartitions],
    randomness: Randomness,
    *,
    validate_only: bool = False,
    ask_quota: AskQuota | None = None,
) -> ControllerResult[list[PartitionsCreation]]:
    partitions_left = rules.partitions_max - sum(len(topic.partitions) for topic in image.topics)
    counts = Counter(request.topic for request in requests)
    records: list[MetadataRecord] = []
    results: dict[str, PartitionsCreation] = {}
    for request in requests:
        try:
            if counts[request.topic] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the request names the topic twice")
            topic = _topic(image, request)
            check_partitions_of_request(len(records) + request.count - len(topic.partitions))
            added = _place(image, topic, request, randomness)
            if len(added) > partitions_left:
                raise ApiError(
                    ErrorCode.POLICY_VIOLATION,
                    f"{len(added)} partition(s) more would be beyond max.partitions={rules.partitions_max}",
                )
            if ask_quota is not None and not validate_only:
                ask_quota(len(added))
        except ApiError as error:
            results[request.topic] = PartitionsCreation(request.topic, error.code, error.message)
            continue
        records += new_partitions(image, topic.topic_id, len(topic.partitions), added)
        partitions_left -= len(added)
        results[request.topic] = PartitionsCreation(request.topic)
    return ControllerResult([] if validate_only else records, list(results.values()))


def _topic(image: ClusterImage, request: NewPartitions) -> TopicImage:
    topic = image.topic(request.topic)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {request.topic} does not exist")
    if topic.is_internal:
        # Their keys are spread over the partitions that there are: with more of them nothing would be found again.
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{topic.name} is an internal topic and keeps its partitions")
    current = len(topic.partitions)
    if request.count == current:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"topic {topic.name} already has {current} partition(s)")
    if request.count < current:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name} has {current} partition(s); {request.count} would be fewer, and partitions cannot be removed",
        )
    return topic


def _place(image: ClusterImage, topic: TopicImage, request: NewPartitions, randomness: Randomness) -> list[Replicas]:
    count = request.count - len(topic.partitions)
    replication_factor = len(topic.partitions[0].replicas)
    if request.assignments is None:
        return place(image, count, replication_factor, randomness)
    if len(request.assignments) != count:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{count} partition(s) are added, but {len(request.assignments)} assignment(s) are given",
        )
    return [check_assignment(image, replicas, replication_factor) for replicas in request.assignments]
