"""What the quorum needs of the log below it: append, durable, read. Whoever puts the parts together hands it in."""

from collections.abc import Callable, Iterator
from typing import Protocol


class MetadataLog(Protocol):
    @property
    def latest_epoch(self) -> int:
        """Of the last batch; -1 when there is none."""
        ...

    def append(self, batch: bytes, epoch: int) -> tuple[int, int]:
        """First and last offset that the batch was given. An exception means that nothing of it is in the log."""
        ...

    def wait_durable(self, end_offset: int, on_durable: Callable[[Exception | None], None]) -> None:
        """Call back once everything below ``end_offset`` is durable, in the order of the calls. An error means that this will
        never
        be known: then nothing can be appended any more either."""
        ...

    def committed_batches(self) -> Iterator[bytes]:
        """All that was durable when the log was opened, from its start on: runs of whole batches."""
        ...
