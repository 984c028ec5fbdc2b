"""One node of a simulated quorum: the production core on a log in memory that knows what a power cut would leave.

``SimulatedRaftLog`` keeps entries of one offset each. ``entries`` is the page cache, ``durable`` the disk. A sync makes durable
what was there when it began, unless the log was cut in the meantime. A power cut keeps what is durable and any number of the
entries after it, which is what is left of a log whose recovery stops at the first batch that fails its checksum.

A snapshot's bytes stand for the image that they encode: ``SnapshotStore`` knows which image belongs to which bytes, and a
snapshot that was put together wrongly has none. ``QuorumHost`` carries out what the core asks for, one step at a time, so that
its owner decides in which order the disk and the network do their work.
"""

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from tidelog.ports.randomness import Randomness
from tidelog.raft.errors import CorruptMetadataLog
from tidelog.raft.messages import EpochEnd, SnapshotId
from tidelog.raft.quorum import ProposalResult, RaftConfig, RaftEvent, RaftNode, Ready, Reply, Request, SnapshotPiece
from tidelog.raft.quorum_state import QuorumState
from tidelog.raft.voters import (
    ControlRecord,
    KRaftVersion,
    LeaderChange,
    PlacedControlRecord,
    ReplicaKey,
    Voter,
    VoterEndpoint,
    VoterSet,
    VotersRecord,
    voter_set,
)

PORT = 9093
FETCH_ENTRIES_MAX = 4
SNAPSHOT_BYTES = 100


class Entry(NamedTuple):
    epoch: int
    value: Hashable


class Origin(NamedTuple):
    """Where a request came from, and what it was: the way back of its reply."""

    node_id: int
    sent: Request
    incarnation: int
    """A process that was started again does not get the replies to its predecessor: their connection is gone."""


def directory_id(node_id: int, generation: int = 1) -> bytes:
    return bytes([node_id, generation]) + bytes(14)


def replica(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, directory_id(node_id))


def endpoint(node_id: int) -> VoterEndpoint:
    return VoterEndpoint("CONTROLLER", f"n{node_id}", PORT)


def make_voter(node_id: int) -> Voter:
    return Voter(node_id, directory_id(node_id), (endpoint(node_id),))


def make_voters(node_ids: Iterable[int]) -> VoterSet:
    return voter_set(make_voter(node_id) for node_id in node_ids)


class SnapshotStore:
    """Every image that any node ever wrote, by the bytes of its snapshot."""

    def __init__(self) -> None:
        self._images: dict[bytes, tuple[Entry, ...]] = {}

    def encode(self, image: tuple[Entry, ...]) -> bytes:
        data = hashlib.shake_256(repr(image).encode()).digest(SNAPSHOT_BYTES)
        self._images[data] = image
        return data

    def decode(self, data: bytes) -> tuple[Entry, ...] | None:
        return self._images.get(data)


class SimulatedRaftLog:
    """``tidelog.raft.quorum.RaftLog``. ``image`` is the snapshot's content: the entries below ``start_offset``."""

    __slots__ = (
        "_partial",
        "cuts",
        "durable",
        "entries",
        "high_watermark",
        "image",
        "snapshot_data",
        "snapshot_id",
        "start_offset",
        "store",
    )

    def __init__(self, store: SnapshotStore) -> None:
        self.store = store
        self.entries: tuple[Entry, ...] = ()
        self.durable: tuple[Entry, ...] = ()
        self.start_offset = 0
        self.high_watermark = 0
        self.image: tuple[Entry, ...] = ()
        self.snapshot_id: SnapshotId | None = None
        self.snapshot_data = b""
        self.cuts = 0
        self._partial = b""

    # -- the core's side -----------------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    @property
    def durable_end_offset(self) -> int:
        return self.start_offset + len(self.durable)

    @property
    def last_epoch(self) -> int:
        if self.entries:
            return self.entries[-1].epoch
        return self.snapshot_id.epoch if self.snapshot_id is not None else 0

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshot_id

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return self.snapshot_id

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        for index in range(len(self.entries) - 1, -1, -1):
            if self.entries[index].epoch <= epoch:
                return EpochEnd(self.entries[index].epoch, self.start_offset + index + 1)
        if self.snapshot_id is not None and self.snapshot_id.epoch <= epoch and self.snapshot_id.end_offset <= self.start_offset:
            return EpochEnd(self.snapshot_id.epoch, self.start_offset)
        return EpochEnd(0, 0)

    def append(self, batch: Hashable, epoch: int) -> int:
        self.entries += (Entry(epoch, batch),)
        return self.end_offset

    def append_control(self, records: Sequence[ControlRecord], epoch: int) -> int:
        self.entries += tuple(Entry(epoch, record) for record in records)
        return self.end_offset

    def append_fetched(self, records: tuple[int, tuple[Entry, ...]]) -> None:
        offset, entries = records
        if offset != self.end_offset:
            raise CorruptMetadataLog(f"records from offset {offset} do not continue a log that ends at {self.end_offset}")
        self.entries += entries

    def read(self, offset: int, size_max: int) -> tuple[int, tuple[Entry, ...]]:
        index = offset - self.start_offset
        return offset, self.entries[index : index + min(size_max, FETCH_ENTRIES_MAX)]

    def control_records(self, offset: int) -> list[PlacedControlRecord]:
        placed: list[PlacedControlRecord] = []
        if offset < self.start_offset or (self.snapshot_id is not None and offset == 0):
            before = [entry.value for entry in self.image if isinstance(entry.value, KRaftVersion | VotersRecord)]
            placed = [(self.start_offset - 1, record) for record in before]
        index = max(offset - self.start_offset, 0)
        for number, entry in enumerate(self.entries[index:], self.start_offset + index):
            if isinstance(entry.value, KRaftVersion | VotersRecord | LeaderChange):
                placed.append((number, entry.value))
        return placed

    def advance_high_watermark(self, offset: int) -> None:
        self.high_watermark = offset

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, size_max: int) -> SnapshotPiece | None:
        if snapshot_id != self.snapshot_id:
            return None
        return SnapshotPiece(len(self.snapshot_data), self.snapshot_data[position : position + size_max])

    def write_snapshot(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:  # noqa: ARG002 - one at a time
        self._partial = self._partial[:position] + data

    # -- the host's side -----------------------------------------------------------------------------------------------------

    def bootstrap(self, voters: VoterSet) -> None:
        """Begin with the bootstrap snapshot that formatting a directory writes."""
        self.image = (Entry(0, KRaftVersion(1)), Entry(0, VotersRecord(voters)))
        self.snapshot_id = SnapshotId(0, 0)

    def entry_at(self, offset: int) -> Entry | None:
        """The entry at an offset, wherever it is now; None above the end."""
        if offset < self.start_offset:
            return self.image[offset]
        return self.entries[offset - self.start_offset] if offset < self.end_offset else None

    def finish_sync(self, end_offset: int, cuts: int) -> None:
        if cuts == self.cuts:
            self.durable = self.entries[: max(end_offset - self.start_offset, len(self.durable))]

    def cut(self, offset: int) -> None:
        self.cuts += 1
        self.entries = self.entries[: offset - self.start_offset]
        self.durable = self.durable[: offset - self.start_offset]

    def take_snapshot(self, end_offset: int) -> None:
        """Write a snapshot of the committed prefix and drop the log below it."""
        kept = end_offset - self.start_offset
        bootstrap = self.snapshot_id is not None and self.snapshot_id.end_offset == 0
        self.image = (() if bootstrap else self.image) + self.entries[:kept]
        self.snapshot_id = SnapshotId(end_offset, self.entries[kept - 1].epoch)
        self.snapshot_data = self.store.encode(self.image)
        self.entries, self.durable = self.entries[kept:], self.durable[kept:]
        self.start_offset = end_offset

    def install(self, snapshot_id: SnapshotId) -> bool:
        """Put the fetched snapshot in the place of the log. Returns False when it is not whole."""
        image = self.store.decode(self._partial)
        if image is None or len(image) != snapshot_id.end_offset:
            return False
        self.cuts += 1
        self.image, self.snapshot_data, self.snapshot_id = image, self._partial, snapshot_id
        self.entries = self.durable = ()
        self.start_offset = snapshot_id.end_offset
        return True

    def crash(self, kept_unsynced: int) -> None:
        """Lose the page cache, except for so many entries that happened to reach the disk."""
        self.entries = self.durable = self.entries[: len(self.durable) + kept_unsynced]
        self.high_watermark = 0
        self.cuts += 1
        self._partial = b""


class QuorumHost:
    """Disk work that ``ready`` asked for waits here until the owner finishes it; what was sent waits until the owner takes it."""

    __slots__ = (
        "config",
        "cutting",
        "events",
        "incarnation",
        "installing",
        "log",
        "messages",
        "node",
        "results",
        "stored",
        "storing",
        "syncing",
    )

    def __init__(self, config: RaftConfig, log: SimulatedRaftLog, stored: QuorumState) -> None:
        self.config = config
        self.incarnation = 0
        self.log = log
        self.stored = stored
        self.node: RaftNode | None = None
        self.messages: list[Request | Reply] = []
        self.results: list[ProposalResult] = []
        self.events: list[RaftEvent] = []
        self._drop_work()

    def _drop_work(self) -> None:
        self.storing: QuorumState | None = None
        self.syncing: tuple[int, int] | None = None
        self.cutting: int | None = None
        self.installing: SnapshotId | None = None

    def start(self, randomness: Randomness, now_ms: int) -> RaftNode:
        self.node = RaftNode(self.config, self.log, self.stored, randomness, now_ms)
        self.collect()
        return self.node

    def running(self) -> RaftNode:
        assert self.node is not None, "the node is down"
        return self.node

    def collect(self) -> None:
        """Take what the core has to do."""
        ready: Ready = self.running().ready()
        self.messages += ready.messages
        self.results += ready.results
        self.events += ready.events
        if ready.store is not None:
            assert self.storing is None, "a store was asked for while another one was under way"
            self.storing = ready.store
        if ready.sync_to is not None:
            self.syncing = ready.sync_to, self.log.cuts
        if ready.truncate_to is not None:
            self.cutting = ready.truncate_to
        if ready.install is not None:
            self.installing = ready.install

    def origin(self, sent: Request) -> Origin:
        return Origin(self.config.node_id, sent, self.incarnation)

    def take_messages(self) -> list[Request | Reply]:
        messages, self.messages = self.messages, []
        return messages

    @property
    def has_disk_work(self) -> bool:
        return self.storing is not None or self.syncing is not None or self.cutting is not None or self.installing is not None

    def finish_store(self) -> None:
        assert self.storing is not None
        self.stored, self.storing = self.storing, None
        self.running().state_stored()
        self.collect()

    def finish_sync(self) -> None:
        assert self.syncing is not None
        (end_offset, cuts), self.syncing = self.syncing, None
        self.log.finish_sync(end_offset, cuts)
        self.running().log_synced()
        self.collect()

    def finish_cut(self) -> None:
        assert self.cutting is not None
        self.log.cut(self.cutting)
        self.cutting = None
        self.running().truncated()
        self.collect()

    def finish_install(self) -> None:
        assert self.installing is not None
        snapshot_id, self.installing = self.installing, None
        if self.log.install(snapshot_id):
            self.running().snapshot_installed()
        else:
            self.running().snapshot_rejected("it has no footer")
        self.collect()

    def finish_disk_work(self) -> None:
        """Let the disk do everything that waits."""
        while self.has_disk_work:
            if self.storing is not None:
                self.finish_store()
            elif self.cutting is not None:
                self.finish_cut()
            elif self.installing is not None:
                self.finish_install()
            else:
                self.finish_sync()

    def crash(self, kept_unsynced: int = 0) -> None:
        self.node = None
        self.incarnation += 1
        self.messages, self.results, self.events = [], [], []
        self._drop_work()
        self.log.crash(kept_unsynced)
