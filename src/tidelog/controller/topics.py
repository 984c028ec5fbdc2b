"""Creates and deletes topics, and adds partitions to them.

Each topic of a request stands for itself: refusing one does not stop the others. Everything that a request creates goes into one
batch, so that a crash leaves all of it or nothing. Partitions can only be added: removing one would remove its records.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidelog.controller.config_sources import DescribedConfig, StaticConfig, describe_topic_texts, inherited_values
from tidelog.controller.configs import check_topic_texts
from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.errors import ApiError
from tidelog.controller.placement import Replicas, check_assignment, new_partitions, place
from tidelog.log.names import topic_name_problem
from tidelog.metadata.configs import ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import ConfigRecord, MetadataRecord, RemoveTopicRecord, TopicRecord
from tidelog.metadata.topics import INTERNAL_TOPICS, METADATA_TOPIC, TopicImage, unified
from tidelog.ports.randomness import Randomness
from tidelog.wire.errors import ErrorCode

USE_DEFAULT = -1
# Called with a number of partitions before they are created or deleted; raises ApiError if the client's quota does not allow it.
AskQuota = Callable[[int], None]
NO_ID = bytes(16)
# Deciding on so many partitions and replaying them, each without a pause, takes some ten milliseconds. (Kafka's limit is 10,000.)
# A topic can grow beyond it by CreatePartitions.
PARTITIONS_PER_REQUEST_MAX = 2_000


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The defaults for requests that say -1, and the maximum number of partitions in the cluster."""

    partitions_default: int = 1
    replication_factor_default: int = 1
    partitions_max: int = 100_000


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: tuple[tuple[int, Replicas], ...] = ()
    """(partition, replicas) pairs, if the client chose the brokers itself."""
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicCreation:
    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic_id: bytes = NO_ID
    partitions: int = -1
    replication_factor: int = -1
    configs: tuple[DescribedConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    name: str | None
    topic_id: bytes
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class _Creator:
    """The state of one request: the names that it has used so far, and its records."""

    def __init__(
        self,
        image: ClusterImage,
        rules: TopicRules,
        static: StaticConfig,
        randomness: Randomness,
        is_internal: bool,
        ask_quota: AskQuota | None,
    ) -> None:
        self.image = image
        self.rules = rules
        self.static = static
        self.randomness = randomness
        self.is_internal = is_internal
        self.ask_quota = ask_quota
        self.partitions_left = rules.partitions_max - sum(len(topic.partitions) for topic in image.topics)
        self.names_taken: dict[str, str] = {}
        self.records: list[MetadataRecord] = []
        # The settings of topics of this request that gave the same ones: most of a thousand topics gave none.
        self._described: dict[tuple[tuple[str, str], ...], tuple[DescribedConfig, ...]] = {}

    def create(self, topic: NewTopic) -> TopicCreation:
        self._check_name(topic.name)
        placed = self._place(topic)
        if len(placed) > self.partitions_left:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"{len(placed)} partition(s) more would be beyond max.partitions={self.rules.partitions_max}",
            )
        texts = self._configs(topic)
        if self.ask_quota is not None:
            self.ask_quota(len(placed))
        topic_id = self._new_id()
        self.records.append(TopicRecord(topic.name, topic_id))
        self.records += [ConfigRecord(ResourceType.TOPIC, topic.name, name, text) for name, text in texts.items()]
        self.records += new_partitions(self.image, topic_id, 0, placed)
        self.partitions_left -= len(placed)
        self.names_taken[unified(topic.name)] = topic.name
        return TopicCreation(topic.name, ErrorCode.NONE, None, topic_id, len(placed), len(placed[0]), self._describe(texts))

    def _describe(self, texts: dict[str, str]) -> tuple[DescribedConfig, ...]:
        key = tuple(texts.items())
        configs = self._described.get(key)
        if configs is None:
            configs = self._described[key] = tuple(describe_topic_texts(self.image, self.static, texts))
        return configs

    def _check_name(self, name: str) -> None:
        if self.image.topic(name) is not None:
            # These are Kafka's own words, here and below: scripts search the output of its tools for them.
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        problem = topic_name_problem(name)
        if problem is not None:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name == METADATA_TOPIC or (name in INTERNAL_TOPICS and not self.is_internal):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{name} is an internal topic: the brokers create it by themselves")
        alike = self.image.topics.name_like(name) or self.names_taken.get(unified(name))
        if alike is not None:
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name} collides with topic {alike}: names that differ only in '.' and '_' are one name in metrics",
            )

    def _place(self, topic: NewTopic) -> list[Replicas]:
        if topic.assignments:
            return self._assigned(topic)
        partitions, replication_factor = topic.partitions, topic.replication_factor
        if replication_factor == USE_DEFAULT:
            replication_factor = self.rules.replication_factor_default
        if partitions == USE_DEFAULT:
            partitions = self.rules.partitions_default
        if replication_factor < 1:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"a replication factor of {replication_factor}; expected at least 1, or -1 for the default",
            )
        if partitions < 1:
            raise ApiError(ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions; expected at least 1, or -1 for the default")
        return place(self.image, partitions, replication_factor, self.randomness)

    def _assigned(self, topic: NewTopic) -> list[Replicas]:
        for what, number in (("number of partitions", topic.partitions), ("replication factor", topic.replication_factor)):
            if number != USE_DEFAULT:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"with a manual assignment the {what} must be -1, and is {number}")
        by_partition = dict(topic.assignments)
        if len(by_partition) != len(topic.assignments) or set(by_partition) != set(range(len(by_partition))):
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the partitions of a manual assignment must be 0, 1, 2 ... without a gap"
            )
        replication_factor = len(by_partition[0])
        return [check_assignment(self.image, by_partition[index], replication_factor) for index in range(len(by_partition))]

    def _configs(self, topic: NewTopic) -> dict[str, str]:
        texts: dict[str, str] = {}
        for name, text in topic.configs:
            if text is None:
                raise ApiError(ErrorCode.INVALID_CONFIG, f"{name}: null is not a value")
            if name in texts:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{name} is given twice")
            texts[name] = text
        if tuple(texts.items()) in self._described:
            return texts
        check_topic_texts(texts, inherited_values(self.image, self.static), texts)
        return texts

    def _new_id(self) -> bytes:
        """Return a new topic id. It is never zero, which means no id, nor one, which is the metadata log's, nor one whose text
        starts like a flag ('-')."""
        while True:
            topic_id = self.randomness.token(16)
            # In the base64 that Kafka's tools print, an id whose first six bits are 62 begins with '-'.
            is_reserved = topic_id[:15] == bytes(15) or topic_id[0] >> 2 == 62
            if not is_reserved and self.image.topic_by_id(topic_id) is None:
                return topic_id


def create_topics(
    image: ClusterImage,
    rules: TopicRules,
    static: StaticConfig,
    topics: Sequence[NewTopic],
    randomness: Randomness,
    *,
    validate_only: bool = False,
    is_internal: bool = False,
    ask_quota: AskQuota | None = None,
) -> ControllerResult[list[TopicCreation]]:
    """``is_internal``: the broker itself asks, and may create the topics that hold its own state."""
    check_partitions_of_request(sum(_partitions(topic, rules) for topic in topics))
    creator = _Creator(image, rules, static, randomness, is_internal, None if validate_only else ask_quota)
    counts = Counter(topic.name for topic in topics)
    results: dict[str, TopicCreation] = {}
    for topic in topics:
        if counts[topic.name] > 1:
            results[topic.name] = TopicCreation(topic.name, ErrorCode.INVALID_REQUEST, "the request names the topic twice")
            continue
        try:
            results[topic.name] = creator.create(topic)
        except ApiError as error:
            results[topic.name] = TopicCreation(topic.name, error.code, error.message)
    return ControllerResult([] if validate_only else creator.records, list(results.values()))


def _partitions(topic: NewTopic, rules: TopicRules) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return rules.partitions_default if topic.partitions == USE_DEFAULT else max(topic.partitions, 0)


def check_partitions_of_request(partitions: int) -> None:
    """Raises ApiError for the request as a whole."""
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"{partitions} partitions in one request, at most {PARTITIONS_PER_REQUEST_MAX}: send several requests, for one topic "
            "create it with fewer and add the others",
        )


def delete_topics(
    image: ClusterImage, names: Sequence[str] = (), topic_ids: Sequence[bytes] = (), ask_quota: AskQuota | None = None
) -> ControllerResult[list[TopicDeletion]]:
    records: list[MetadataRecord] = []
    results: list[TopicDeletion] = []
    doomed: set[bytes] = set()
    name_counts, id_counts = Counter(names), Counter(topic_ids)

    def delete(name: str | None, topic_id: bytes, is_duplicate: bool, topic: TopicImage | None, unknown: ErrorCode) -> None:
        try:
            if is_duplicate:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the request names the topic twice")
            if topic is None:
                raise ApiError(unknown)
            if topic.topic_id in doomed:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"the request names topic {topic.name} by its name and by its id")
            if topic.is_internal:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{topic.name} is an internal topic and cannot be deleted")
            if ask_quota is not None:
                ask_quota(len(topic.partitions))
        except ApiError as error:
            results.append(TopicDeletion(name, topic_id, error.code, error.message))
            return
        doomed.add(topic.topic_id)
        records.append(RemoveTopicRecord(topic.topic_id))
        results.append(TopicDeletion(topic.name, topic.topic_id))

    for name, count in name_counts.items():
        delete(name, NO_ID, count > 1, image.topic(name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    for topic_id, count in id_counts.items():
        delete(None, topic_id, count > 1, image.topic_by_id(topic_id), ErrorCode.UNKNOWN_TOPIC_ID)
    return ControllerResult(records, results)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    topic: str
    count: int
    """The total, including the partitions that exist."""
    assignments: tuple[Replicas, ...] | None = None
    """The replicas of each added partition, if the client chose them."""


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
        # Keys are hashed over the existing partitions: with more partitions a coordinator would not find its state again.
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{topic.name} is an internal topic and keeps its partitions")
    current = len(topic.partitions)
    if request.count == current:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if request.count < current:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {current} partition(s); {request.count} would not be an increase.",
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
