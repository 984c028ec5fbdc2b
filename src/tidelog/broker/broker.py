"""The broker node: ports, data directory, metadata, partitions and handlers composed into one synchronous state machine.

The server gives it frames (``session``), time (``tick``, ``next_deadline_ms``) and the end of each burst of requests
(``end_of_burst``), and sends the bytes that it answers with. Work that would block goes through the executor port. So the same
code runs on sockets and in the simulator.

One broker is a cluster of one: the metadata log, the image, leader epochs, in-sync sets and high watermarks are those of a
cluster.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tidelog.broker.api import Api, Part
from tidelog.broker.broker_channels import BrokerChannels
from tidelog.broker.broker_lifecycle import BrokerLifecycle, ControllerRegistrar, WaitingReports
from tidelog.broker.client_metrics import ClientMetrics
from tidelog.broker.client_quotas import ClientQuotas, QuotaWindow
from tidelog.broker.config import BrokerConfig, TopicSettings
from tidelog.broker.controller_channel import ControllerChannel
from tidelog.broker.controller_role import ControllerRole
from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.broker.coordinators import Coordinators
from tidelog.broker.fetch_sessions import FetchSessions
from tidelog.broker.handlers import EVERY_API, TABLES
from tidelog.broker.handlers.metadata import MetadataCache
from tidelog.broker.handlers.produce import DiskBacklog
from tidelog.broker.image_waiters import ImageWaiters
from tidelog.broker.lag_monitor import make_lag_monitor
from tidelog.broker.lost_replicas import LostReplicas
from tidelog.broker.metadata_log import CommittedBatch, PartitionRaftLog
from tidelog.broker.metadata_quorum import MetadataQuorum, QuorumPorts, raft_config
from tidelog.broker.metadata_snapshots import ImageState, snapshot_policy
from tidelog.broker.partitions import Partitions
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.replication_throttles import ReplicationThrottles
from tidelog.broker.request_metrics import RequestMetrics
from tidelog.broker.session import ClientSession, resume_nothing
from tidelog.broker.share_sessions import make_share_sessions
from tidelog.broker.throttling import Throttling
from tidelog.broker.timers import Timer, Timers
from tidelog.broker.transactions.concurrent_transactions import ConcurrentTransactions
from tidelog.broker.transactions.transactional_produce import TransactionalProduce
from tidelog.broker.transactions.verification import TransactionVerification
from tidelog.broker.validation_queue import ValidationQueue
from tidelog.broker.work_slices import WorkSlices
from tidelog.config.cluster import ProcessRole, names_a_quorum
from tidelog.config.listeners import ListenerRole, NamedListener
from tidelog.controller.config_sources import StaticConfig
from tidelog.controller.topics import TopicRules
from tidelog.coordinator.shard import ShardState
from tidelog.log.data_directory import DataDirectory
from tidelog.metadata.configs import ResourceType
from tidelog.metadata.image import ClusterImage, ImageDelta
from tidelog.metadata.records import decode_record
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk
from tidelog.ports.executor import Executor
from tidelog.ports.network import Network
from tidelog.ports.randomness import Randomness
from tidelog.raft.quorum_state import QuorumStateFile

# Group commit, durable marks, retention and compaction check the clock this often.
HOUSEKEEPING_MS = 100
# How often a stopping broker checks whether its work has ended, and how long it waits for that.
STOP_POLL_MS = 5
STOP_MS_MAX = 60_000
# How long a leader that stops waits for the others to hear of it, so that they elect somebody at once.
RESIGN_MS = 50

OnDone = Callable[[Exception | None], None]
Report = Callable[[str, dict[str, object]], None]


class BrokerNode:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk,
        clock: Clock,
        randomness: Randomness,
        executor: Executor,
        network: Network,
        report: Report,
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
        self.throttles = ReplicationThrottles(config, self.image, self.settings, clock)
        self.partitions = Partitions(config.node_id, self.image, self.directory, self.settings, self.throttles, report)
        # The quorum that keeps the metadata, the controller that decides when this node leads it, and the ways to the active one.
        self.incarnation_id = randomness.token(16)
        self.static_config = StaticConfig(config.node_id, {**config.texts, "advertised.listeners": config.advertised_listeners})
        self.topic_rules = TopicRules(values["num.partitions"], values["default.replication.factor"], values["max.partitions"])
        self.quorum = self._make_quorum(disk, executor, network)
        self.controller = ControllerRole(self, network)
        self.lifecycle = BrokerLifecycle(self, network)
        self._registrar = ControllerRegistrar(self, network)
        self._waiting_reports = WaitingReports(self)
        self.forwarding = ControllerChannel(self, network, "forwarding")
        self.own_requests = ControllerChannel(self, network, "broker")
        self.image_waiters = ImageWaiters(self.timers)
        self.replicas = ReplicaManager(self, network)
        self.lost_replicas = LostReplicas(self)
        self.peers = BrokerChannels(self, network)
        # Requests: the APIs, the state that is kept between requests, and the limits on clients.
        self.apis: Mapping[int, Api] = EVERY_API
        self.tables: Mapping[ListenerRole, Mapping[int, Api]] = TABLES
        self.request_metrics = RequestMetrics(clock, self.apis)
        self.work_slices = WorkSlices(clock, self.timers, executor, int(values["queued.max.request.bytes"]))
        self.metadata_cache = MetadataCache(self.image)
        self.fetch_sessions = FetchSessions(clock, randomness, int(values["max.incremental.fetch.session.cache.slots"]))
        self.client_metrics = ClientMetrics(self.image, clock, randomness, int(values["telemetry.max.bytes"]))
        self.validations = ValidationQueue(executor, self.timers, clock)
        self.backlog = DiskBacklog(self.directory.commit, self.partitions.appends)
        self.throttling = self._make_throttling()
        self._make_coordinators(disk, executor)
        self.is_running = False
        self._is_stopping = False
        self._session_count = 0
        self._commit_timer: Timer | None = None
        self._creation: Timer | None = None
        self._deletion: Timer | None = None

    def _make_coordinators(self, disk: Disk, executor: Executor) -> None:
        """The coordinators of groups and transactions, and what depends on them."""
        self.coordinators = Coordinators(self, executor)
        self.concurrent_transactions = ConcurrentTransactions(self.coordinators.transactions, self.timers)
        self.transaction_verification = TransactionVerification(
            self.coordinators.transactions, self.concurrent_transactions, self.config.node_id, self.peers
        )
        self.share_sessions = make_share_sessions(self)
        is_verified = self.config.values["transaction.partition.verification.enable"]
        self.transactional_produce = TransactionalProduce(self.image, self.partitions, self.transaction_verification, is_verified)
        self.lag = make_lag_monitor(self, disk, executor)

    def _make_quorum(self, disk: Disk, executor: Executor, network: Network) -> MetadataQuorum:
        directory = self.directory
        log = PartitionRaftLog(directory)
        ports = QuorumPorts(
            directory=directory,
            log=log,
            state_file=QuorumStateFile(disk, log.log.directory, directory.reserve.use),
            clock=self.clock,
            randomness=self.randomness,
            executor=executor,
            timers=self.timers,
            network=network,
            report=self.report,
        )
        state = ImageState(self.image, self._on_committed, self._on_image_changed)
        config = raft_config(self.config, directory.meta.directory_id)
        quorum = MetadataQuorum(config, ports, state, snapshot_policy(self.config.values))
        quorum.watch(self._on_quorum_change, self._on_applied)
        return quorum

    def _make_throttling(self) -> Throttling:
        windows = self._quota_window(""), self._quota_window("controller.")
        return Throttling(ClientQuotas(self.image.client_quotas, self.clock, *windows))

    def _quota_window(self, prefix: str) -> QuotaWindow:
        values = self.config.values
        return QuotaWindow(values[f"{prefix}quota.window.num"], values[f"{prefix}quota.window.size.seconds"])

    # -- starting and stopping -----------------------------------------------------------------------------------------------

    def start(self, on_started: OnDone) -> None:
        """Take part in the quorum and join the cluster. Clients can be served once ``on_started`` is called without an error; the
        other controllers are served as soon as this returns."""

        self._tick_commit()
        self.quorum.start()
        self._registrar.start()
        if ProcessRole.BROKER in self.config.roles:
            self.lifecycle.start(self._begin_to_serve, on_started)
        else:
            self.is_running = True
            self.timers.schedule(HOUSEKEEPING_MS, self._housekeeping)
            on_started(None)
        self._waiting_reports.look()

    def _begin_to_serve(self) -> None:
        """The image has all that was decided before this broker registered."""
        # The logs were opened before the metadata was known.
        self.throttles.rates_changed()
        self.partitions.take_over_logs()
        self.is_running = True
        if self._commit_timer is not None:
            self._commit_timer.cancel()
        self.throttling.quotas.limits_changed()
        self.timers.schedule(HOUSEKEEPING_MS, self._housekeeping)
        self.partitions.note_all_missing()
        self._create_partitions()
        self._delete_logs()
        self.replicas.start()
        self.lost_replicas.start()
        self.coordinators.start()
        self.lag.start()

    def _tick_commit(self) -> None:
        """Until the broker runs: a sync that lacked a descriptor or memory is tried again, as housekeeping does later."""
        if not self.is_running and not self._is_stopping:
            self._commit_timer = self.timers.schedule(HOUSEKEEPING_MS, self._tick_commit)
            self.directory.commit.tick()
            self.directory.kick()

    def leave(self, on_left: Callable[[], None]) -> None:
        """Let other brokers take over; this one serves until they have. In vain if it takes too long."""
        self.lifecycle.leave(on_left)

    def begin_stop(self, on_stopped: OnDone) -> None:
        """Stop in order: leave the cluster, resign from leading the quorum, start no more background work, wait until the running
        work has ended, then ``stop``. Clients send no more requests; other controllers do until the end. ``on_stopped`` gets the
        error if the broker could not stop cleanly."""

        def left() -> None:
            self._resign(lambda: self._end_work(on_stopped))

        self.leave(left)

    def _resign(self, on_resigned: Callable[[], None]) -> None:
        has_others = self.quorum.is_leader and len(self.quorum.voters.voters) > 1
        self.quorum.resign()
        self.timers.schedule(RESIGN_MS if has_others else 0, on_resigned)

    def _end_work(self, on_stopped: OnDone) -> None:
        self.is_running = False
        self._is_stopping = True
        self.controller.stop()
        for part in (self.forwarding, self.own_requests, self._registrar, self.lifecycle, self.peers, self._waiting_reports):
            part.close()
        self.lag.stop()
        self.lost_replicas.stop()
        self.replicas.stop()
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
                # A swap that waits for a descriptor or for space is finished first.
                if cleaner.log_being_cleaned is not None:
                    cleaner.tick()
                self.directory.marks.flush()
                self.timers.schedule(STOP_POLL_MS, look)

        look()

    def stop(self) -> None:
        """Stop cleanly: make everything durable and write the clean-shutdown mark for the next start. Blocks; running work has
        ended."""
        self.is_running = False
        self._is_stopping = True
        self.quorum.close()
        self.directory.close(self.lifecycle.epoch_of_clean_stop)

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
        listener_index: int | None = None,
    ) -> ClientSession:
        """``listener_index`` is the place of the client's listener in ``config.listeners``; None means the first for clients."""
        self._session_count += 1
        listener = None if listener_index is None else self.config.listeners[listener_index]
        return ClientSession(self, self._session_count, client_host, send, close, resume, listener)

    @property
    def controller_listeners(self) -> frozenset[int]:
        """The places of the controllers' listeners, which open before this node has started and close after it has stopped."""
        indexes = range(len(self.config.listeners))
        return frozenset(index for index in indexes if self.config.listeners[index].role is ListenerRole.CONTROLLER)

    def inner_session(
        self,
        client_host: str,
        send: Callable[[list[Part]], None],
        close: Callable[[str], None],
        listener: NamedListener,
        on_not_controller: Callable[[], None],
    ) -> ClientSession:
        """A session without a connection, for a request to the controller that was forwarded or never left this process."""
        self._session_count += 1
        session = ClientSession(self, self._session_count, client_host, send, close, listener=listener)
        session.when_not_controller(on_not_controller)
        return session

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
        self.replicas.end_of_burst()
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

    def _on_committed(self, batch: CommittedBatch) -> None:
        self._on_image_changed(self.image.replay([decode_record(value)[0] for value in batch.values], batch.last_offset))

    def _on_image_changed(self, delta: ImageDelta) -> None:
        """The image has changed, by a batch or by a snapshot that took its place."""
        if delta.is_empty or not self.is_running:
            return
        try:
            self._follow(delta)
            self.image_waiters.image_changed()
        except Exception as error:
            # The batch is committed, and the commit pass that reported it has other callbacks to run.
            self.report_unexpected("following the metadata", error)

    def _on_applied(self) -> None:
        self.lifecycle.image_changed()

    def _on_quorum_change(self) -> None:
        if self.quorum.failure is not None:
            self.lifecycle.fail_start(self.quorum.failure)
        self.controller.quorum_changed()
        for follower in (self.lifecycle, self.forwarding, self.own_requests, self._registrar):
            follower.controller_changed()
        self._waiting_reports.look()

    def _follow(self, delta: ImageDelta) -> None:
        if delta.quotas_changed:
            self.throttling.quotas.limits_changed()
        self.partitions.apply(delta)
        self.replicas.apply(delta)
        self.coordinators.apply(delta)
        for resource_type, name in delta.configs_changed:
            if resource_type == ResourceType.TOPIC:
                self.partitions.settings_changed(name)
                self.replicas.settings_changed(name)
            elif resource_type == ResourceType.BROKER:
                self.throttles.rates_changed()
                for topic in self.image.topics:
                    self.partitions.settings_changed(topic.name)
        if (delta.topics_deleted or delta.partitions_changed) and self._deletion is None:
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
        if self.quorum.failure is not None and names_a_quorum(self.config.values):
            return f"the broker no longer follows the cluster's metadata, so it must be restarted: {self.quorum.failure}"
        coordinators = self.coordinators
        services = (coordinators.groups, coordinators.transactions, coordinators.share_states.service)
        return next((reason for service in services if (reason := _loading_reason(service)) is not None), None)

    # -- requests ------------------------------------------------------------------------------------------------------------

    def report_unexpected(self, where: str, error: Exception) -> None:
        """Report a fault of the broker (never of the client) that must not pass silently."""
        self.report("unexpected_error", {"where": where, "error": repr(error)})

    def on_unexpected_error(self, error: Exception) -> None:
        self.report_unexpected("Fetch", error)


def _loading_reason(service: CoordinatorService[Any]) -> str | None:
    waiting = service.untried_count
    loading = sum(1 for shard in service.runtime if shard.state is ShardState.LOADING and not shard.drops)
    if waiting or loading:
        return f"{service.runtime.topic}: {waiting + loading} partitions have not been loaded yet"
    return None
