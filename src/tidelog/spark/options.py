"""The options of source and sink: the stock connector's names, so that switching takes one word, and a few of our own.

This module alone decides what a name means. Spark accepts option names in any case and passes them in lower case, so names are
compared in lower case and shown as the documentation spells them. No option is ignored: an unknown name is refused with the
nearest known one, because a misspelt option that was ignored would silently read from the wrong place. Options of the stock
connector that we do not need, and whatever would weaken a promise, are refused with the reason.
"""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Literal, NamedTuple, Self, cast

from tidelog.client.errors import InvalidArgument
from tidelog.client.fetch.types import Fetcher
from tidelog.client.librdkafka import bootstrap_addresses
from tidelog.client.topic_partition import TopicPartition

Isolation = Literal["read_committed", "read_uncommitted"]
DeliveryGuarantee = Literal["exactly_once", "at_least_once"]

OFFSETS_MAX = (1 << 63) - 1
PARTITIONS_MAX = 100_000
# A split of this many is read in seconds: small enough to repeat when a task fails, large enough to pay for its start.
RECORDS_PER_SPLIT = 1_000_000
TRIGGER_DELAY_MS = 15 * 60_000

_CONNECTION = ("bootstrap", "kafka.bootstrap.servers")
_SOURCE = (
    *_CONNECTION,
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "fetcher",
    "groupId",
    "includeHeaders",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "offsetRanges",
)
_SINK = (*_CONNECTION, "topic", "deliveryGuarantee", "transactionalIdPrefix", "transactionTimeoutMs", "writeId")
# These are Spark's own, which it passes to the sink with the rest.
_SINK_OF_SPARK = ("checkpointLocation", "queryName", "path")

_JAVA_SECURITY = "is of Java clients; librdkafka's are kafka.ssl.ca.location, kafka.sasl.username, kafka.sasl.password and so on"
_JAVA_ONLY = {
    "kafka.sasl.jaas.config": _JAVA_SECURITY,
    "kafka.ssl.truststore.location": _JAVA_SECURITY,
    "kafka.ssl.truststore.password": _JAVA_SECURITY,
    "kafka.ssl.truststore.type": _JAVA_SECURITY,
}
_OFFSETS_ARE_SPARKS = "the checkpoint has the offsets: leave it out (progress is shown to a group by groupId)"
_BYTES = "key and value are bytes: cast them in Spark"
_SOURCE_REFUSED = {
    **_JAVA_ONLY,
    "kafka.auto.offset.reset": "use startingOffsets, and failOnDataLoss for what is lost later",
    "kafka.enable.auto.commit": _OFFSETS_ARE_SPARKS,
    "kafka.interceptor.classes": "librdkafka has no interceptors",
    "kafka.key.deserializer": _BYTES,
    "kafka.value.deserializer": _BYTES,
    "groupIdPrefix": "no consumer group is needed; groupId shows the progress as one",
    "kafkaConsumer.pollTimeoutMs": "use kafka.socket.timeout.ms",
    "fetchOffset.numRetries": "questions are tried again for kafka.socket.timeout.ms",
    "fetchOffset.retryIntervalMs": "questions are tried again for kafka.socket.timeout.ms",
    "path": "topics are named by subscribe, subscribePattern or assign: load() takes no path",
}
_SINK_REFUSED = {
    **_JAVA_ONLY,
    "kafka.key.serializer": "key and value are bytes or text",
    "kafka.value.serializer": "key and value are bytes or text",
    "kafka.enable.idempotence": "it is always on",
    "kafka.acks": "it is always all",
    "kafka.transactional.id": "use transactionalIdPrefix: every task has an id of its own",
    "kafka.transaction.timeout.ms": "use transactionTimeoutMs",
}


class ConnectionOptions(NamedTuple):
    """The address of the cluster, and librdkafka's settings for it (without ``kafka.`` before them)."""

    bootstrap: str
    settings: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """``given`` has names in lower case."""
        short, long = given.get("bootstrap"), given.get("kafka.bootstrap.servers")
        if short is None and long is None:
            raise InvalidArgument("option bootstrap (or kafka.bootstrap.servers) is missing: host:port of a broker")
        if short is not None and long is not None and short != long:
            raise InvalidArgument(f"options bootstrap ({short}) and kafka.bootstrap.servers ({long}) differ: give one")
        prefix = KAFKA_PREFIX
        settings = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
        settings.pop("bootstrap.servers", None)
        return cls(bootstrap_addresses(short if short is not None else long or ""), tuple(sorted(settings.items())))


class TopicSelection(NamedTuple):
    """Exactly one of the three is given."""

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: tuple[TopicPartition, ...] = ()

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        ways = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in given]
        if len(ways) != 1:
            raise InvalidArgument(f"give one of subscribe, subscribePattern and assign: there are {', '.join(ways) or 'none'}")
        text = given[ways[0].lower()]
        if ways[0] == "subscribe":
            return cls(names=parse_topic_names("subscribe", text))
        if ways[0] == "subscribePattern":
            return cls(pattern=parse_pattern("subscribePattern", text))
        assigned = parse_partitions("assign", text)
        return cls(names=tuple(dict.fromkeys(partition.topic for partition in assigned)), assigned=assigned)

    def has(self, topic: str) -> bool:
        return bool(self.pattern.fullmatch(topic)) if self.pattern else topic in self.names

    def __str__(self) -> str:
        return f"pattern {self.pattern.pattern}" if self.pattern else ", ".join(self.names)


class OffsetBound(NamedTuple):
    """Where reading begins or ends. ``by_partition`` has offsets or milliseconds, by ``kind``."""

    kind: Literal["earliest", "latest", "timestamp", "offsets", "timestamps"]
    option: str
    timestamp_ms: int = 0
    by_partition: Mapping[TopicPartition, int] = {}

    @classmethod
    def parse(cls, given: Mapping[str, str], side: Literal["starting", "ending"], default: Literal["earliest", "latest"]) -> Self:
        """Apply the stock connector's precedence: a time for all, then times by partition, then offsets."""
        for option in (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"):
            text = given.get(option.lower())
            if text is None:
                continue
            if option.endswith("ByTimestamp"):
                return cls("timestamps", option, by_partition=parse_numbers_by_partition(option, text, 0))
            if option.endswith("Timestamp"):
                return cls("timestamp", option, parse_number(option, text, 0, OFFSETS_MAX))
            if text.strip().lower() in ("earliest", "latest"):
                return cls(cast(Literal["earliest", "latest"], text.strip().lower()), option)
            return cls("offsets", option, by_partition=parse_numbers_by_partition(option, text, EARLIEST))
        return cls(default, f"{side}Offsets")

    @property
    def special(self) -> frozenset[int]:
        """Which of ``earliest`` and ``latest`` it requests anywhere, as the numbers that stand for them in JSON."""
        if self.kind == "offsets":
            return frozenset(value for value in self.by_partition.values() if value < 0)
        return frozenset({"earliest": [EARLIEST], "latest": [LATEST]}.get(self.kind, []))


class SourceOptions(NamedTuple):
    connection: ConnectionOptions
    topics: TopicSelection
    starting: OffsetBound
    ending: OffsetBound
    offset_ranges: Mapping[TopicPartition, Sequence[tuple[int, int]]] | None
    """Ranges for a batch, instead of one starting and one ending offset for each partition."""
    isolation: Isolation
    fetcher: Fetcher
    """Our own connection where possible, or always librdkafka."""
    group_id: str | None
    """The consumer group that shows the progress; None for no group."""
    include_headers: bool
    fails_on_data_loss: bool
    uses_latest_without_match: bool
    """Whether to begin at the end if no message is as late as the starting time; otherwise that is refused."""
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int
    max_records_per_partition: int

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool) -> Self:
        given = _texts(options)
        check_names(given, _SOURCE, _SOURCE_REFUSED, "source")
        isolation = given.pop("kafka.isolation.level", "read_committed")
        group_ids = [given.pop(name, None) for name in ("groupid", "kafka.group.id")]

        def optional(name: str, greatest: int) -> int | None:
            return parse_number(name, given[name.lower()], 1, greatest) if name.lower() in given else None

        parsed = cls(
            connection=ConnectionOptions.parse(given),
            topics=TopicSelection.parse(given),
            starting=OffsetBound.parse(given, "starting", "latest" if is_stream else "earliest"),
            ending=OffsetBound.parse(given, "ending", "latest"),
            offset_ranges=_offset_ranges(given),
            isolation=cast(Isolation, parse_choice("kafka.isolation.level", isolation, ("read_committed", "read_uncommitted"))),
            fetcher=cast(Fetcher, parse_choice("fetcher", given.get("fetcher", "own"), ("own", "librdkafka"))),
            group_id=next((group_id for group_id in group_ids if group_id), None),
            include_headers=_wants_headers(given),
            fails_on_data_loss=parse_boolean("failOnDataLoss", given.get("failondataloss", "true")),
            uses_latest_without_match=_uses_latest(given),
            max_offsets_per_trigger=optional("maxOffsetsPerTrigger", OFFSETS_MAX),
            min_offsets_per_trigger=optional("minOffsetsPerTrigger", OFFSETS_MAX),
            max_trigger_delay_ms=parse_duration_ms("maxTriggerDelay", given.get("maxtriggerdelay", f"{TRIGGER_DELAY_MS}ms")),
            min_partitions=optional("minPartitions", PARTITIONS_MAX) or 1,
            max_records_per_partition=optional("maxRecordsPerPartition", OFFSETS_MAX) or RECORDS_PER_SPLIT,
        )
        _check_source(parsed, given, is_stream=is_stream)
        return parsed


class SinkOptions(NamedTuple):
    connection: ConnectionOptions
    topic: str | None
    """The topic of all rows; None if the column ``topic`` names it."""
    delivery_guarantee: DeliveryGuarantee
    transactional_id_prefix: str
    transaction_timeout_ms: int | None
    """None means as long as the cluster allows."""
    write_id: str | None
    """The id of a batch write: a second write with the same id is skipped."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        given = _texts(options)
        check_names(given, (*_SINK, *_SINK_OF_SPARK), _SINK_REFUSED, "sink")
        guarantee = parse_choice(
            "deliveryGuarantee", given.get("deliveryguarantee", "exactly_once"), ("exactly_once", "at_least_once")
        )
        timeout = given.get("transactiontimeoutms")
        return cls(
            connection=ConnectionOptions.parse(given),
            topic=given.get("topic"),
            delivery_guarantee=cast(DeliveryGuarantee, guarantee),
            transactional_id_prefix=given.get("transactionalidprefix", "tidelog-spark"),
            transaction_timeout_ms=None
            if timeout is None
            else parse_number("transactionTimeoutMs", timeout, 1_000, 24 * 3_600_000),
            write_id=given.get("writeid"),
        )


def wants_headers(options: Mapping[str, str]) -> bool:
    """Whether to add the column of headers. Spark asks for the columns before it says whether it will read a batch or a
    stream."""
    given = _texts(options)
    check_names(given, _SOURCE, _SOURCE_REFUSED, "source")
    return _wants_headers(given)


def _wants_headers(given: Mapping[str, str]) -> bool:
    return parse_boolean("includeHeaders", given.get("includeheaders", "false"))


def _texts(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in options.items()}


def _uses_latest(given: Mapping[str, str]) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    return parse_choice(name, given.get(name.lower(), "error"), ("error", "latest")) == "latest"


def _offset_ranges(given: Mapping[str, str]) -> Mapping[TopicPartition, Sequence[tuple[int, int]]] | None:
    name = "offsetRanges"
    if name.lower() not in given:
        return None
    if others := [
        other for other in given if other.startswith(("startingoffsets", "startingtime", "endingoffsets", "endingtime"))
    ]:
        raise InvalidArgument(f"option {name}: it says where to begin and to end, and so does {others[0]}: give one of them")
    return parse_ranges_by_partition(name, given[name.lower()])


def _check_source(options: SourceOptions, given: Mapping[str, str], *, is_stream: bool) -> None:
    if is_stream:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "offsetRanges"):
            if name.lower() in given:
                raise InvalidArgument(f"option {name}: a stream has no end; read a batch, or use trigger(availableNow=True)")
    else:
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if name.lower() in given:
                raise InvalidArgument(f"option {name}: a batch has no triggers; it is for streams")
        if LATEST in options.starting.special:
            raise InvalidArgument("option startingOffsets: a batch that begins at latest reads nothing")
    if EARLIEST in options.ending.special:
        raise InvalidArgument("option endingOffsets: a batch that ends at earliest reads nothing")
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise InvalidArgument(f"options minOffsetsPerTrigger ({least}) and maxOffsetsPerTrigger ({most}) leave no room")


# -- the values of options ----------------------------------------------------------------------------------------------------


KAFKA_PREFIX = "kafka."
LATEST, EARLIEST = -1, -2
"""The numbers that stand for latest and earliest in offsets given as JSON."""

_BOOLEANS = {"true": True, "false": False}
_DURATION = re.compile(r"(\d{1,9})\s*(ms|milliseconds?|s|seconds?|m|min|minutes?|h|hours?|d|days?)?")
_UNIT_MS = {"m": 60_000, "s": 1_000, "h": 3_600_000, "d": 86_400_000}


def check_names(given: Mapping[str, str], known: Sequence[str], refused: Mapping[str, str], what: str) -> None:
    """``refused`` has names that other connectors know, each with what to do instead. Any name that begins with kafka. is a
    setting."""
    by_lower = {name.lower(): name for name in known}
    reasons = {name.lower(): (name, reason) for name, reason in refused.items()}
    for name in given:
        lower = name.lower()
        if lower in reasons:
            shown, reason = reasons[lower]
            raise InvalidArgument(f"option {shown}: {reason}")
        if lower not in by_lower and not lower.startswith(KAFKA_PREFIX):
            nearest = get_close_matches(lower, by_lower, n=1, cutoff=0.5)
            hint = f": did you mean {by_lower[nearest[0]]}?" if nearest else f"; there are {', '.join(sorted(known))}, kafka.*"
            raise InvalidArgument(f"the {what} has no option {name}{hint}")


def parse_boolean(name: str, text: str) -> bool:
    if text.strip().lower() not in _BOOLEANS:
        raise InvalidArgument(f"option {name} is true or false: not {text!r}")
    return _BOOLEANS[text.strip().lower()]


def parse_number(name: str, text: str, least: int, greatest: int) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit() and len(stripped) <= 19 and least <= int(stripped) <= greatest):
        raise InvalidArgument(f"option {name} is a number from {least} to {greatest}: not {text!r}")
    return int(stripped)


def parse_choice(name: str, text: str, choices: Sequence[str]) -> str:
    chosen = text.strip().lower().replace("-", "_")
    if chosen not in choices:
        raise InvalidArgument(f"option {name} is {' or '.join(choices)}: not {text!r}")
    return chosen


def parse_duration_ms(name: str, text: str) -> int:
    """Durations as in Spark: 15m, 30s, 500ms; a number alone is milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidArgument(f"option {name} is a time such as 15m, 30s or 500ms: not {text!r}")
    unit = found[2] or "ms"
    is_milliseconds = unit.startswith(("ms", "milli"))
    return int(found[1]) * (1 if is_milliseconds else _UNIT_MS[unit[0]])


def parse_topic_names(name: str, text: str) -> tuple[str, ...]:
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise InvalidArgument(f"option {name} lists names of topics separated by commas: not {text!r}")
    return tuple(dict.fromkeys(names))


def parse_pattern(name: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise InvalidArgument(f"option {name} is a regular expression: {text!r} is not one: {error}") from error


def parse_partitions(name: str, text: str) -> tuple[TopicPartition, ...]:
    """{"orders": [0, 1]}"""
    found = []
    for topic, numbers in _object(name, text, '{"orders": [0, 1]}').items():
        if not isinstance(numbers, list) or not numbers or not all(_is_number(each) and each >= 0 for each in numbers):
            raise InvalidArgument(f'option {name} is JSON such as {{"orders": [0, 1]}}: {topic!r} has no list of partitions')
        found += [TopicPartition(topic, each) for each in numbers]
    if not found:
        raise InvalidArgument(f"option {name} names no partition")
    return tuple(dict.fromkeys(found))


def parse_numbers_by_partition(name: str, text: str, least: int) -> dict[TopicPartition, int]:
    """{"orders": {"0": 23, "1": -2}}"""
    example = '{"orders": {"0": 23, "1": 0}}'
    found = {}
    for topic, by_partition in _object(name, text, example).items():
        if not isinstance(by_partition, dict):
            raise InvalidArgument(f"option {name} is JSON such as {example}: {topic!r} has no numbers by partition")
        for partition, value in by_partition.items():
            if not (partition.isascii() and partition.isdigit()) or not _is_number(value) or value < least:
                raise InvalidArgument(
                    f"option {name}: {topic}[{partition}] has {value!r}, which is not a number of at least {least}"
                )
            found[TopicPartition(topic, int(partition))] = value
    if not found:
        raise InvalidArgument(f"option {name} names no partition")
    return found


def parse_ranges_by_partition(name: str, text: str) -> dict[TopicPartition, tuple[tuple[int, int], ...]]:
    """Parse ranges such as {"orders": {"0": [[0, 100], [500, 600]]}}; ends are excluded."""
    example = '{"orders": {"0": [[0, 100], [500, 600]]}}'
    found = {}
    for topic, by_partition in _object(name, text, example).items():
        if not isinstance(by_partition, dict):
            raise InvalidArgument(f"option {name} is JSON such as {example}: {topic!r} has no ranges by partition")
        for partition, ranges in by_partition.items():
            if not (partition.isascii() and partition.isdigit() and isinstance(ranges, list) and all(map(_is_range, ranges))):
                raise InvalidArgument(
                    f"option {name}: {topic}[{partition}] has {ranges!r}, which is not a list of ranges of offsets"
                )
            found[TopicPartition(topic, int(partition))] = tuple((start, end) for start, end in ranges)
    return found


def _is_range(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)) and 0 <= value[0] <= value[1]


def _object(name: str, text: str, example: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"option {name} is JSON such as {example}: {text!r} is not: {error}") from error
    if not isinstance(value, dict):
        raise InvalidArgument(f"option {name} is JSON such as {example}: not {text!r}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
