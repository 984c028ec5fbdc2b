"""The options of source and sink: the stock connector's names, so that switching takes one word, and a few of our own.

This module alone decides what a name means. Spark accepts option names in any case and passes them in lower case, so names are
compared in lower case and shown as the documentation spells them. An unknown name is refused with the nearest known one, because
a misspelt option that was ignored would silently read from the wrong place.

Tables have the options of the stock connector and the settings of Kafka's clients that we do not need. Those that change nothing
about what is read or written are ignored with a line in the log; those that would, or that would weaken a promise, are refused
with the reason. The documentation is made of these tables.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
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

_logger = logging.getLogger(__name__)

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


# How Spark names the options of a table among its properties.
_TABLE_OPTION_PREFIX = "option."
_TABLE_EXAMPLE = "FROM orders WITH ('bootstrap'='127.0.0.1:9092', 'subscribe'='orders')"


class ForeignOption(NamedTuple):
    """An option of the stock connector, or a setting of Kafka's Java clients, that this connector does not need."""

    reason: str
    """Why it has no effect here; for values that are refused, what to do instead."""
    harmless: tuple[str, ...] | None
    """The values that are ignored, with a line in the log; None for all of them, and nothing if the option is refused."""


def _ignored(reason: str, *names: str) -> dict[str, ForeignOption]:
    return dict.fromkeys(names, ForeignOption(reason, None))


def _refused(reason: str, *names: str) -> dict[str, ForeignOption]:
    return dict.fromkeys(names, ForeignOption(reason, ()))


_BYTE_ARRAY = "org.apache.kafka.common.serialization.ByteArray"
_FOREIGN_TO_BOTH = {
    **_refused(
        "is of Java clients; librdkafka's are kafka.ssl.ca.location, kafka.sasl.username, kafka.sasl.password and so on",
        "kafka.sasl.jaas.config",
        "kafka.ssl.truststore.location",
        "kafka.ssl.truststore.password",
        "kafka.ssl.truststore.type",
        "kafka.ssl.keystore.type",
    ),
    **_refused(
        "librdkafka's are kafka.ssl.key.pem, kafka.ssl.certificate.pem and kafka.ssl.ca.pem",
        "kafka.ssl.keystore.certificate.chain",
        "kafka.ssl.keystore.key",
        "kafka.ssl.truststore.certificates",
    ),
    **_refused(
        "is a class of Java, and no Java connects to the brokers",
        "kafka.sasl.client.callback.handler.class",
        "kafka.sasl.login.callback.handler.class",
        "kafka.sasl.login.class",
        "kafka.sasl.oauthbearer.jwt.retriever.class",
        "kafka.sasl.oauthbearer.jwt.validator.class",
        "kafka.security.providers",
        "kafka.ssl.engine.factory.class",
    ),
    **_refused("librdkafka's is kafka.ssl.providers, with the providers of OpenSSL", "kafka.ssl.provider"),
    **_refused(
        "librdkafka's is kafka.sasl.oauthbearer.assertion.jwt.template.file", "kafka.sasl.oauthbearer.assertion.template.file"
    ),
    **_refused("librdkafka does not encode them", "kafka.sasl.oauthbearer.header.urlencode"),
    **_refused("nothing looks values up: read the value in Python, and give it itself", "kafka.config.providers"),
    "kafka.ssl.enabled.protocols": ForeignOption(
        "OpenSSL takes the newest version of TLS that the broker has too", ("tlsv1.2,tlsv1.3", "tlsv1.3,tlsv1.2")
    ),
    "kafka.ssl.protocol": ForeignOption(
        "OpenSSL takes the newest version of TLS that the broker has too", ("tls", "tlsv1.2", "tlsv1.3")
    ),
    **_ignored(
        "OpenSSL has its own",
        "kafka.ssl.keymanager.algorithm",
        "kafka.ssl.secure.random.implementation",
        "kafka.ssl.trustmanager.algorithm",
    ),
    **_ignored(
        "librdkafka obtains and renews tokens and tickets in its own way",
        "kafka.sasl.kerberos.ticket.renew.jitter",
        "kafka.sasl.kerberos.ticket.renew.window.factor",
        "kafka.sasl.login.connect.timeout.ms",
        "kafka.sasl.login.read.timeout.ms",
        "kafka.sasl.login.refresh.buffer.seconds",
        "kafka.sasl.login.refresh.min.period.seconds",
        "kafka.sasl.login.refresh.window.factor",
        "kafka.sasl.login.refresh.window.jitter",
        "kafka.sasl.login.retry.backoff.max.ms",
        "kafka.sasl.login.retry.backoff.ms",
    ),
    **_ignored(
        "the brokers check tokens, and a client only passes them on",
        "kafka.sasl.oauthbearer.clock.skew.seconds",
        "kafka.sasl.oauthbearer.expected.audience",
        "kafka.sasl.oauthbearer.expected.issuer",
        "kafka.sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "kafka.sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "kafka.sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "kafka.sasl.oauthbearer.jwks.endpoint.url",
        "kafka.sasl.oauthbearer.scope.claim.name",
    ),
    **_refused("there are no interceptors", "kafka.interceptor.classes"),
    **_ignored(
        "our own connections have one way of connecting, waiting and trying again",
        "kafka.client.dns.lookup",
        "kafka.connections.max.idle.ms",
        "kafka.default.api.timeout.ms",
        "kafka.metadata.max.age.ms",
        "kafka.metadata.recovery.rebootstrap.trigger.ms",
        "kafka.metadata.recovery.strategy",
        "kafka.receive.buffer.bytes",
        "kafka.reconnect.backoff.max.ms",
        "kafka.reconnect.backoff.ms",
        "kafka.retry.backoff.max.ms",
        "kafka.retry.backoff.ms",
        "kafka.send.buffer.bytes",
        "kafka.socket.connection.setup.timeout.max.ms",
    ),
    **_ignored("partitions are read from their leaders, and written to them", "kafka.client.rack"),
    **_ignored(
        "Spark's own metrics, and ProgressListener, show the progress",
        "kafka.auto.include.jmx.reporter",
        "kafka.enable.metrics.push",
        "kafka.metric.reporters",
        "kafka.metrics.num.samples",
        "kafka.metrics.recording.level",
        "kafka.metrics.sample.window.ms",
    ),
}
FOREIGN_TO_SOURCE: Mapping[str, ForeignOption] = {
    **_FOREIGN_TO_BOTH,
    **_refused("use startingOffsets, and failOnDataLoss for what is lost later", "kafka.auto.offset.reset"),
    **_refused("topics are named by subscribe, subscribePattern or assign: load() takes no path", "path"),
    "kafka.enable.auto.commit": ForeignOption(
        "the checkpoint has the offsets: leave it out (progress is shown to a group by groupId)", ("false",)
    ),
    **{
        f"kafka.{part}.deserializer": ForeignOption(
            "key and value are bytes: cast them in Spark", (f"{_BYTE_ARRAY}Deserializer".lower(),)
        )
        for part in ("key", "value")
    },
    **_ignored(
        "no consumer group is joined; groupId shows the progress as one",
        "groupIdPrefix",
        "kafka.auto.commit.interval.ms",
        "kafka.group.instance.id",
        "kafka.group.protocol",
        "kafka.group.remote.assignor",
        "kafka.heartbeat.interval.ms",
        "kafka.internal.throw.on.fetch.stable.offset.unsupported",
        "kafka.max.poll.interval.ms",
        "kafka.partition.assignment.strategy",
        "kafka.session.timeout.ms",
        "kafka.share.acknowledgement.mode",
        "kafka.share.acquire.mode",
    ),
    **_ignored(
        "requests are tried again for kafka.request.timeout.ms",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
    ),
    **_ignored(
        "tasks fetch whole batches; kafka.max.partition.fetch.bytes limits a request",
        "kafka.fetch.max.bytes",
        "kafka.fetch.min.bytes",
        "kafka.max.poll.records",
    ),
    **_ignored("topics are never created by reading", "kafka.allow.auto.create.topics", "kafka.exclude.internal.topics"),
}
# Options of a stream that a batch is given in vain, as with the stock connector.
_FOREIGN_TO_BATCH = _ignored("a batch has no triggers", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
FOREIGN_TO_SINK: Mapping[str, ForeignOption] = {
    **_FOREIGN_TO_BOTH,
    "kafka.acks": ForeignOption("it is always all", ("all", "-1")),
    "kafka.enable.idempotence": ForeignOption("it is always on", ("true",)),
    **{
        f"kafka.{part}.serializer": ForeignOption("key and value are bytes or text", (f"{_BYTE_ARRAY}Serializer".lower(),))
        for part in ("key", "value")
    },
    **_refused("use transactionalIdPrefix: every task has an id of its own", "kafka.transactional.id"),
    **_refused("use transactionTimeoutMs", "kafka.transaction.timeout.ms"),
    "kafka.transaction.two.phase.commit.enable": ForeignOption("the ledger decides what becomes of a batch", ("false",)),
    **_ignored(
        "batches are compressed at the default level of their codec",
        "kafka.compression.gzip.level",
        "kafka.compression.lz4.level",
        "kafka.compression.zstd.level",
    ),
    **_refused(
        "a row goes to the partition in its column, or to that of its key, as Java clients choose it", "kafka.partitioner.class"
    ),
    **_ignored("the column headers is written if it is there", "includeHeaders"),
    **_ignored(
        "whole columns are written, without a queue of messages",
        "kafka.buffer.memory",
        "kafka.max.block.ms",
        "kafka.max.in.flight.requests.per.connection",
        "kafka.metadata.max.idle.ms",
        "kafka.partitioner.adaptive.partitioning.enable",
        "kafka.partitioner.availability.timeout.ms",
        "kafka.partitioner.ignore.keys",
    ),
    **_ignored(
        "what fails in a way that may pass is sent again for two minutes",
        "kafka.delivery.timeout.ms",
        "kafka.request.timeout.ms",
        "kafka.retries",
    ),
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
            raise InvalidArgument(
                "option bootstrap (or kafka.bootstrap.servers) is missing: host:port of a broker (for a table of SQL: "
                f"{_TABLE_EXAMPLE})"
            )
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
    columns: tuple[str, ...] | None = None
    """The columns to read, if the user chose some with schema(...)."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool) -> Self:
        given = _source_options(options)
        if not is_stream:
            given = without_foreign(given, _FOREIGN_TO_BATCH)
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
        given = without_foreign(given, FOREIGN_TO_SINK)
        check_names(given, (*_SINK, *_SINK_OF_SPARK), "sink")
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
    stream, and when a table of its catalog is created: then with the table's properties (``provider`` and so on)."""
    if "provider" not in options:
        return _wants_headers(_source_options(options))
    if any(name.lower().startswith(_TABLE_OPTION_PREFIX) for name in options):
        raise InvalidArgument(
            "CREATE TABLE ... USING tidelog takes no OPTIONS, because Spark does not hand them to the queries of the table: give "
            f"them there, {_TABLE_EXAMPLE}, or use CREATE TEMPORARY VIEW"
        )
    return False


def _source_options(options: Mapping[str, str]) -> dict[str, str]:
    given = without_foreign(_texts(options), FOREIGN_TO_SOURCE)
    check_names(given, _SOURCE, "source")
    return given


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


def without_foreign(given: Mapping[str, str], foreign: Mapping[str, ForeignOption]) -> dict[str, str]:
    """Leave out what has no effect here, with a line in the log; refuse what would mean something else."""
    by_lower = {name.lower(): (name, option) for name, option in foreign.items()}
    kept = {}
    for name, value in given.items():
        if name not in by_lower:
            kept[name] = value
            continue
        shown, option = by_lower[name]
        if option.harmless is not None and value.strip().lower() not in option.harmless:
            raise InvalidArgument(f"option {shown}: {option.reason}")
        _log_ignored(shown, option.reason)
    return kept


@lru_cache(maxsize=200)
def _log_ignored(name: str, reason: str) -> None:
    """Once in a process, because options are parsed for every batch."""
    _logger.warning("option %s has no effect: %s", name, reason)


def check_names(given: Mapping[str, str], known: Sequence[str], what: str) -> None:
    """Refuse an unknown name. Any name that begins with kafka. is a setting."""
    by_lower = {name.lower(): name for name in known}
    for name in given:
        lower = name.lower()
        if lower not in by_lower and not lower.startswith(KAFKA_PREFIX):
            nearest = get_close_matches(lower, by_lower, n=1, cutoff=0.5)
            hint = f": did you mean {by_lower[nearest[0]]}?" if nearest else f"; there are {', '.join(sorted(known))}, kafka.*"
            raise InvalidArgument(f"the {what} has no option {name}{hint}")


def foreign_options_page() -> str:
    """The table of docs/SPARK.md."""
    lines = ["| option | where | |", "|---|---|---|"]
    rows: dict[tuple[str, str, str], list[str]] = {}
    for name in sorted({*FOREIGN_TO_SOURCE, *FOREIGN_TO_SINK, *_FOREIGN_TO_BATCH}, key=str.lower):
        sides = [("source", FOREIGN_TO_SOURCE), ("sink", FOREIGN_TO_SINK), ("batch", _FOREIGN_TO_BATCH)]
        for option in dict.fromkeys(table[name] for _, table in sides if name in table):
            where = " and ".join(side for side, table in sides if table.get(name) == option)
            allowed = " or ".join(f"`{value}`" for value in option.harmless or ())
            fate = "ignored" if option.harmless is None else f"refused, except {allowed}" if allowed else "refused"
            rows.setdefault((where, fate, option.reason), []).append(f"`{name}`")
    for (where, fate, reason), names in rows.items():
        lines.append(f"| {', '.join(names)} | {where} | {fate}: {reason} |")
    return "\n".join(lines)


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
