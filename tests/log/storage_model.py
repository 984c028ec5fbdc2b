"""A plain model of a partition: what was appended, what was promised.

The model keeps every batch that the log was given, as the bytes that must be in the file, and forgets none when the log deletes
it: what follows from the history (storage_history.py) needs all of it.

Promises, and where they are kept:

    acknowledged_end    below it the log has said "durable" (a waiter was called, or consumers were let see it)
    deleted_below       a delete of records was acknowledged up to here: they never come back
    start_offset_max    the log may begin here at the latest: nobody asked for more to be deleted
    ever                all bytes that were ever given to the log at an offset; anything else is out of thin air

What a log must therefore show is checked in storage_check.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.log.storage_history import Batch


@dataclass(slots=True)
class PartitionModel:
    topic: str
    partition: int
    topic_id: bytes
    is_compacted: bool = False
    batches: list[Batch] = field(default_factory=list)
    ever: dict[int, set[bytes]] = field(default_factory=dict)
    acknowledged_end: int = 0
    deleted_below: int = 0
    start_offset_max: int = 0
    is_deletion_asked: bool = False
    is_deletion_done: bool = False
    is_truncating: bool = False
    truncations: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    def copy(self) -> "PartitionModel":
        ever = {offset: set(versions) for offset, versions in self.ever.items()}
        return PartitionModel(
            self.topic,
            self.partition,
            self.topic_id,
            self.is_compacted,
            list(self.batches),
            ever,
            self.acknowledged_end,
            self.deleted_below,
            self.start_offset_max,
            self.is_deletion_asked,
            self.is_deletion_done,
        )

    def offer(self, batches: Iterable[Batch]) -> None:
        """These are about to be appended: from now on they may be found after a crash."""
        for batch in batches:
            self.ever.setdefault(batch.base_offset, set()).add(batch.data)

    def appended(self, batches: Iterable[Batch]) -> None:
        self.batches.extend(batches)

    def acknowledge(self, end_offset: int) -> None:
        self.acknowledged_end = max(self.acknowledged_end, end_offset)

    def end_after_cut(self, offset: int) -> int:
        """Where a log ends that was truncated to ``offset``: never inside a batch, nor in a gap."""
        return max([batch.last_offset + 1 for batch in self.batches if batch.last_offset < offset], default=0)

    def truncation_asked(self, offset: int) -> None:
        self.is_truncating = True
        self.truncations += 1
        self.acknowledged_end = min(self.acknowledged_end, self.end_after_cut(offset))

    def truncated(self, offset: int) -> None:
        end_offset = self.end_after_cut(offset)
        self.batches = [batch for batch in self.batches if batch.last_offset < end_offset]

    def came_back(self, history: list[Batch], topic_id: bytes, log_start_offset: int) -> None:
        """After a reopening what the log holds is the truth, and all of it durable."""
        self.topic_id = topic_id
        self.batches = history
        self.acknowledged_end = self.end_offset
        self.deleted_below = log_start_offset
        self.start_offset_max = max(self.start_offset_max, log_start_offset)
        self.is_deletion_asked = self.is_deletion_done = self.is_truncating = False
