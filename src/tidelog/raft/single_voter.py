"""The metadata quorum with one voter: it elects itself, and what is durable on its disk is committed.

A start replays what is in the log, moves to the next epoch (the quorum state is durable before anything is written in that epoch)
and appends a leader change; once that is durable, this node leads. A proposal is one batch, so it is committed whole or not at
all. Committed batches are handed on in the order of the log: ``on_committed`` first, then the proposer's ``on_done``.

A proposal whose append fails is not in the log. One whose sync fails may or may not be found there by the next start; it is not
handed on, and the log takes no more.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidelog.ports.clock import Clock
from tidelog.raft.errors import CorruptMetadataLog, NotQuorumLeader
from tidelog.raft.leader_change import build_leader_change
from tidelog.raft.metadata_log import MetadataLog
from tidelog.raft.quorum_state import QuorumState, QuorumStateFile
from tidelog.records.batch import build_batch, read_records
from tidelog.records.errors import RecordError
from tidelog.records.header import BatchHeader, crc_is_valid, iterate_headers
from tidelog.records.record import Record

# Far above what one decision writes; a damaged batch must not take the machine's memory.
BATCH_SIZE_MAX = 64 << 20
BATCH_RECORDS_MAX = 1_000_000

OnDone = Callable[[Exception | None], None]


class CommittedBatch(NamedTuple):
    first_offset: int
    last_offset: int
    epoch: int
    values: Sequence[bytes]
    """The records' values; control batches are the quorum's own and not handed on."""


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
        """Hand on what is committed, then become leader. Blocks until the new epoch is durable; ``on_leading`` comes later.

        QuorumStateUnusable or CorruptMetadataLog when the disk does not hold what it should.
        """
        state = self._state_file.load()
        for data in self._log.committed_batches():
            self._hand_on(data)
        # The log knows its epochs too; an epoch that was led once must never be led again.
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
        """Write records as one batch. ``on_done`` may be called from within when nothing could be written."""
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
