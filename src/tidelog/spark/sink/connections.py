"""The sink's connections of one Python process: a worker runs many tasks, one after the other, and keeps them between tasks.

In exactly-once mode everything but the rows themselves goes over our own connections, which speak plaintext only. If a setting
is beyond them, the query does not start: with only some of its calls it could not keep its promise.
"""

import os
import time
from collections.abc import Mapping
from functools import cached_property

from tidelog.client.errors import InvalidArgument
from tidelog.client.fetch.lookup import PartitionLookup
from tidelog.client.fetch.settings import OwnSettings, own_settings
from tidelog.client.produce.producer import ColumnProducer
from tidelog.client.transactions.admin import TransactionAdmin
from tidelog.client.wire.errors import UnknownPartition
from tidelog.records.compression import CompressionType
from tidelog.spark.options import SinkOptions
from tidelog.spark.sink.job import SinkJob
from tidelog.spark.sink.ledger import LedgerCluster, TopicLedger
from tidelog.spark.sink.rows import RowRefused

CONNECTIONS_MAX = 8
JOBS_MAX = 8
CLIENT_ID = "tidelog-spark"
# librdkafka's default, if the user does not give message.max.bytes.
MESSAGE_BYTES_MAX = 1_000_000
# How long a topic's number of partitions is trusted.
PARTITIONS_SECONDS_MAX = 60.0
# What our producer understands, or does anyway: whole columns need no time to gather messages, and no queue of them.
_OWN_SETTINGS = ("linger.ms", "batch.size", "batch.num.messages", "message.max.bytes", "max.request.size")
_COMPRESSION_SETTINGS = ("compression.codec", "compression.type")
# What all our connections understand, whoever encodes the rows.
_CONNECTION_SETTINGS = ("client.id", "socket.connection.setup.timeout.ms", "socket.timeout.ms")
_SECURITY = ("sasl.", "ssl.", "oauthbearer_", "enable.ssl.", "enable.sasl.")


def check_security(options: SinkOptions) -> None:
    """Check the security settings before anything runs."""
    if options.delivery_guarantee == "at_least_once":
        return
    for name, value in options.connection.settings:
        if name.startswith(_SECURITY) or (name == "security.protocol" and value.upper() != "PLAINTEXT"):
            raise InvalidArgument(
                f"option kafka.{name}: exactly-once needs calls that librdkafka lacks, and ours speak plaintext only. Give "
                "a plaintext listener, or deliveryGuarantee=at_least_once"
            )


def own_compression(settings: Mapping[str, str]) -> CompressionType | None:
    """The compression of the batches that we encode; None if a setting is beyond our producer, and librdkafka has to write."""
    if settings_beyond(settings):
        return None
    compression = CompressionType.NONE
    for name in _COMPRESSION_SETTINGS:
        value = settings.get(name, compression.name)
        if value.upper() not in CompressionType.__members__:
            raise InvalidArgument(f"option kafka.{name} is none, gzip, snappy, lz4 or zstd: not {value!r}")
        compression = CompressionType[value.upper()]
    return compression


def settings_beyond(settings: Mapping[str, str]) -> list[str]:
    """The settings that our producer does not know."""
    known = (*_OWN_SETTINGS, *_CONNECTION_SETTINGS, *_COMPRESSION_SETTINGS)
    return [
        name
        for name, value in settings.items()
        if name not in known and (name != "security.protocol" or value.upper() != "PLAINTEXT")
    ]


def connection_settings(settings: Mapping[str, str]) -> OwnSettings:
    """How we connect. InvalidArgument for a value that makes no sense."""
    given = {name: value for name, value in settings.items() if name in _CONNECTION_SETTINGS}
    try:
        found = own_settings({"client.id": CLIENT_ID, **given})
    except InvalidArgument as error:
        raise InvalidArgument(f"option kafka.{error}") from error
    assert found is not None, "these settings are ours"
    return found


class SinkConnections:
    """The connections to one cluster, for one set of options."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        bootstrap = options.connection.bootstrap
        own = connection_settings(dict(options.connection.settings))
        self.lookup = PartitionLookup(bootstrap, own, "read_committed")
        # All of them know what one of them has learnt, of leaders, coordinators and addresses.
        brokers = self.lookup.brokers
        self.admin = TransactionAdmin(bootstrap, request_timeout_ms=own.timeout_ms, brokers=brokers)
        self._ledger_cluster = LedgerCluster(bootstrap, brokers, self.admin.topic_config)
        self._looked_up: dict[str, float] = {}
        self._plain_producer: ColumnProducer | None = None
        self._jobs: dict[str, tuple[SinkJob, TopicLedger]] = {}
        self._limits: dict[str, int] = {}
        self._is_greeted = False

    def greet(self) -> None:
        """Contact a broker. Raises BrokerUnreachable when none answers. Once one has answered, all calls wait for brokers that
        restart."""
        if not self._is_greeted:
            self.admin.greet()
            self._is_greeted = True

    def close(self) -> None:
        self.lookup.close()
        for _, ledger in self._jobs.values():
            ledger.close()
        self._jobs.clear()

    def job(self, name: str) -> SinkJob:
        if name not in self._jobs:
            if len(self._jobs) >= JOBS_MAX:
                self._jobs.pop(next(iter(self._jobs)))[1].close()
            prefix = self._options.transactional_id_prefix
            ledger = TopicLedger(self._ledger_cluster, prefix, name)
            self._jobs[name] = SinkJob(prefix, name, ledger, self.admin), ledger
        return self._jobs[name][0]

    @cached_property
    def transaction_timeout_ms(self) -> int:
        longest = self.admin.longest_timeout_ms()
        wanted = self._options.transaction_timeout_ms
        if wanted is not None and wanted > longest:
            raise InvalidArgument(f"option transactionTimeoutMs: {wanted} is more than the brokers allow ({longest})")
        return longest if wanted is None else wanted

    def producer(self, transactional_id: str | None) -> ColumnProducer:
        """A producer for one transaction, or the one without transactions, which all tasks of the process share."""
        compression = own_compression(dict(self._options.connection.settings)) or CompressionType.NONE
        if transactional_id is not None:
            return ColumnProducer(self.lookup, compression, (transactional_id, self.transaction_timeout_ms))
        if self._plain_producer is None:
            self._plain_producer = ColumnProducer(self.lookup, compression)
        return self._plain_producer

    def partitions_of(self, topic: str) -> int:
        """The number of partitions of the topic, which must exist. Those that are added are used within a minute."""
        now = time.monotonic()
        if now - self._looked_up.get(topic, -PARTITIONS_SECONDS_MAX) >= PARTITIONS_SECONDS_MAX:
            self.lookup.topics([topic])
            self._looked_up[topic] = now
        return len(self.lookup.known_topic(topic).leaders)

    def limit_of(self, topic: str) -> int:
        """The maximum size of a message of this topic, in bytes. Raises RowRefused if there is no such topic; it is not
        created."""
        if topic not in self._limits:
            try:
                limit = self.admin.topic_config(topic, "max.message.bytes")
            except UnknownPartition as error:
                raise RowRefused(f"there is no topic {topic}") from error
            settings = dict(self._options.connection.settings)
            ours = int(settings.get("message.max.bytes") or settings.get("max.request.size") or MESSAGE_BYTES_MAX)
            self._limits[topic] = min(ours, int(limit))
        return self._limits[topic]


_connections: dict[tuple[int, SinkOptions], SinkConnections] = {}


def sink_connections(options: SinkOptions) -> SinkConnections:
    """The process is part of the key: a connection that was inherited by fork belongs to another process."""
    key = os.getpid(), options
    if key not in _connections:
        if len(_connections) >= CONNECTIONS_MAX:
            _connections.pop(next(iter(_connections))).close()
        _connections[key] = SinkConnections(options)
    return _connections[key]


def forget_connections(options: SinkOptions) -> None:
    """Drop the connections after a failure, because what they remember may be outdated."""
    found = _connections.pop((os.getpid(), options), None)
    if found is not None:
        found.close()
