"""A metadata log in memory, whose durability comes when the test says so."""

from collections.abc import Callable, Iterator

from tidelog.records.header import iterate_headers, read_header, restamped_prefix


class MemoryLog:
    def __init__(self, data: bytes | bytearray = b"") -> None:
        self.data = bytearray(data)
        self.append_error: Exception | None = None
        self.waiting: list[tuple[int, Callable[[Exception | None], None]]] = []

    @property
    def latest_epoch(self) -> int:
        return max([header.leader_epoch for _, header in iterate_headers(self.data)], default=-1)

    @property
    def end_offset(self) -> int:
        return max([header.next_offset for _, header in iterate_headers(self.data)], default=0)

    def append(self, batch: bytes, epoch: int) -> tuple[int, int]:
        if self.append_error is not None:
            raise self.append_error
        first_offset = self.end_offset
        header = read_header(batch, 0)
        prefix = restamped_prefix(header, first_offset, epoch)
        self.data += prefix + batch[len(prefix) :]
        return first_offset, first_offset + header.last_offset_delta

    def wait_durable(self, end_offset: int, on_durable: Callable[[Exception | None], None]) -> None:
        self.waiting.append((end_offset, on_durable))

    def sync(self, error: Exception | None = None) -> None:
        """All that waits hears that it is durable, or that it never will be."""
        waiting, self.waiting = self.waiting, []
        for _, on_durable in waiting:
            on_durable(error)

    def committed_batches(self) -> Iterator[bytes]:
        """In two runs, so that a reader cannot take one for all."""
        positions = [position for position, _ in iterate_headers(self.data)]
        middle = positions[len(positions) // 2] if positions else 0
        for run in (self.data[:middle], self.data[middle:]):
            if run:
                yield bytes(run)
