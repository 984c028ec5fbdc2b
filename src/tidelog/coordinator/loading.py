"""A shard's state from its log: everything from start to end is replayed, a little at a time.

The bytes are read in a helper thread. Decoding and replaying is Python and stays on the loop, in slices: other shards, and
everybody who produces and fetches, are served in between.
"""

from collections.abc import Callable, Iterator

from tidelog.coordinator.errors import UnreadableShard
from tidelog.coordinator.machine import Cancellable, Machine, RecordCodec, Scheduler, ShardLog
from tidelog.log.append_check import whole_batches_bytes
from tidelog.ports.executor import Completion, Executor
from tidelog.records.batch import read_records
from tidelog.records.control import ControlType, read_control_type
from tidelog.records.errors import RecordError
from tidelog.records.header import BatchHeader, crc_is_valid, iterate_headers

READ_BYTES = 1 << 20
# About 2 ms of decoding and replaying, whichever comes first.
SLICE_RECORDS = 200
SLICE_BYTES = 64 << 10
# Above what a batch of an internal topic can be; a damaged one must not take the machine's memory.
BATCH_BYTES_MAX = 256 << 20
BATCH_RECORDS_MAX = 10_000_000

_END_OF_TRANSACTION = {ControlType.COMMIT: True, ControlType.ABORT: False}


class ShardLoader:
    __slots__ = (
        "_codec",
        "_executor",
        "_is_cancelled",
        "_log",
        "_machine",
        "_offset",
        "_on_loaded",
        "_scheduler",
        "_step",
        "records",
    )

    def __init__(
        self,
        log: ShardLog,
        codec: RecordCodec,
        machine: Machine,
        executor: Executor,
        scheduler: Scheduler,
        on_loaded: Callable[[Exception | None], None],
    ) -> None:
        """``on_loaded`` may be called from within ``start``."""
        self._log = log
        self._codec = codec
        self._machine = machine
        self._executor = executor
        self._scheduler = scheduler
        self._on_loaded = on_loaded
        self._offset = log.start_offset
        self._is_cancelled = False
        self._step: Cancellable | None = None
        self.records = 0

    def start(self) -> None:
        self._read_on()

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._step is not None:
            self._step.cancel()

    def _read_on(self) -> None:
        try:
            found = self._log.read(self._offset, READ_BYTES)
        except Exception as error:
            self._on_loaded(error)
            return
        if found is None:
            self._on_loaded(None)
            return
        file, position, length = found

        def read(completion: Completion) -> None:
            if self._is_cancelled:
                return
            if completion.error is not None:
                self._on_loaded(_as_exception(completion.error))
                return
            data = completion.result
            self._run(self._replay(data[: whole_batches_bytes(memoryview(data))]))

        self._executor.submit(lambda: file.read(position, length), read)

    def _run(self, replaying: Iterator[None]) -> None:
        """One slice."""
        self._step = None
        try:
            next(replaying)
        except StopIteration:
            self._read_on()
        except RecordError as error:
            self._on_loaded(UnreadableShard(str(error)))
        except Exception as error:
            self._on_loaded(error)
        else:
            self._step = self._scheduler.schedule(0, lambda: self._run(replaying))

    def _replay(self, data: bytes) -> Iterator[None]:
        records_max = self.records + SLICE_RECORDS
        bytes_left = SLICE_BYTES
        begin = self._offset
        for position, header in iterate_headers(data):
            if not crc_is_valid(data, position, header):
                raise UnreadableShard(f"the batch at offset {header.base_offset} fails its checksum")
            self._offset = header.next_offset
            if header.is_control:
                self._replay_marker(data, position, header)
                continue
            producer_id, producer_epoch = (header.producer_id, header.producer_epoch) if header.is_transactional else (-1, -1)
            for record in read_records(data, position, header, size_max=BATCH_BYTES_MAX, count_max=BATCH_RECORDS_MAX):
                key, value = record.key, record.value
                if record.offset < begin or key is None:
                    continue  # Below where to begin, or of nobody: a coordinator's records have keys.
                known = self._codec.decode(key, value)
                if known is not None:
                    self._machine.replay(known, record.offset, producer_id, producer_epoch)
                self.records += 1
                bytes_left -= len(key) + len(value or b"")
                if self.records >= records_max or bytes_left <= 0:
                    yield
                    records_max, bytes_left = self.records + SLICE_RECORDS, SLICE_BYTES

    def _replay_marker(self, data: bytes, position: int, header: BatchHeader) -> None:
        is_commit = _END_OF_TRANSACTION.get(read_control_type(data, position, header))
        if is_commit is not None:
            self._machine.replay_end_transaction(header.producer_id, is_commit)


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else UnreadableShard(repr(error))
