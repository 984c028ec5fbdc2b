"""The replicated world while its partitions are on the move: an operator shrinks, grows, reorders and empties beside all faults.

Again and again the operator gives one partition, an internal one too, other replicas, drains a node, takes a node back for all
partitions, or cancels. Requests get lost like those of any client, so a move may begin of which nobody heard. In the end every
partition has its three replicas again, and everything must hold that holds of the replicated world: nothing acknowledged is lost,
and all replicas are equal.
"""

from collections.abc import Sequence

from simulation.cluster_world import NODE_COUNT
from simulation.replica_checker import Place
from simulation.replica_clients import RETRY_US, At, ClientSteps, ClusterClient
from simulation.replica_world import PARTITIONS, ReplicaWorld
from simulation.script import Sleep, call
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.topics import PartitionImage
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

PAUSE_US = (50_000, 1_500_000)
ALL = tuple(range(1, NODE_COUNT + 1))
PLACES = [Place(topic, index) for topic, count in PARTITIONS.items() for index in range(count)]
INTERNAL_PLACES = [Place("__consumer_offsets", 0), Place("__transaction_state", 0)]
MOVE_EVENTS = ("move", "replica removed", "replica added", "move cancelled")


class Operator(ClusterClient):
    def steps(self) -> ClientSteps:
        while not self.is_stopping:
            yield Sleep(self.draw(PAUSE_US))
            wanted = self._drawn()
            yield from self._alter(wanted)
            if self.draw((0, 2)) == 0:
                yield from self._alter(dict.fromkeys(wanted))
        while not (yield from self._alter(dict.fromkeys([*PLACES, *INTERNAL_PLACES], ALL))):
            yield Sleep(self.draw(RETRY_US))
        while (yield from self._is_moving()):
            yield Sleep(self.draw(RETRY_US))

    def _drawn(self) -> dict[Place, Sequence[int] | None]:
        places = [*PLACES, *INTERNAL_PLACES]
        others = [node_id for node_id in ALL if node_id != self.any_node()]
        choice = self.draw((0, 9))
        if choice == 0:
            return dict.fromkeys(places, others)
        if choice <= 2:
            return dict.fromkeys(places, self._shuffled(ALL))
        place = places[self.draw((0, len(places) - 1))]
        if choice <= 4:
            return {place: None}
        return {place: self._shuffled(ALL) if choice <= 7 else others}

    def _shuffled(self, nodes: Sequence[int]) -> list[int]:
        left, found = list(nodes), []
        while left:
            found.append(left.pop(self.draw((0, len(left) - 1))))
        return found

    def _alter(self, wanted: dict[Place, Sequence[int] | None]) -> ClientSteps:
        """Returns whether all of it was accepted. An internal topic may not exist yet, and gets three replicas then."""
        topics = [
            {"name": place.topic, "partitions": [{"partition_index": place.number, "replicas": replicas}]}
            for place, replicas in wanted.items()
        ]
        fields = {"timeout_ms": 1_000, "topics": topics}
        answer = yield At(self.any_node(), call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, fields))
        if answer is None or answer.error_code != ErrorCode.NONE:
            return False
        # A move that was begun and cancelled within a moment shows in no image that anybody looks at.
        cancelled = [topic.name for topic in answer.responses for each in topic.partitions if each.error_code == ErrorCode.NONE]
        if cancelled and None in wanted.values():
            self.world.watcher.count("move cancelled")
        accepted = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return all(each.error_code in accepted for topic in answer.responses for each in topic.partitions)

    def _is_moving(self) -> ClientSteps:
        answer = yield At(self.any_node(), call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout_ms": 1_000, "topics": None}))
        return answer is None or answer.error_code != ErrorCode.NONE or bool(answer.topics)


class MovingWorld(ReplicaWorld):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.workers.append(Operator(self, "mover"))
        self._assignments: dict[Place, PartitionImage] = {}

    def looked_at(self, image: ClusterImage) -> None:
        for topic in image.topics:
            for index, state in topic.partitions.items():
                place = Place(topic.name, index)
                before = self._assignments.get(place)
                if before is None or state.partition_epoch > before.partition_epoch:
                    self._assignments[place] = state
                    self._count(before if before is not None else state, state)

    def _count(self, before: PartitionImage, state: PartitionImage) -> None:
        if state.adding_replicas and not before.adding_replicas:
            self.watcher.count("move")
        gone, come = set(before.replicas) - set(state.replicas), set(before.adding_replicas) - set(state.adding_replicas)
        if gone:
            self.watcher.count("replica removed")
        if come & set(state.replicas):
            self.watcher.count("replica added")
