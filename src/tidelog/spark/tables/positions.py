"""Which rows of a task the table lacks, and how far it comes with them. Pure: Arrow in, Arrow out.

A row has a place: topic, partition and offset. The table has a position for each partition, the offset that comes next, and
whatever lies before it is there already. What a task saw of the positions goes to the driver with its files, which commits them
only where that still holds.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.spark.tables.errors import WrongSchema

PLACE_COLUMNS = ("topic", "partition", "offset")


def position_name(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


class Positions:
    """Of one task. ``ask`` is the table's position by name, and asked once for each partition that the task meets: those that
    are added to a topic while a query runs need nobody who knows of them before."""

    def __init__(self, ask: Callable[[str], int]) -> None:
        self._ask = ask
        self.seen: dict[str, int] = {}
        self.next: dict[str, int] = {}

    def missing(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What the table lacks of the batch, in its order but by partition."""
        for topic, partition, rows in by_partition(batch):
            name = position_name(topic, partition)
            if name not in self.seen:
                self.seen[name] = self._ask(name)
            offsets = rows.column("offset")
            extent = pc.min_max(offsets).as_py()
            if extent["max"] < self.seen[name]:
                continue
            if extent["min"] < self.seen[name]:
                rows = rows.filter(pc.greater_equal(offsets, self.seen[name]))
            self.next[name] = max(self.next.get(name, 0), extent["max"] + 1)
            yield rows


def by_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    if missing := [name for name in PLACE_COLUMNS if batch.column(name).null_count]:
        raise WrongSchema(f"column {missing[0]} is null in a row: the table cannot tell whether it has that row already")
    topics, partitions = batch.column("topic"), batch.column("partition")
    # A task reads one partition, unless somebody shuffled the rows.
    if pc.all(pc.equal(topics, topics[0])).as_py() and pc.all(pc.equal(partitions, partitions[0])).as_py():
        yield topics[0].as_py(), partitions[0].as_py(), batch
        return
    pairs = pa.table([topics, partitions], names=["topic", "partition"]).group_by(["topic", "partition"]).aggregate([])
    for pair in pairs.to_pylist():
        is_of_it = pc.and_(pc.equal(topics, pair["topic"]), pc.equal(partitions, pair["partition"]))
        yield pair["topic"], pair["partition"], batch.filter(is_of_it)
