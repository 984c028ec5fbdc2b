"""The broker node: ports, data directory, metadata, partitions and handlers composed into one synchronous state machine.

The server gives it frames (``session``), time (``tick``, ``next_deadline_ms``) and the end of each burst of requests
(``end_of_burst``), and sends the bytes that it answers with. Work that would block goes through the executor port. So the same
code runs on sockets and in the simulator.

One broker is a cluster of one: the metadata log, the image, leader epochs, in-sync sets and high watermarks are those of a
cluster.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tidelog.broker.api import Api, Part
from tidelog.broker.client_quotas import ClientQuotas, QuotaWindow
from tidelog.broker.config import BrokerConfig, TopicSettings
from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.broker.coordinators import Coordinators
from tidelog.broker.fetch_sessions import FetchSessions
from tidelog.broker.handlers import TABLE
from tidelog.broker.handlers.metadata import MetadataCache
from tidelog.broker.handlers.produce import DiskBacklog
from tidelog.broker.lag_monitor import make_lag_monitor
from tidelog.broker.metadata_log import PartitionMetadataLog, SlicedProposals
from tidelog.broker.partitions import Partitions
from tidelog.broker.request_metrics import RequestMetrics
from tidelog.broker.session import ClientSession, resume_nothing
from tidelog.broker.throttling import Throttling
from tidelog.broker.timers import Timer, Timers
from tidelog.broker.transactions.concurrent_transactions import ConcurrentTransactions
from tidelog.broker.transactions.transactional_produce import TransactionalProduce
from tidelog.broker.transactions.verification import TransactionVerification
from tidelog.controller.config_sources import StaticConfig
from tidelog.controller.decision_queue import DecisionQueue
from tidelog.controller.election import leadership_of_returning_broker
from tidelog.controller.topics import TopicRules
from tidelog.coordinator.shard import ShardState
from tidelog.log.data_directory import DataDirectory
from tidelog.metadata.configs import ResourceType
from tidelog.metadata.features import FIRST_LEVELS, METADATA_VERSION, SUPPORTED_FEATURES
from tidelog.metadata.image import ClusterImage, ImageDelta
from tidelog.metadata.records import (
    AbortTransactionRecord,
    BrokerEndpoint,
    FeatureLevelRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    SupportedFeature,
    decode_record,
    encode_record,
)
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk
from tidelog.ports.executor import Executor
from tidelog.ports.randomness import Randomness
from tidelog.raft.quorum_state import QuorumStateFile
from tidelog.raft.single_voter import CommittedBatch, MetadataQuorum

# Group commit, durable marks, retention and compaction check the clock this often.
HOUSEKEEPING_MS = 100
# How often a stopping broker checks whether its work has ended, and how long it waits for that.
STOP_POLL_MS = 5
STOP_MS_MAX = 60_000

OnDone = Callable[[Exception | None], None]
Report = Callable[[str, dict[str, object]], None]


class BrokerNode:
    def __init__(
        self, config: BrokerConfig, *, disk: Disk, clock: Clock, randomness: Randomness, executor: Executor, report: Report
    ) -> None:
        """Open the data directory, which blocks. Raises what DataDirectory raises."""
        values = config.values
        self.config = config
        self.clock = clock
        self.randomness = randomness
        self.report = report
        self.timers = Timers(clock)
        # The metadata that the cluster has agreed on, and the settings that follow from it.
        self.image = ClusterImage()
        self.settings = TopicSettings(config, self.image)
        # Storage: the logs, and the partitions that this broker leads.
        self.directory = DataDirectory(
            config.data_path,
            disk=disk,
            clock=clock,
            randomness=randomness,
            executor=executor,
            cluster_id=config.cluster_id,
            node_id=config.node_id,
            settings_for=self.settings.log_settings,
            report=report,
            options=config.directory_options,
            on_synced=self._on_synced,
        )
        self.partitions = Partitions(config.node_id, self.image, self.directory, self.settings, report)
        # The controller: decisions, and the quorum that makes them durable.
        self.static_config = StaticConfig(config.node_id, config.texts)
        self.topic_rules = TopicRules(values["num.partitions"], values["default.replication.factor"], values["max.partitions"])
        self.decisions = DecisionQueue(self.image, self.propose)
        self._proposals = SlicedProposals(self.image, self._write_metadata)
        metadata_log = PartitionMetadataLog(self.directory)
        state_file = QuorumStateFile(disk, metadata_log.log.directory)
        self.quorum = MetadataQuorum(config.node_id, metadata_log, state_file, clock, self._on_committed)
        # Requests: the APIs, the state that is kept between requests, and the limits on clients.
        self.apis: Mapping[int, Api] = TABLE
        self.request_metrics = RequestMetrics(clock, self.apis)
        self.metadata_cache = MetadataCache(self.image)
        self.fetch_sessions = FetchSessions(clock, randomness, int(values["max.incremental.fetch.session.cache.slots"]))
        self.backlog = DiskBacklog(self.directory.commit, self.partitions.appends)
        self.throttling = Throttling(
            ClientQuotas(self.image.client_quotas, clock, self._quota_window(""), self._quota_window("controller."))
        )
        # Coordinators of groups and transactions.
        self.coordinators = Coordinators(self, executor)
        self.concurrent_transactions = ConcurrentTransactions(self.coordinators.transactions, self.timers)
        self.transaction_verification = TransactionVerification(self.coordinators.transactions, self.concurrent_transactions)
        self.transactional_produce = TransactionalProduce(
            self.image,
            self.partitions,
            self.transaction_verification,
            values["transaction.partition.verification.enable"],
        )
        self.lag = make_lag_monitor(self, disk, executor)
        # The lifecycle of this process.
        self.broker_epoch = -1
        self.is_running = False
        self._session_count = 0
        self._creation: Timer | None = None
        self._deletion: Timer | None = None

    def _quota_window(self, prefix: str) -> QuotaWindow:
        values = self.config.values
        return QuotaWindow(values[f"{prefix}quota.window.num"], values[f"{prefix}quota.window.size.seconds"])

    # -- starting and stopping -----------------------------------------------------------------------------------------------

    def start(self, on_started: OnDone) -> None:
        """Replay the metadata, lead the quorum and register. Clients can be served once ``on_started`` is called without an
        error."""

        def leading(error: Exception | None) -> None:
            if error is not None:
                on_started(error)
                return
            # The logs were opened before the metadata was known.
            self.partitions.take_over_logs()
            self._write_metadata(list(start_records(self.config, self.directory, self.image, self.randomness)), started)

        def started(error: Exception | None) -> None:
            if error is None:
                registered = self.image.brokers.find(self.config.node_id)
                self.broker_epoch = registered.broker_epoch if registered is not None else -1
                self.is_running = True
                self.throttling.quotas.limits_changed()
                self.timers.schedule(HOUSEKEEPING_MS, self._housekeeping)
                self.partitions.note_all_missing()
                self._create_partitions()
                self.coordinators.start()
                self.lag.start()
            on_started(error)

        self.quorum.start(leading)

    def begin_stop(self, on_stopped: OnDone) -> None:
        """Stop in order: start no more background work, wait until the running work has ended, then ``stop``. No more requests
        arrive. ``on_stopped`` gets the error if the broker could not stop cleanly."""
        self.is_running = False
        self.lag.stop()
        self.partitions.delete_all()
        cleaner = self.directory.cleaner
        if cleaner.log_being_cleaned is not None:
            cleaner.abort(cleaner.log_being_cleaned, lambda: None)
        deadline_ms = self.clock.monotonic_ms() + STOP_MS_MAX

        def look() -> None:
            if self.directory.is_idle:
                try:
                    self.stop()
                except Exception as error:
                    on_stopped(error)
                else:
                    on_stopped(None)
            elif self.clock.monotonic_ms() >= deadline_ms:
                on_stopped(TimeoutError(f"work on {self.config.data_path} did not end within {STOP_MS_MAX} ms"))
            else:
                self.end_of_burst()
                self.directory.marks.flush()
                self.timers.schedule(STOP_POLL_MS, look)

        look()

    def stop(self) -> None:
        """Stop cleanly: make everything durable and write the clean-shutdown mark for the next start. Blocks; running work has
        ended."""
        self.is_running = False
        self.directory.close(self.broker_epoch)

    def _create_partitions(self) -> None:
        self._creation = None
        delay_ms = self.partitions.create_some() if self.is_running else None
        if delay_ms is not None:
            self._creation = self.timers.schedule(delay_ms, self._create_partitions)

    def _delete_logs(self) -> None:
        self._deletion = self.timers.schedule(0, self._delete_logs) if self.partitions.delete_some() else None

    # -- what the shell calls ------------------------------------------------------------------------------------------------

    def session(
        self,
        client_host: str,
        send: Callable[[list[Part]], None],
        close: Callable[[str], None],
        resume: Callable[[], None] = resume_nothing,
    ) -> ClientSession:
        self._session_count += 1
        return ClientSession(self, self._session_count, client_host, send, close, resume)

    def connection_throttle_ms(self, client_host: str) -> int:
        return self.throttling.connection_throttle_ms(client_host)

    def tick(self) -> None:
        self.timers.run_due()
        self.end_of_burst()

    def next_deadline_ms(self) -> int | None:
        return self.timers.next_deadline_ms()

    def end_of_burst(self) -> None:
        """Commit together everything that the requests, completions or timers of this burst appended."""
        self._write_decisions()
        self.directory.kick()

    def _write_decisions(self) -> None:
        """Flush the coordinators until nothing follows: an append to a topic with relaxed durability counts at once, and what
        waited for it may decide again."""
        self.coordinators.flush()
        while self.partitions.appends.advance_relaxed():
            self.coordinators.flush()

    def _housekeeping(self) -> None:
        if self.is_running:
            # Schedule the next tick first: a failure below must not stop syncing, retention and compaction for good.
            self.timers.schedule(HOUSEKEEPING_MS, self._housekeeping)
            self.request_metrics.tick()
            try:
                self.directory.tick()
            except Exception as error:
                self.report_unexpected("housekeeping", error)

    # -- metadata ------------------------------------------------------------------------------------------------------------

    def propose(self, records: Sequence[MetadataRecord], on_done: OnDone) -> None:
        """Write a decision to the metadata log; ``on_done`` is called when it is committed and the image has it."""
        if records:
            self._proposals.propose(records, on_done)
        else:
            on_done(None)

    def _write_metadata(self, records: Sequence[MetadataRecord], on_done: OnDone) -> None:
        """Write one batch."""
        self.quorum.propose([encode_record(record) for record in records], on_done)

    def _on_committed(self, batch: CommittedBatch) -> None:
        delta = self.image.replay([decode_record(value)[0] for value in batch.values], batch.last_offset)
        if delta.is_empty or not self.is_running:
            return
        try:
            self._follow(delta)
        except Exception as error:
            # The batch is committed, and the commit pass that reported it has other callbacks to run.
            self.report_unexpected("following the metadata", error)

    def _follow(self, delta: ImageDelta) -> None:
        if delta.quotas_changed:
            self.throttling.quotas.limits_changed()
        self.partitions.apply(delta)
        self.coordinators.apply(delta)
        for resource_type, name in delta.configs_changed:
            if resource_type == ResourceType.TOPIC:
                self.partitions.settings_changed(name)
            elif resource_type == ResourceType.BROKER:
                for topic in self.image.topics:
                    self.partitions.settings_changed(topic.name)
        if delta.topics_deleted and self._deletion is None:
            self._delete_logs()
        if delta.partitions_changed and self._creation is None:
            self._create_partitions()

    def _on_synced(self) -> None:
        self.partitions.appends.pass_ended()
        # Decisions that follow from this pass are part of the next one, which is about to begin.
        self._write_decisions()

    def unready_reason(self) -> str | None:
        """Why clients should not be sent here yet; None when the broker is ready.

        It is ready when it is registered in the metadata and has loaded every coordinator shard that it leads. Until then clients
        that need a coordinator would only be told to come back. A shard that was dropped, or that is not available because its
        log is damaged, does not count: it concerns the groups and ids that belong to it, and turning away all other clients would
        help nobody. ``tidelog_coordinator_shards`` shows it."""
        if not self.is_running:
            return "the broker is starting or stopping"
        return _loading_reason(self.coordinators.groups) or _loading_reason(self.coordinators.transactions)

    # -- requests ------------------------------------------------------------------------------------------------------------

    def report_unexpected(self, where: str, error: Exception) -> None:
        """Report a fault of the broker (never of the client) that must not pass silently."""
        self.report("unexpected_error", {"where": where, "error": repr(error)})

    def on_unexpected_error(self, error: Exception) -> None:
        self.report_unexpected("Fetch", error)


LISTENER_NAME = "PLAINTEXT"
PLAINTEXT = 0


def start_records(
    config: BrokerConfig, directory: DataDirectory, image: ClusterImage, randomness: Randomness
) -> Iterator[MetadataRecord]:
    """The records that a broker writes into the metadata log when it starts: its registration, and that it leads its partitions
    again.

    After a crash every partition gets a new leader epoch. On a topic with relaxed durability the crash may have lost records that
    readers had seen, and a higher epoch is how their clients find out (KIP-320)."""
    if image.in_transaction:
        yield AbortTransactionRecord("the broker was started again")
    if METADATA_VERSION not in image.features:
        for name, level in FIRST_LEVELS.items():
            yield FeatureLevelRecord(name=name, feature_level=level)
    endpoint = BrokerEndpoint(LISTENER_NAME, config.advertised_host, config.advertised_port, PLAINTEXT)
    yield RegisterBrokerRecord(
        broker_id=config.node_id,
        incarnation_id=randomness.token(16),
        # In Kafka the epoch is the record's own offset. This is close enough, because it only has to rise.
        broker_epoch=image.last_offset + 1,
        end_points=(endpoint,),
        features=tuple(SupportedFeature(name, low, high) for name, (low, high) in SUPPORTED_FEATURES.items()),
        fenced=False,
        log_dirs=(directory.meta.directory_id,) if directory.meta.directory_id is not None else (),
    )
    yield from leadership_of_returning_broker(image, config.node_id, renew=not directory.was_stopped_cleanly)


def _loading_reason(service: CoordinatorService[Any]) -> str | None:
    waiting = service.untried_count
    loading = sum(1 for shard in service.runtime if shard.state is ShardState.LOADING and not shard.drops)
    if waiting or loading:
        return f"{service.runtime.topic}: {waiting + loading} partitions have not been loaded yet"
    return None
