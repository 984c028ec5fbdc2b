"""The controller of a node: it decides for the cluster while this node leads the metadata quorum, and waits otherwise.

Every controller follows the log. The one whose node leads, and has applied everything that was committed before, is active. Only
it decides, one decision after the other (``DecisionQueue``), and only it knows when brokers were last heard of
(``BrokerSessions``). Whatever was submitted to a controller that is not active, or no longer is, fails with NotQuorumLeader:
nothing of it was written, so it may be asked of another controller. If leadership is lost while records are being committed, the
outcome is not known.

A new controller first aborts what its predecessor left half-written, decides about eligible replicas by the settings that it was
started with and, in a new cluster, sets the features. It gives every broker a fresh session, and looks at once whether those
brokers' listeners answer.

A broker is fenced when its session ends. Two things together prove sooner that its process is gone: the connection of its
heartbeats ended, or this controller is new, *and* for ``GONE_AFTER_MS`` its listener refuses connections, which a machine does at
once and only for a process that is not there. A broker that hangs, or whose machine is gone, refuses nothing and is fenced by its
session.

In a cluster, the active controller also looks every ``leader.imbalance.check.interval.seconds`` whether leadership has moved away
from preferred replicas, and returns it. Elections are counted where their records are committed, and an unclean one is an event.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata_log import SlicedProposals
from tidelog.broker.timers import Timer
from tidelog.config.cluster import names_a_quorum
from tidelog.controller.broker_sessions import BrokerSessions
from tidelog.controller.brokers import fence_broker
from tidelog.controller.decision_queue import ControllerResult, Decide, DecisionQueue, IsWanted, OnDecided
from tidelog.controller.election import REBALANCED_PARTITIONS_MAX, rebalance_leaders, settings_changed
from tidelog.controller.ended_throttles import with_ended_throttles_removed
from tidelog.controller.partition_change_counts import PartitionChangeCounts
from tidelog.log.errors import StorageError
from tidelog.metadata.brokers import BrokerImage
from tidelog.metadata.features import FIRST_LEVELS, METADATA_VERSION
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import (
    NO_LEADER,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionRecord,
    TopicRecord,
    encode_record,
)
from tidelog.ports.network import CONNECTION_REFUSED, Connection, Network
from tidelog.raft.errors import NotQuorumLeader

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode
    from tidelog.broker.session import ClientSession

OnDone = Callable[[Exception | None], None]

PROBE_INTERVAL_MS = 50
# A restart of the network may refuse a connection, too, but not for so long.
GONE_AFTER_MS = 250
# After as many elections as one decision may hold, clients have this long to find their leaders before the next ones.
REBALANCE_PAUSE_MS = 1_000


def _always() -> bool:
    return True


class ControllerRole:
    def __init__(self, node: "BrokerNode", network: Network) -> None:
        self._node = node
        self._network = network
        self._image = node.image
        self.sessions = BrokerSessions(int(node.config.values["broker.session.timeout.ms"]))
        self.decisions = DecisionQueue(node.image, self.propose)
        self._proposals = SlicedProposals(node.image, self._write)
        self._was_active = False
        self._session_timer: Timer | None = None
        self._balance_timer: Timer | None = None
        self.counts = PartitionChangeCounts()
        self._probes: dict[int, BrokerProbe] = {}

    @property
    def is_active(self) -> bool:
        return self._node.quorum.is_leader

    # -- what metrics show ---------------------------------------------------------------------------------------------------

    def count_without_leader(self) -> int:
        """Partitions that nobody leads; 0 on a node that is not the active controller, so that a sum over nodes is right."""
        if not self.is_active:
            return 0
        return sum(state.leader == NO_LEADER for topic in self._image.topics for state in topic.partitions.values())

    def count_fenced(self) -> int:
        return sum(each.fenced for each in self._image.brokers) if self.is_active else 0

    # -- decisions -----------------------------------------------------------------------------------------------------------

    def submit(self, decide: Decide, on_decided: OnDecided, is_wanted: IsWanted = _always) -> None:
        """Decide, and call back with the response once it holds, or with the error; see ``DecisionQueue``."""

        def decide_if_active(image: ClusterImage) -> ControllerResult[Any]:
            if not self.is_active:
                raise NotQuorumLeader(f"node {self._node.config.node_id} is not the active controller")
            return with_ended_throttles_removed(image, decide(image))

        self.decisions.submit(decide_if_active, on_decided, is_wanted)

    def propose(self, records: Sequence[MetadataRecord], on_done: OnDone) -> None:
        is_full = self._node.directory.reserve.is_released
        if is_full and any(isinstance(record, TopicRecord | PartitionRecord) for record in records):
            # What is left of the disk is for decisions that make room.
            on_done(StorageError("the disk is full: delete topics or lower their retention before you create others"))
        else:
            self._proposals.propose(records, self._counting(records, on_done))

    def _counting(self, records: Sequence[MetadataRecord], on_done: OnDone) -> OnDone:
        changes = self.counts.find(self._image, records)
        if not changes:
            return on_done

        def done(error: Exception | None) -> None:
            if error is None:
                for facts in self.counts.count(changes):
                    self._node.report("unclean_election", facts)
            on_done(error)

        return done

    def _write(self, records: Sequence[MetadataRecord], on_done: OnDone) -> None:
        """Write one batch."""
        self._node.quorum.propose([encode_record(record) for record in records], on_done)

    # -- leadership ----------------------------------------------------------------------------------------------------------

    def quorum_changed(self) -> None:
        is_active = self.is_active
        if is_active and not self._was_active:
            self._was_active = True
            self._activate()
        elif not is_active and self._was_active:
            self._was_active = False
            self._renounce()

    def _activate(self) -> None:
        node, now_ms = self._node, self._node.clock.monotonic_ms()
        self.submit(self._first_decision, self._activated)
        # This node's own broker needs no probe, and an earlier process of it is certainly gone.
        others = [broker for broker in self._image.brokers if broker.broker_id != node.config.node_id]
        own = self._image.brokers.find(node.config.node_id)
        alive = [own] if own is not None and own.incarnation_id == node.incarnation_id else []
        self.sessions.begin([(broker.broker_id, broker.broker_epoch) for broker in (*others, *alive)], now_ms)
        for broker in others:
            if not broker.fenced:
                self.suspect(broker.broker_id)
        self._watch_sessions()
        values = node.config.values
        if values["auto.leader.rebalance.enable"] and names_a_quorum(values):
            self._balance_timer = node.timers.schedule(self._balance_interval_ms, self._rebalance)

    @property
    def _balance_interval_ms(self) -> int:
        return int(self._node.config.values["leader.imbalance.check.interval.seconds"]) * 1_000

    def _rebalance(self) -> None:
        self._balance_timer = None
        node, percentage_max = self._node, int(self._node.config.values["leader.imbalance.per.broker.percentage"])

        def decide(image: ClusterImage) -> ControllerResult[int]:
            outcome = rebalance_leaders(image, node.settings, percentage_max)
            return ControllerResult([*outcome.records], len(outcome.elections))

        def decided(count: int | None, error: Exception | None) -> None:  # noqa: ARG001 - the next look tries again
            if count:
                node.report("leaders_rebalanced", {"partitions": count})
            if self._was_active and self._balance_timer is None:
                delay_ms = REBALANCE_PAUSE_MS if count == REBALANCED_PARTITIONS_MAX else self._balance_interval_ms
                self._balance_timer = node.timers.schedule(delay_ms, self._rebalance)

        self.submit(decide, decided)

    def _first_decision(self, image: ClusterImage) -> ControllerResult[None]:
        records: list[MetadataRecord] = []
        if image.in_transaction:
            # The proposal aborts what it finds open, and there has to be one.
            records.append(NoOpRecord())
        if METADATA_VERSION not in image.features:
            records += [FeatureLevelRecord(name, level) for name, level in FIRST_LEVELS.items()]
        # This controller may have been started with other settings than its predecessor.
        records += settings_changed(image, self._node.settings, image.topics).records
        return ControllerResult(records, None)

    def _activated(self, response: None, error: Exception | None) -> None:  # noqa: ARG002 - there is nothing to say
        if error is not None:
            self._node.report("controller_not_activated", {"error": str(error)})

    def _renounce(self) -> None:
        self.sessions.clear()
        self._cancel_timer()
        if self._balance_timer is not None:
            self._balance_timer.cancel()
            self._balance_timer = None
        for probe in self._probes.values():
            probe.stop()
        self._probes = {}

    def stop(self) -> None:
        self._was_active = False
        self._renounce()

    # -- sessions of brokers -------------------------------------------------------------------------------------------------

    def heard_of(self, broker_id: int, broker_epoch: int, session: "ClientSession") -> None:
        """A registration or a heartbeat came over this connection."""
        self.sessions.touch(broker_id, broker_epoch, self._node.clock.monotonic_ms())
        probe = self._probes.pop(broker_id, None)
        if probe is not None:
            probe.stop()
        if broker_id != self._node.config.node_id:
            session.watch(("broker", broker_id), partial(self._disconnected, broker_id, broker_epoch))
        if self._session_timer is None:
            self._watch_sessions()

    def _disconnected(self, broker_id: int, broker_epoch: int) -> None:
        broker = self._image.brokers.find(broker_id)
        if self._was_active and broker is not None and broker.broker_epoch == broker_epoch:
            self.suspect(broker_id)

    def suspect(self, broker_id: int) -> None:
        """Look whether the broker's process is still there."""
        broker = self._image.brokers.find(broker_id)
        address = _probe_address(broker, self._node.config.values["inter.broker.listener.name"]) if broker is not None else None
        if address is not None and broker_id not in self._probes:
            self._probes[broker_id] = BrokerProbe(self._node, self._network, address, partial(self._probed, broker_id))

    def _probed(self, broker_id: int, is_gone: bool) -> None:
        self._probes.pop(broker_id, None)
        if is_gone and self._was_active:
            self.sessions.end(broker_id)
            self._fence(broker_id, "its process is gone: the connection ended and its listener refuses others")

    def _watch_sessions(self) -> None:
        self._cancel_timer()
        deadline_ms = self.sessions.next_deadline_ms
        if self._was_active and deadline_ms is not None:
            delay_ms = max(0, deadline_ms - self._node.clock.monotonic_ms())
            self._session_timer = self._node.timers.schedule(delay_ms, self._end_sessions)

    def _end_sessions(self) -> None:
        self._session_timer = None
        for broker_id in self.sessions.expired(self._node.clock.monotonic_ms()):
            self.sessions.end(broker_id)
            self._fence(broker_id, f"no heartbeat came within {self._node.config.values['broker.session.timeout.ms']} ms")
        self._watch_sessions()

    def _cancel_timer(self) -> None:
        if self._session_timer is not None:
            self._session_timer.cancel()
            self._session_timer = None

    def _fence(self, broker_id: int, reason: str) -> None:
        now_ms, rules = self._node.clock.monotonic_ms, self._node.settings

        def decide(image: ClusterImage) -> ControllerResult[bool]:
            if self.sessions.is_valid(broker_id, now_ms()):
                return ControllerResult([], False)  # It was heard of while this decision waited.
            return fence_broker(image, rules, broker_id)

        def fenced(was_fenced: bool | None, error: Exception | None) -> None:
            if was_fenced:
                self._node.report("broker_fenced", {"broker": broker_id, "reason": reason})
            elif error is not None and self._was_active:
                # The next look at the sessions tries again.
                self.sessions.touch(broker_id, -1, now_ms())
                self._watch_sessions()

        self.submit(decide, fenced)


def _probe_address(broker: BrokerImage, inter_broker_listener: str | None) -> tuple[str, int] | None:
    """The listener that other brokers use; any other will do."""
    wanted = inter_broker_listener.upper() if inter_broker_listener is not None else None
    endpoints = sorted(broker.end_points, key=lambda endpoint: endpoint.name != wanted)
    return (endpoints[0].host, endpoints[0].port) if endpoints else None


class BrokerProbe:
    """Connects to a broker's listener until it answers, or has refused for long enough.

    A process that is killed loses its connections one after the other, and may have lost that of its heartbeats when its listener
    is still open. So a connection counts only if it has not ended after a while."""

    __slots__ = ("_address", "_connection", "_network", "_node", "_on_end", "_refused_since_ms", "_timer")

    def __init__(self, node: "BrokerNode", network: Network, address: tuple[str, int], on_end: Callable[[bool], None]) -> None:
        """``on_end`` is called once, with whether the process is gone."""
        self._node = node
        self._network = network
        self._address = address
        self._on_end = on_end
        self._connection: Connection | None = None
        self._refused_since_ms: int | None = None
        self._timer: Timer | None = node.timers.schedule(0, self._connect)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> None:
        self._timer = None
        self._connection = self._network.connect(*self._address, self)

    def opened(self, connection: Connection) -> None:
        if connection is self._connection:
            self._timer = self._node.timers.schedule(PROBE_INTERVAL_MS, self._has_answered)

    def _has_answered(self) -> None:
        self.stop()
        self._on_end(False)

    def received(self, connection: Connection, data: bytes) -> None:
        """A probe asks nothing, so nothing is received."""

    def closed(self, connection: Connection, reason: str) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        if self._timer is not None:
            # It was open, and ended at once.
            self._timer.cancel()
            self._timer = self._node.timers.schedule(0, self._connect)
            return
        if reason != CONNECTION_REFUSED:
            # The machine does not answer, which proves nothing.
            self._on_end(False)
            return
        now_ms = self._node.clock.monotonic_ms()
        if self._refused_since_ms is None:
            self._refused_since_ms = now_ms
        if now_ms - self._refused_since_ms >= GONE_AFTER_MS:
            self._on_end(True)
        else:
            self._timer = self._node.timers.schedule(PROBE_INTERVAL_MS, self._connect)
