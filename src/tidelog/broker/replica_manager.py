"""The replicas of this broker: it copies the partitions that others lead, and keeps the in-sync sets of those that it leads.

For each leader there is one ``ReplicaFetcher`` with a connection of its own to the leader's listener between brokers. Which
partitions it copies follows from the image alone. Logs are created a few at a time. A log that is still being truncated is not
led or copied until that has ended.

In-sync sets: a follower that has caught up is proposed at the end of the burst in which it fetched; lagging ones are looked for
twice in ``replica.lag.time.max.ms``. All proposals of a moment go to the controller in one AlterPartition request. The channel
repeats a request whose answer was lost, so a refusal may follow an attempt that will still be decided: a refusal counts as an
unknown outcome.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.peer_channel import ChannelState, PeerChannel, PeerError, PeerOptions, PeerRequest, PeerUnreachable
from tidelog.broker.timers import Timer
from tidelog.log.errors import LogError, LogOffline, StorageError
from tidelog.log.partition_log import PartitionLog
from tidelog.log.time_budget import TimeBudget
from tidelog.metadata.image import ImageDelta
from tidelog.metadata.records import NO_LEADER
from tidelog.ports.network import Network
from tidelog.replication.fetcher import (
    FetcherOptions,
    FetcherPorts,
    FollowedPartition,
    OnDone,
    ReplicaFetcher,
    ReplicaKey,
)
from tidelog.replication.in_sync_replicas import InSyncProposal
from tidelog.replication.partition import Partition
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.fetch import decode_fetch_response, encode_fetch_request
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode

# Fetches carry the follower's broker epoch from this version on.
FETCH_VERSIONS = (15, 17)
ALTER_PARTITION = ApiKey.ALTER_PARTITION, 3
# How much longer than the longest wait at the leader a follower waits for an answer.
ANSWER_MARGIN_MS = 5_000
# For so long after its connection ended clients are told that a leader is not available: about the time until others lead, if its
# process is gone.
LOST_LEADER_MS = 1_000
# Each opens or creates a log.
REPLICAS_PER_SLICE = 16
# When a log cannot be opened, or is still being truncated, the next attempt is made after this time.
RETRY_MS = 100
PROPOSAL_MS_MAX = 10_000
PROPOSALS_MAX = 1_000
# After a proposal that failed, the next ones wait for the metadata to settle.
PROPOSAL_RETRY_MS = 100
# The controller decided as asked, or knows a later state of the partition: the metadata will bring it. After any other answer
# nothing may ever come, so the leader asks again.
_SETTLED = frozenset(
    (
        ErrorCode.NONE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)


class LeaderConnection:
    """A fetcher and its connection to the leader."""

    __slots__ = ("_channel", "_deadline_ms", "_lost_since_ms", "_node", "_timer", "fetcher")

    def __init__(self, node: "BrokerNode", network: Network, address: tuple[str, int], ports: FetcherPorts) -> None:
        values = node.config.values
        self._node = node
        options = FetcherOptions(
            node.config.node_id,
            int(values["replica.fetch.wait.max.ms"]),
            int(values["replica.fetch.min.bytes"]),
            int(values["replica.fetch.response.max.bytes"]),
            int(values["replica.fetch.max.bytes"]),
        )
        self.fetcher = ReplicaFetcher(options, ports)
        peer_options = PeerOptions(client_id=f"broker-{node.config.node_id}-fetcher", backoff_ms_max=RETRY_MS)
        self._channel = PeerChannel(network, node.timers, *address, peer_options)
        self._timer: Timer | None = None
        self._deadline_ms = 0
        self._lost_since_ms: int | None = None

    def move_to(self, address: tuple[str, int]) -> None:
        self._channel.move_to(*address)

    def poll(self) -> None:
        request = self.fetcher.poll()
        if request is not None:
            request = request._replace(replica_epoch=self._node.lifecycle.broker_epoch)
            timeout_ms = request.wait_ms_max + ANSWER_MARGIN_MS
            encode = partial(encode_fetch_request, request=request)
            self._channel.send(PeerRequest(ApiKey.FETCH, FETCH_VERSIONS, encode, self._answered, self._failed, timeout_ms))
        deadline_ms = self.fetcher.next_deadline_ms()
        if deadline_ms is not None and (self._timer is None or deadline_ms < self._deadline_ms):
            if self._timer is not None:
                self._timer.cancel()
            self._deadline_ms = deadline_ms
            delay_ms = max(0, deadline_ms - self._node.clock.monotonic_ms())
            self._timer = self._node.timers.schedule(delay_ms, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        self.poll()

    def _answered(self, version: int, body: memoryview) -> None:
        self._lost_since_ms = None
        try:
            response = decode_fetch_response(version, body, 0)
        except MalformedRequest as error:
            self._node.report_unexpected("a fetch from a leader", error)
            self.fetcher.request_failed()
        else:
            self.fetcher.take_response(response)
        self.poll()

    def _failed(self, error: PeerError) -> None:
        """The controller decides what a silent leader means. That a connection ended is worth a hint to clients."""
        if isinstance(error, PeerUnreachable) and self._lost_since_ms is None:
            self._lost_since_ms = self._node.clock.monotonic_ms()
        self.fetcher.request_failed()
        self.poll()

    @property
    def has_just_ended(self) -> bool:
        """Whether the connection has ended a moment ago, and there is no other one yet."""
        if self._lost_since_ms is None or self._channel.state is ChannelState.READY:
            return False
        return self._node.clock.monotonic_ms() - self._lost_since_ms < LOST_LEADER_MS

    def close(self) -> None:
        self._channel.close()
        if self._timer is not None:
            self._timer.cancel()


class ReplicaManager:
    def __init__(self, node: "BrokerNode", network: Network) -> None:
        self._node = node
        self._network = network
        self._leaders: dict[int, LeaderConnection] = {}
        self._leader_of: dict[ReplicaKey, int] = {}
        self._to_follow: dict[ReplicaKey, None] = {}
        self._following: Timer | None = None
        self._ready: dict[int, None] = {}
        self._is_running = False
        self._lag_ms_max = int(node.config.values["replica.lag.time.max.ms"])
        self._is_asking = False
        self._proposed: list[tuple[Partition, InSyncProposal]] = []
        self._catching_up: dict[Partition, None] = {}

    @property
    def followed_count(self) -> int:
        return sum(len(leader.fetcher) for leader in self._leaders.values())

    @property
    def fetched_bytes(self) -> int:
        return sum(leader.fetcher.fetched_bytes for leader in self._leaders.values())

    def lost_leaders(self) -> tuple[int, ...]:
        """The leaders whose connections have just ended. Most likely their processes are gone, and the controller will soon elect
        others."""
        return tuple(leader_id for leader_id, leader in self._leaders.items() if leader.has_just_ended)

    # -- following the image -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._is_running = True
        for topic in self._node.image.topics:
            for index in topic.partitions:
                self._note(topic.topic_id, index)
        self._node.timers.schedule(self._lag_ms_max // 2, self._look_for_lagging)

    def stop(self) -> None:
        self._is_running = False
        for leader in self._leaders.values():
            leader.close()
        self._leaders = {}

    def apply(self, delta: ImageDelta) -> None:
        for topic in delta.topics_deleted.values():
            for index in topic.partitions:
                self._stop_following((topic.topic_id, index))
        for topic_id, indexes in delta.partitions_changed.items():
            for index in indexes:
                self._note(topic_id, index)
        for broker_id in delta.brokers_changed:
            leader = self._leaders.get(broker_id)
            address = self._address_of(broker_id)
            if leader is not None and address is not None:
                leader.move_to(address)

    def follow_again(self, key: ReplicaKey) -> None:
        """The log of this replica, which could not be opened, is gone: copy it from its leader."""
        self._note(*key)

    def settings_changed(self, name: str) -> None:
        """The partitions of a topic may be throttled from now on, or no longer."""
        topic = self._node.image.topic(name)
        if topic is None:
            return
        for index in topic.partitions:
            key = (topic.topic_id, index)
            leader = self._leaders.get(self._leader_of.get(key, NO_LEADER))
            followed = leader.fetcher.find(key) if leader is not None else None
            if followed is not None:
                followed.change_throttle(self._node.throttles.of_follower(name, index))

    def _note(self, topic_id: bytes, index: int) -> None:
        topic = self._node.image.topic_by_id(topic_id)
        state = topic.partitions.get(index) if topic is not None else None
        key, node_id = (topic_id, index), self._node.config.node_id
        leader_id = self._leader_of.get(key, NO_LEADER)
        if state is None or node_id not in state.replicas or state.leader in (node_id, NO_LEADER):
            self._stop_following(key)
            return
        followed = self._leaders[leader_id].fetcher.find(key) if leader_id in self._leaders else None
        if followed is not None and followed.leader_epoch == state.leader_epoch:
            followed.follow(node_id, state)
            return
        self._stop_following(key)
        self._to_follow[key] = None
        if self._following is None:
            self._following = self._node.timers.schedule(0, self._follow_some)

    def _stop_following(self, key: ReplicaKey) -> None:
        self._to_follow.pop(key, None)
        leader = self._leaders.get(self._leader_of.pop(key, NO_LEADER))
        if leader is not None:
            leader.fetcher.remove(key)

    def _follow_some(self) -> None:
        self._following = None
        work, delay_ms = TimeBudget(self._node.clock, REPLICAS_PER_SLICE), 0
        for key in list(self._to_follow):
            if work.is_over or not self._is_running:
                break
            work.spend()
            del self._to_follow[key]
            if not self._follow(key):
                self._to_follow[key] = None
                delay_ms = RETRY_MS
        if self._to_follow and self._is_running:
            self._following = self._node.timers.schedule(delay_ms, self._follow_some)

    def _follow(self, key: ReplicaKey) -> bool:
        """Begin to copy a partition. Returns False if that has to be tried again."""
        node = self._node
        topic = node.image.topic_by_id(key[0])
        if topic is None:
            return True
        state = topic.partitions[key[1]]
        address = self._address_of(state.leader)
        if address is None:
            return False
        try:
            log = node.partitions.log_of_replica(topic, key[1])
        except LogOffline:
            return True
        except (StorageError, LogError) as error:
            node.report("replica_not_created", {"partition": f"{topic.name}-{key[1]}", "error": str(error)})
            return False
        if log.is_truncating:
            return False
        leader = self._leaders.get(state.leader)
        if leader is None:
            ports = self._fetcher_ports(state.leader)
            leader = self._leaders[state.leader] = LeaderConnection(node, self._network, address, ports)
        self._leader_of[key] = state.leader
        followed = FollowedPartition(*key, log, node.config.node_id, state)
        followed.change_throttle(node.throttles.of_follower(topic.name, key[1]))
        leader.fetcher.add(followed)
        return True

    def _address_of(self, broker_id: int) -> tuple[str, int] | None:
        broker = self._node.image.brokers.find(broker_id)
        name = self._node.config.values["inter.broker.listener.name"]
        endpoint = broker.endpoint(name.upper()) if broker is not None and name else None
        return (endpoint.host, endpoint.port) if endpoint is not None else None

    def _fetcher_ports(self, leader_id: int) -> FetcherPorts:
        node, directory = self._node, self._node.directory

        def ready() -> None:
            self._ready[leader_id] = None

        def went_offline(partition: FollowedPartition) -> None:
            node.report("replica_offline", {"partition": partition.log.name, "reason": partition.log.offline_reason})

        return FetcherPorts(
            clock=node.clock,
            report=node.report,
            wait_durable=directory.commit.wait,
            truncate=directory.truncate,
            start_over=directory.begin_again,
            raise_start=self._raise_start,
            on_ready=ready,
            on_offline=went_offline,
        )

    def _raise_start(self, log: PartitionLog, offset: int) -> None:
        def done(error: BaseException | None) -> None:
            if error is not None:
                self._node.report("log_start_not_raised", {"partition": log.name, "error": str(error)})

        on_done: OnDone = done
        self._node.directory.delete_records(log, offset, on_done)

    # -- bursts --------------------------------------------------------------------------------------------------------------

    def end_of_burst(self) -> None:
        """Wake the followers that wait here, send what this broker's fetchers are ready to send, and propose in-sync sets."""
        appends = self._node.partitions.appends
        appends.wake_followers()
        if self._ready:
            ready, self._ready = self._ready, {}
            for leader_id in ready:
                leader = self._leaders.get(leader_id)
                if leader is not None:
                    leader.poll()
        for partition in appends.take_catching_up():
            self._catching_up[partition] = None
        if self._catching_up and not self._is_asking:
            self._propose_joining()

    # -- in-sync sets --------------------------------------------------------------------------------------------------------

    def _propose_joining(self) -> None:
        catching_up, self._catching_up = self._catching_up, {}
        for partition in catching_up:
            if partition.closed_by is None:
                in_sync, high_watermark = partition.in_sync, partition.log.high_watermark
                joining = tuple(
                    follower.broker_id
                    for follower in in_sync.followers
                    if in_sync.may_join(follower, high_watermark) and self._is_eligible(follower.broker_id, follower.broker_epoch)
                )
                self._propose(partition, joining=joining)
        self._ask()

    def _is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        broker = self._node.image.brokers.find(broker_id)
        return broker is not None and broker.is_active and broker.broker_epoch == broker_epoch

    def _look_for_lagging(self) -> None:
        if not self._is_running:
            return
        self._node.timers.schedule(self._lag_ms_max // 2, self._look_for_lagging)
        now_ms = self._node.clock.monotonic_ms()
        for partition in self._node.partitions:
            in_sync = partition.in_sync
            if in_sync.maximal_followers:
                leaving = in_sync.lagging(partition.log.log_end_offset, now_ms, self._lag_ms_max)
                if leaving:
                    self._node.report("replicas_lag", {"partition": partition.log.name, "replicas": list(leaving)})
                    self._propose(partition, leaving=leaving)
        self._ask()

    def _propose(self, partition: Partition, **changes: tuple[int, ...]) -> None:
        proposal = partition.in_sync.propose(
            partition.topic_id, partition.index, own_epoch=self._node.lifecycle.broker_epoch, **changes
        )
        if proposal is not None:
            self._proposed.append((partition, proposal))

    def _ask(self) -> None:
        """Send all proposals, unless a request is under way. Proposals that the metadata settled while they waited are left out:
        their partitions may have later ones, and the controller refuses a request that names a partition twice."""
        if self._is_asking or not self._is_running:
            return
        self._proposed = [
            (partition, proposal)
            for partition, proposal in self._proposed
            if partition.closed_by is None and partition.in_sync.is_in_flight(proposal)
        ]
        if not self._proposed:
            return
        self._is_asking = True
        asked, self._proposed = self._proposed[:PROPOSALS_MAX], self._proposed[PROPOSALS_MAX:]
        topics: dict[bytes, list[dict[str, Any]]] = {}
        for _, proposal in asked:
            members = [{"broker_id": broker_id, "broker_epoch": epoch} for broker_id, epoch in proposal.isr]
            topics.setdefault(proposal.topic_id, []).append(
                {
                    "partition_index": proposal.partition,
                    "leader_epoch": proposal.leader_epoch,
                    "partition_epoch": proposal.partition_epoch,
                    "new_isr_with_epochs": members,
                    "leader_recovery_state": 0,
                }
            )
        fields = {
            "broker_id": self._node.config.node_id,
            "broker_epoch": self._node.lifecycle.broker_epoch,
            "topics": [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()],
        }
        answered: Callable[[DecodedMessage], None] = partial(self._answered, asked)
        self._node.own_requests.request(ALTER_PARTITION, fields, answered, partial(self._failed, asked), PROPOSAL_MS_MAX)

    def _answered(self, asked: list[tuple[Partition, InSyncProposal]], response: DecodedMessage) -> None:
        codes = {
            (topic.topic_id, answer.partition_index): answer.error_code
            for topic in response.topics
            for answer in topic.partitions
        }
        has_failed = False
        for partition, proposal in asked:
            code = codes.get((proposal.topic_id, proposal.partition), response.error_code)
            if code not in _SETTLED or response.error_code != ErrorCode.NONE:
                partition.in_sync.proposal_lost(proposal)
                self._catching_up[partition] = None
                has_failed = True
            else:
                partition.in_sync.proposal_answered(proposal)
        self._end_asking(PROPOSAL_RETRY_MS if has_failed else 0)

    def _failed(self, asked: list[tuple[Partition, InSyncProposal]], error: Exception) -> None:  # noqa: ARG002 - it is tried again
        for partition, proposal in asked:
            partition.in_sync.proposal_lost(proposal)
            self._catching_up[partition] = None
        self._end_asking(PROPOSAL_RETRY_MS)

    def _end_asking(self, delay_ms: int) -> None:
        def go_on() -> None:
            self._is_asking = False
            self._propose_joining()

        self._node.timers.schedule(delay_ms, go_on)
