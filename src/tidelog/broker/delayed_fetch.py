"""A fetch that waits for data: answered when enough bytes are there, when its time is up, or when one of its partitions has an
error.

While it waits it costs nothing: each of its partitions knows it and says when its watermark moves. A fetch that wants many bytes
of a thousand partitions hears of that a thousand times before it has them, so then only the partition that moved is read, until
there may be enough.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.error_mapping import error_code_of
from tidelog.log.reading import Isolation, LogRead, read
from tidelog.replication.partition import Partition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import FetchResult

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.timers import Timer


# Thousands of long polls end all the time. Those that end within so many milliseconds end together: to wake up for each costs as
# much as to answer it.
COARSE_WAIT_MS_MIN = 100
COARSE_STEP_MS = 10


class WantedPartition(NamedTuple):
    """One partition of a fetch request, as far as it could be found."""

    topic: str | None
    topic_id: bytes | None
    partition_index: int
    fetch_offset: int
    bytes_max: int
    current_leader_epoch: int
    partition: Partition | None
    error: tuple[ErrorCode, str] | None


class ReadSet(NamedTuple):
    results: list[FetchResult]
    """In the order of what was wanted."""
    bytes_read: int
    has_error: bool


def read_partitions(
    wanted: list[WantedPartition], bytes_max: int, isolation: Isolation, on_unexpected: Callable[[Exception], None]
) -> ReadSet:
    """Read each once. The first partition with data may exceed the limits by its first batch, so that a reader always gets on."""
    results = []
    remaining = bytes_max
    bytes_read = 0
    has_error = False
    for want in wanted:
        result, length = _read_one(want, min(remaining, want.bytes_max), isolation, bytes_read == 0, on_unexpected)
        results.append(result)
        bytes_read += length
        remaining = max(0, remaining - length)
        has_error = has_error or result.error is not ErrorCode.NONE
    return ReadSet(results, bytes_read, has_error)


def _read_one(
    want: WantedPartition, bytes_max: int, isolation: Isolation, at_least_one: bool, on_unexpected: Callable[[Exception], None]
) -> tuple[FetchResult, int]:
    partition = want.partition
    if partition is None:
        code = want.error[0] if want.error is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return FetchResult(want.partition_index, code), 0
    log = partition.log
    try:
        partition.check_epoch(want.current_leader_epoch)
        found: LogRead = read(log, want.fetch_offset, bytes_max, isolation, at_least_one)
    except Exception as error:
        code, _ = error_code_of(error)
        if code is ErrorCode.UNKNOWN_SERVER_ERROR:
            on_unexpected(error)
        return FetchResult(want.partition_index, code, log_start_offset=log.log_start_offset), 0
    aborted = None
    if isolation is Isolation.LAST_STABLE:
        aborted = [(transaction.producer_id, transaction.first_offset) for transaction in found.aborted]
    records = found.records
    result = FetchResult(
        want.partition_index,
        ErrorCode.NONE,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        aborted,
        records,
    )
    return result, records.length if records is not None else 0


class DelayedFetch:
    """Registered with its partitions from ``start`` until ``finish`` is called, once."""

    __slots__ = (
        "_broker",
        "_bytes_found",
        "_bytes_max",
        "_bytes_min",
        "_finish",
        "_found",
        "_is_done",
        "_isolation",
        "_lengths",
        "_places",
        "_timer",
        "_wanted",
    )

    def __init__(
        self,
        broker: "Broker",
        wanted: list[WantedPartition],
        bytes_min: int,
        bytes_max: int,
        isolation: Isolation,
        found: ReadSet,
        finish: Callable[[ReadSet], None],
    ) -> None:
        """``found`` is what there was when it came: not enough."""
        self._broker = broker
        self._wanted = wanted
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._isolation = isolation
        self._finish = finish
        # The answer when time is up and nothing has moved, else None: it has to be read again. Not when there are records in it:
        # their slices keep files open, and deletions move nothing.
        self._found: ReadSet | None = None if found.bytes_read else found
        self._is_done = False
        self._timer: Timer | None = None
        # Bytes that each of the wanted has, as if it were alone, and where in the request a partition stands; when first needed.
        self._lengths: list[int] = []
        self._places: dict[Partition, list[int]] = {}
        self._bytes_found = 0

    def start(self, wait_ms_max: int) -> None:
        for want in self._wanted:
            if want.partition is not None:
                want.partition.add_fetch_waiter(self)
        if wait_ms_max >= COARSE_WAIT_MS_MIN:
            # A few milliseconds later, together with others.
            wait_ms_max += -(self._broker.clock.monotonic_ms() + wait_ms_max) % COARSE_STEP_MS
        self._timer = self._broker.timers.schedule(wait_ms_max, self._time_out)

    def on_data(self, partition: Partition) -> None:
        """Enough by now? A partition that went away is an error, of which the reader should hear at once."""
        self._found = None
        if self._is_done or (self._bytes_min > 1 and not self._may_be_enough(partition)):
            return
        found = self._read()
        if found.bytes_read >= self._bytes_min or found.has_error:
            self._complete(found)

    def _may_be_enough(self, partition: Partition) -> bool:
        """If not, there is not enough. If so, all have to be read, in their order and within the limits."""
        if not self._lengths:
            self._lengths = [0] * len(self._wanted)
            for place, want in enumerate(self._wanted):
                if want.partition is not None:
                    self._places.setdefault(want.partition, []).append(place)
            moved: Iterable[int] = range(len(self._wanted))
        else:
            moved = self._places.get(partition, ())
        for place in moved:
            want = self._wanted[place]
            bytes_max = min(self._bytes_max, want.bytes_max)
            result, length = _read_one(want, bytes_max, self._isolation, True, self._broker.on_unexpected_error)
            if result.error is not ErrorCode.NONE:
                return True
            self._bytes_found += length - self._lengths[place]
            self._lengths[place] = length
        return self._bytes_found >= self._bytes_min

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        if not self._is_done:
            self._leave()

    def _read(self) -> ReadSet:
        return read_partitions(self._wanted, self._bytes_max, self._isolation, self._broker.on_unexpected_error)

    def _time_out(self) -> None:
        self._complete(self._found if self._found is not None else self._read())

    def _complete(self, found: ReadSet) -> None:
        self._leave()
        self._finish(found)

    def _leave(self) -> None:
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        for want in self._wanted:
            if want.partition is not None:
                want.partition.remove_fetch_waiter(self)
