"""The sink's connections of one Python process: a worker runs many tasks, one after the other, and keeps them between tasks.

In exactly-once mode everything but the rows themselves goes over our own connections, which speak plaintext only. If a setting
is beyond them, the query does not start: with only some of its calls it could not keep its promise.
"""

import os
from functools import cached_property

from tidelog.client.errors import InvalidArgument
from tidelog.client.transactions.admin import TransactionAdmin
from tidelog.client.wire.brokers import Brokers
from tidelog.client.wire.errors import UnknownPartition
from tidelog.spark.options import SinkOptions
from tidelog.spark.sink.job import SinkJob
from tidelog.spark.sink.ledger import LedgerCluster, TopicLedger
from tidelog.spark.sink.rows import RowRefused

CONNECTIONS_MAX = 8
JOBS_MAX = 8
CLIENT_ID = "tidelog-spark"
CONNECT_SECONDS_MAX = 5.0
REQUEST_SECONDS_MAX = 60.0
# librdkafka's default, if the user does not give message.max.bytes.
MESSAGE_BYTES_MAX = 1_000_000
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


class SinkConnections:
    """The connections to one cluster, for one set of options."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        bootstrap = options.connection.bootstrap
        self._brokers = Brokers(bootstrap, CLIENT_ID, CONNECT_SECONDS_MAX, REQUEST_SECONDS_MAX)
        self.admin = TransactionAdmin(bootstrap, client_id=CLIENT_ID, request_timeout_ms=int(REQUEST_SECONDS_MAX * 1000))
        self._ledger_cluster = LedgerCluster(bootstrap, self._brokers, self.admin.topic_config)
        self._jobs: dict[str, tuple[SinkJob, TopicLedger]] = {}
        self._limits: dict[str, int] = {}
        self._is_greeted = False

    def greet(self) -> None:
        """Contact a broker. Raises BrokerUnreachable when none answers. Once one has answered, the admin's calls wait for brokers
        that restart."""
        if not self._is_greeted:
            self.admin.metadata()
            self._is_greeted = True

    def close(self) -> None:
        self._brokers.close()
        self.admin.close()
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
