"""Replicas of this broker that cannot be used: the controller hears of them, and damaged ones are copied again.

There are two kinds. The log of a partition that the broker *leads* goes offline while it runs, because a write or a sync failed:
its clients get errors, and they would until the end of time, because the broker itself is well and keeps its session. (A follower
whose log goes offline stops fetching, and leaves the in-sync set by itself.) And a log may turn out to be *damaged* when the
broker starts: it was not opened, and the broker may still be eligible to lead it.

Both are reported with AssignReplicasToDirs, as in a directory that is lost. The controller lets others lead and takes the replica
out of both sets. When the answer has come and the image says so too, the leader is asked whether it can read its own log: a power
cut may have damaged both, and what is sound of one may be what the other one lacks. If it can, the damaged log is deleted and
copied from the leader again. What went offline while the broker ran, and what could not be read at its start although nothing
says that it is damaged (a shortage of descriptors, say), waits for the next start, which reads what the disk really holds.

If nobody else may lead, the replica is kept as it is, offline, and an event names the command that repairs it. It is reported
again when the partition has changed, because then somebody else may.
"""

from functools import partial
from typing import TYPE_CHECKING

from tidelog.controller.replica_directories import LOST_DIRECTORY
from tidelog.metadata.records import NO_LEADER
from tidelog.metadata.topics import METADATA_TOPIC, PartitionImage
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode

ASSIGN_REPLICAS_TO_DIRS = ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0
# Any request that a leader whose log is offline refuses would do.
OFFSET_FOR_LEADER_EPOCH = ApiKey.OFFSET_FOR_LEADER_EPOCH, 4
# A leader whose disk has failed is replaced within this time and an election's. A look costs some nanoseconds per log.
LOOK_MS = 250
REPORT_MS_MAX = 10_000
# More partitions than that are reported in several requests, so that no decision holds up the controller.
REPORTED_MAX = 500

ReplicaKey = tuple[bytes, int]


class LostReplicas:
    __slots__ = ("_answered", "_asked_leaders", "_is_asking", "_is_running", "_node")

    def __init__(self, node: "BrokerNode") -> None:
        self._node = node
        self._is_running = False
        self._is_asking = False
        # The partition epoch in which the controller answered, and whether it let the replica go.
        self._answered: dict[ReplicaKey, tuple[int, bool]] = {}
        # The leaders that are being asked whether they can read their logs.
        self._asked_leaders: set[int] = set()

    def start(self) -> None:
        self._is_running = True
        self._look()

    def stop(self) -> None:
        self._is_running = False

    def _look(self) -> None:
        if not self._is_running:
            return
        self._node.timers.schedule(LOOK_MS, self._look)
        for key in [each for each in self._answered if self._node.image.topic_by_id(each[0]) is None]:
            del self._answered[key]
        self._ask_leaders()
        if not self._is_asking:
            lost = [*self._damaged(), *self._led_offline()]
            asked = [(key, state.partition_epoch) for key, state in lost if not self._is_answered(key, state)]
            if asked:
                self._report(asked[:REPORTED_MAX])

    def _is_answered(self, key: ReplicaKey, state: PartitionImage) -> bool:
        """A replica that was let go is reported again only if this broker has become eligible or the leader since then."""
        epoch, is_let_go = self._answered.get(key, (-1, False))
        node_id = self._node.config.node_id
        is_out = node_id not in state.isr and node_id not in state.eligible_leader_replicas and state.leader != node_id
        return epoch >= state.partition_epoch or (is_let_go and is_out)

    # -- which replicas are lost ---------------------------------------------------------------------------------------------

    def _damaged(self) -> list[tuple[ReplicaKey, PartitionImage]]:
        """Replicas whose logs could not be opened, where there are other replicas."""
        return [
            found
            for name, index in self._node.directory.offline
            if name != METADATA_TOPIC and (found := self._find(name, index)) is not None
        ]

    def _led_offline(self) -> list[tuple[ReplicaKey, PartitionImage]]:
        """Partitions that this broker leads, and whose logs went offline."""
        node_id, lost = self._node.config.node_id, []
        for (name, index), log in self._node.directory.logs.items():
            if log.offline_reason is not None and name != METADATA_TOPIC:
                found = self._find(name, index)
                if found is not None and found[1].leader == node_id and found[0][0] == log.topic_id:
                    lost.append(found)
        return lost

    def _find(self, name: str, index: int) -> tuple[ReplicaKey, PartitionImage] | None:
        topic = self._node.image.topic(name)
        state = topic.partitions.get(index) if topic is not None else None
        if topic is None or state is None or self._node.config.node_id not in state.replicas or len(state.replicas) == 1:
            return None
        return (topic.topic_id, index), state

    # -- what the controller says --------------------------------------------------------------------------------------------

    def _report(self, asked: list[tuple[ReplicaKey, int]]) -> None:
        self._is_asking = True
        topics: dict[bytes, list[dict[str, int]]] = {}
        for (topic_id, index), _ in asked:
            topics.setdefault(topic_id, []).append({"partition_index": index})
        named = [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()]
        fields = {
            "broker_id": self._node.config.node_id,
            "broker_epoch": self._node.lifecycle.broker_epoch,
            "directories": [{"id_": LOST_DIRECTORY, "topics": named}],
        }
        answered = partial(self._take_answer, dict(asked))
        self._node.own_requests.request(ASSIGN_REPLICAS_TO_DIRS, fields, answered, self._failed, REPORT_MS_MAX)

    def _failed(self, _: Exception) -> None:
        self._is_asking = False

    def _take_answer(self, asked: dict[ReplicaKey, int], response: DecodedMessage) -> None:
        self._is_asking = False
        if response.error_code != ErrorCode.NONE:
            return  # The next look asks again.
        for directory in response.directories:
            for topic in directory.topics:
                for answer in topic.partitions:
                    key = (topic.topic_id, answer.partition_index)
                    if key not in asked:
                        continue
                    if answer.error_code == ErrorCode.NONE:
                        self._answered[key] = asked[key], True
                    elif answer.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE:
                        self._answered[key] = asked[key], False
                        self._report_last(key)

    def _report_last(self, key: ReplicaKey) -> None:
        node = self._node
        topic = node.image.topic_by_id(key[0])
        if topic is not None:
            name = f"{topic.name}-{key[1]}"
            directory = f"{node.directory.path}/{name}"
            remedy = f"restart the broker; if it reports damage, stop it and run: tidelog log repair {directory}"
            if not node.directory.disk.is_directory(directory):
                remedy = f"stop the broker, put back {directory} from a copy, and start it again"
            facts: dict[str, object] = {
                "partition": name,
                "reason": "no other replica may lead, so this one is kept as it is",
                "remedy": remedy,
            }
            node.report("last_replica_offline", facts)

    # -- copying again -------------------------------------------------------------------------------------------------------

    def _ask_leaders(self) -> None:
        """Ask the leaders of damaged replicas that were let go whether they can read what those replicas will copy."""
        wanted: dict[int, list[tuple[str, int, int]]] = {}
        for name, index in sorted(self._node.directory.damaged):
            found = self._find(name, index) if name != METADATA_TOPIC else None
            if found is not None and self._is_let_go(*found) and found[1].leader not in self._asked_leaders:
                wanted.setdefault(found[1].leader, []).append((name, index, found[1].leader_epoch))
        for leader, replicas in wanted.items():
            self._asked_leaders.add(leader)
            topics: dict[str, list[dict[str, int]]] = {}
            for name, index, epoch in replicas[:REPORTED_MAX]:
                fields = {"partition": index, "current_leader_epoch": epoch, "leader_epoch": epoch}
                topics.setdefault(name, []).append(fields)
            request = {
                "replica_id": self._node.config.node_id,
                "topics": [{"topic": name, "partitions": partitions} for name, partitions in topics.items()],
            }
            epochs = {(name, index): epoch for name, index, epoch in replicas}
            replied, failed = partial(self._leader_answered, leader, epochs), partial(self._leader_failed, leader)
            self._node.peers.request(leader, OFFSET_FOR_LEADER_EPOCH, request, replied, failed)

    def _is_let_go(self, key: ReplicaKey, state: PartitionImage) -> bool:
        """Whether the controller has let a replica go, so that this broker may discard it when its leader can be read."""
        node_id, others = self._node.config.node_id, {*state.isr, *state.eligible_leader_replicas}
        is_out = bool(others) and node_id not in others and state.leader not in (node_id, NO_LEADER)
        return is_out and self._answered.get(key, (-1, False))[1]

    def _leader_failed(self, leader: int, _: Exception) -> None:
        self._asked_leaders.discard(leader)

    def _leader_answered(self, leader: int, epochs: dict[tuple[str, int], int], response: DecodedMessage) -> None:
        self._asked_leaders.discard(leader)
        for topic in response.topics:
            for answer in topic.partitions:
                place = topic.topic, answer.partition
                if answer.error_code == ErrorCode.NONE and place in epochs and self._is_running:
                    self._copy_again(*place, leader, epochs[place])

    def _copy_again(self, name: str, index: int, leader: int, leader_epoch: int) -> None:
        node, found = self._node, self._find(name, index)
        if (name, index) not in node.directory.damaged or found is None or not self._is_let_go(*found):
            return
        key, state = found
        if (state.leader, state.leader_epoch) == (leader, leader_epoch):
            node.report("damaged_replica_discarded", {"partition": f"{name}-{index}", "leader": leader})
            node.partitions.discard_damaged(name, index)
            node.replicas.follow_again(key)
