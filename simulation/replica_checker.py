"""What must hold of replicated partitions, at every moment and in the end.

At every moment, on every node that runs: what a log holds below its high watermark is, byte for byte, what any other replica ever
had there. What a reader saw at an offset, every reader sees there for ever. The latest offset never falls for a reader. No record
is shown twice for one send of an idempotent producer, nor more often than a plain one sent it.

In the end everything is read: every acknowledged record is at the offset that its acknowledgement named, and all replicas are
equal up to the high watermark.

``ImageWatcher`` counts what has to occur for a run to mean something: in-sync sets that shrink, leaders elected from the eligible
replicas, coordinators that move.
"""

from dataclasses import dataclass
from typing import NamedTuple

from simulation.checker import Violation
from simulation.history import History
from simulation.node import SimulatedBroker
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation, read
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import NO_LEADER
from tidelog.metadata.topics import METADATA_TOPIC, PartitionImage
from tidelog.records.header import read_header

READ_BYTES_MAX = 1 << 20


class Place(NamedTuple):
    """A partition, by name."""

    topic: str
    number: int


@dataclass(slots=True)
class Send:
    """A batch, and how often it may have been written."""

    place: Place
    values: tuple[str, ...]
    is_idempotent: bool
    attempts: int = 0
    base_offset: int = -1
    is_acknowledged: bool = False


class ReplicaChecker:
    def __init__(self, history: History) -> None:
        self._history = history
        self.sends: list[Send] = []
        self._send_of: dict[str, Send] = {}
        self.acked = 0
        self.commits = 0
        # What lies below a high watermark, by the batches' base offsets; and the value at each offset that a reader saw.
        self._committed: dict[Place, dict[int, bytes]] = {}
        self._seen: dict[Place, dict[int, str]] = {}
        self._ends: dict[tuple[str, Place], int] = {}
        # How far each process's log was compared. A replica that was removed and added again has another log.
        self._compared: dict[tuple[str, int, Place], tuple[PartitionLog, int]] = {}

    # -- what clients tell ---------------------------------------------------------------------------------------------------

    def sent(self, place: Place, values: tuple[str, ...], is_idempotent: bool) -> Send:
        send = Send(place, values, is_idempotent)
        self.sends.append(send)
        for value in values:
            self._send_of[value] = send
        return send

    def acknowledged(self, send: Send, base_offset: int) -> None:
        send.base_offset = base_offset
        send.is_acknowledged = True
        self.acked += 1

    def acknowledged_somewhere(self, send: Send) -> None:
        """The acknowledgement of a later batch says that this one is there."""
        send.is_acknowledged = True
        self.acked += 1

    def known_end(self, reader: str, place: Place) -> int:
        return self._ends.get((reader, place), 0)

    def saw_end(self, reader: str, place: Place, offset: int, known: int) -> None:
        """``known`` is what the reader knew when it asked."""
        if offset < known:
            self._history.problem("high watermark fell", f"{reader} saw {known} as the end of {place}, and now {offset}")
        self._ends[reader, place] = max(offset, self._ends.get((reader, place), 0))

    def saw_records(self, reader: str, place: Place, records: list[tuple[int, str]]) -> None:
        seen = self._seen.setdefault(place, {})
        for offset, value in records:
            before = seen.setdefault(offset, value)
            if before != value:
                self._history.problem("record changed", f"{reader} read {value} at {place} {offset}, where {before} was read")
        key = reader, place
        if records:
            self._ends[key] = max(self._ends.get(key, 0), records[-1][0] + 1)

    # -- at every moment -----------------------------------------------------------------------------------------------------

    def compare(self, node: SimulatedBroker) -> None:
        """Compare what a node has below its high watermarks with what others had there."""
        broker = node.broker
        if broker is None or not node.is_serving:
            return
        for (topic, index), log in list(broker.directory.logs.items()):
            if topic != METADATA_TOPIC and log.offline_reason is None and not log.is_truncating:
                self._compare_log(node, Place(topic, index), log)

    def _compare_log(self, node: SimulatedBroker, place: Place, log: PartitionLog) -> None:
        committed = self._committed.setdefault(place, {})
        key = node.host, node.starts, place
        compared, offset = self._compared.get(key, (log, 0))
        if compared is not log:
            offset = 0
        if log.high_watermark < offset:
            # The log was cut below what it showed: only an unclean election may do that, and there is none here.
            self._history.problem("committed records cut", f"{node.host}: {place} from {offset} to {log.high_watermark}")
        for base_offset, batch, end in _batches(log, offset):
            before = committed.setdefault(base_offset, batch)
            if before != batch:
                self._history.problem("replicas differ", f"{node.host}: {place} at offset {base_offset}")
            offset = end
        self._compared[key] = log, offset

    # -- in the end ----------------------------------------------------------------------------------------------------------

    def check(self) -> list[Violation]:
        violations = []
        for send in self.sends:
            seen = self._seen.get(send.place, {})
            for number, value in enumerate(send.values):
                if send.base_offset >= 0 and seen.get(send.base_offset + number) != value:
                    found = seen.get(send.base_offset + number)
                    text = f"{value} was acknowledged at {send.place} {send.base_offset + number}, where {found} is"
                    violations.append(Violation("acknowledged record lost", text))
            if send.is_acknowledged and send.base_offset < 0 and not {*send.values} <= {*seen.values()}:
                violations.append(Violation("acknowledged record lost", f"{send.values} is not at {send.place}"))
        for place, seen in self._seen.items():
            violations += self._check_counts(place, seen)
        return violations

    def _check_counts(self, place: Place, seen: dict[int, str]) -> list[Violation]:
        violations = []
        offsets: dict[str, list[int]] = {}
        for offset, value in sorted(seen.items()):
            offsets.setdefault(value, []).append(offset)
        for value, found in offsets.items():
            send = self._send_of.get(value)
            allowed = 0 if send is None or send.place != place else 1 if send.is_idempotent else send.attempts
            if len(found) > allowed:
                violations.append(Violation("record twice", f"{value} is at {place} {found}, and was sent {allowed} times"))
        return violations


def _batches(log: PartitionLog, offset: int) -> list[tuple[int, bytes, int]]:
    """The base offset, the bytes and the end offset of each batch from ``offset`` to the high watermark."""
    found = []
    while offset < log.high_watermark:
        part = read(log, max(offset, log.log_start_offset), READ_BYTES_MAX, Isolation.HIGH_WATERMARK).records
        if part is None:
            break
        data = memoryview(part.file.read(part.position, part.length))
        position = 0
        while position < len(data):
            header = read_header(data, position)
            end = header.base_offset + header.last_offset_delta + 1
            if end > offset:
                found.append((header.base_offset, bytes(data[position : position + header.size]), end))
            position += header.size
            offset = max(offset, end)
    return found


class ImageWatcher:
    """Counts events in the images of the cluster, in the order in which any node learns of them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._states: dict[Place, PartitionImage] = {}

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def look_at(self, image: ClusterImage) -> None:
        for topic in image.topics:
            for index, state in topic.partitions.items():
                place = Place(topic.name, index)
                before = self._states.get(place)
                if before is None or state.partition_epoch > before.partition_epoch:
                    self._states[place] = state
                    if before is not None:
                        self._compare(topic.is_internal, before, state)

    def _compare(self, is_internal: bool, before: PartitionImage, state: PartitionImage) -> None:
        if not {*before.isr} <= {*state.isr}:
            self.count("in-sync set shrunk")
        if state.leader not in (NO_LEADER, before.leader):
            self.count("election")
            if state.leader in before.eligible_leader_replicas:
                self.count("eligible leader elected")
        if is_internal and state.leader_epoch > before.leader_epoch and state.leader != NO_LEADER:
            self.count("coordinator reloaded")
