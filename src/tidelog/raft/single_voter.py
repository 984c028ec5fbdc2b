"""The metadata quorum with one voter: it elects itself, and what is durable on its disk is committed.

A start replays what is in the log, moves to the next epoch (the quorum state is durable before anything is written in that epoch)
and appends a leader change; once that is durable, this node leads. A proposal is one batch, so it is committed as a whole or not
at all. Committed batches are delivered in the order of the log: ``on_committed`` first, then the proposer's ``on_done``.

A proposal whose append fails is not in the log. A proposal whose sync fails is not delivered, and the log accepts no more; the
next start may or may not find it there.

The leader change is a control batch. Its value, in flexible encoding, is version int16 (0) | leader id int32 | voters | granting
voters | tagged fields, where each voter is its id (int32) and tagged fields. Version 0 is the one for voters that stand in the
configuration.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from tidelog.ports.clock import Clock
from tidelog.raft.errors import CorruptMetadataLog, NotQuorumLeader
from tidelog.raft.quorum_state import QuorumState, QuorumStateFile
from tidelog.records.batch import build_batch, read_records
from tidelog.records.control import ControlType, control_key
from tidelog.records.errors import RecordError
from tidelog.records.header import BatchHeader, crc_is_valid, iterate_headers
from tidelog.records.record import Record
from tidelog.wire.primitives import INT16, INT32, NO_TAGGED_FIELDS, write_compact_length


class MetadataLog(Protocol):
    """The log that holds the quorum's batches. The broker hands it in."""

    @property
    def latest_epoch(self) -> int:
        """The epoch of the last batch; -1 if the log is empty."""
        ...

    def append(self, batch: bytes, epoch: int) -> tuple[int, int]:
        """Return the first and last offset of the batch. After an exception nothing of it is in the log."""
        ...

    def wait_durable(self, end_offset: int, on_durable: Callable[[Exception | None], None]) -> None:
        """Call back once everything below ``end_offset`` is durable, in the order of the calls. After an error it is unknown
        whether it is durable, and the log accepts no more batches."""
        ...

    def committed_batches(self) -> Iterator[bytes]:
        """Everything that was durable when the log was opened, from its start, in pieces of whole batches."""
        ...


_LEADER_CHANGE_VERSION = 0


def leader_change_value(leader_id: int, voters: Sequence[int], granting_voters: Sequence[int]) -> bytes:
    parts = [INT16.pack(_LEADER_CHANGE_VERSION), INT32.pack(leader_id)]
    for group in (voters, granting_voters):
        parts.append(write_compact_length(len(group)))
        parts += [INT32.pack(voter) + NO_TAGGED_FIELDS for voter in group]
    parts.append(NO_TAGGED_FIELDS)
    return b"".join(parts)


def build_leader_change(leader_id: int, voters: Sequence[int], granting_voters: Sequence[int], timestamp: int) -> bytes:
    value = leader_change_value(leader_id, voters, granting_voters)
    return build_batch([Record(0, timestamp, control_key(ControlType.LEADER_CHANGE), value)], control=True)


# Far above what one decision writes; a damaged batch must not exhaust the memory.
BATCH_SIZE_MAX = 64 << 20
BATCH_RECORDS_MAX = 1_000_000

OnDone = Callable[[Exception | None], None]


class CommittedBatch(NamedTuple):
    first_offset: int
    last_offset: int
    epoch: int
    values: Sequence[bytes]
    """The values of the records. Control batches are the quorum's own and are not delivered."""


class MetadataQuorum:
    __slots__ = ("_clock", "_log", "_on_committed", "_state_file", "epoch", "is_leader", "node_id")

    def __init__(
        self,
        node_id: int,
        log: MetadataLog,
        state_file: QuorumStateFile,
        clock: Clock,
        on_committed: Callable[[CommittedBatch], None],
    ) -> None:
        self.node_id = node_id
        self._log = log
        self._state_file = state_file
        self._clock = clock
        self._on_committed = on_committed
        self.epoch = 0
        self.is_leader = False

    def start(self, on_leading: OnDone) -> None:
        """Deliver what is committed, then become leader. Blocks until the new epoch is durable; ``on_leading`` is called later.

        Raises QuorumStateUnusable or CorruptMetadataLog when the disk does not hold what it should.
        """
        state = self._state_file.load()
        for data in self._log.committed_batches():
            self._hand_on(data)
        # The log knows its epochs too. An epoch that was led once must never be led again.
        self.epoch = max(state.leader_epoch, self._log.latest_epoch) + 1
        self._state_file.store(QuorumState(leader_epoch=self.epoch, leader_id=self.node_id))
        voters = (self.node_id,)
        try:
            _, last_offset = self._log.append(build_leader_change(self.node_id, voters, voters, self._clock.now_ms()), self.epoch)
        except Exception as error:
            on_leading(error)
            return

        def durable(error: Exception | None) -> None:
            self.is_leader = error is None
            on_leading(error)

        self._log.wait_durable(last_offset + 1, durable)

    def propose(self, values: Sequence[bytes], on_done: OnDone) -> None:
        """Write records as one batch. If nothing could be written, ``on_done`` may be called before this returns."""
        if not self.is_leader:
            on_done(NotQuorumLeader(f"node {self.node_id} does not lead the metadata quorum"))
            return
        assert values, "a batch holds at least one record"
        now_ms = self._clock.now_ms()
        batch = build_batch([Record(index, now_ms, None, value) for index, value in enumerate(values)])
        try:
            first_offset, last_offset = self._log.append(batch, self.epoch)
        except Exception as error:
            on_done(error)
            return
        committed = CommittedBatch(first_offset, last_offset, self.epoch, values)

        def durable(error: Exception | None) -> None:
            if error is None:
                self._on_committed(committed)
            else:
                self.is_leader = False
            on_done(error)

        self._log.wait_durable(last_offset + 1, durable)

    def _hand_on(self, data: bytes) -> None:
        for position, header in _read_headers(data):
            if not crc_is_valid(data, position, header):
                raise CorruptMetadataLog(f"the metadata batch at offset {header.base_offset} fails its checksum")
            if not header.is_control:
                values = _read_values(data, position, header)
                self._on_committed(CommittedBatch(header.base_offset, header.last_offset, header.leader_epoch, values))


def _read_headers(data: bytes) -> list[tuple[int, BatchHeader]]:
    try:
        return list(iterate_headers(data))
    except RecordError as error:
        raise CorruptMetadataLog(f"the metadata log cannot be read: {error}") from error


def _read_values(data: bytes, position: int, header: BatchHeader) -> list[bytes]:
    try:
        records = list(read_records(data, position, header, size_max=BATCH_SIZE_MAX, count_max=BATCH_RECORDS_MAX))
    except RecordError as error:
        raise CorruptMetadataLog(f"the metadata batch at offset {header.base_offset} cannot be read: {error}") from error
    values = [record.value for record in records if record.value is not None]
    if len(values) != len(records):
        raise CorruptMetadataLog(f"the metadata batch at offset {header.base_offset} has a record without a value")
    return values
