"""A batch: what is between two bounds when it is planned."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidelog.client.errors import InvalidArgument, UnknownTopic
from tidelog.spark.catalogue import Asks, Catalogue, ending_positions, look, starting_positions
from tidelog.spark.clients import fetch_client, forget_client
from tidelog.spark.options import SourceOptions
from tidelog.spark.planning import Span, split
from tidelog.spark.task import read_span


class SpanPartition(InputPartition):
    """A task's part. Plain data: it is pickled, and read in another process."""

    def __init__(self, span: Span) -> None:
        super().__init__(tuple(span))

    @property
    def span(self) -> Span:
        return Span(*self.value)


class TidelogReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        try:
            return [SpanPartition(span) for span in self._plan()]
        finally:
            forget_client(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is nothing to read, Spark makes up a partition of its own.
        return read_span(self._options, partition.span) if isinstance(partition, SpanPartition) else iter(())

    def _plan(self) -> list[Span]:
        options = self._options
        client = fetch_client(options)
        catalogue = look(client, options.topics)
        if not catalogue.partitions:
            raise UnknownTopic(f"option subscribePattern: no topic matches {options.topics}")
        if options.offset_ranges is not None:
            return split(_ranged(client, options, catalogue), options.min_partitions, options.max_records_per_partition)
        # The end first: a log only grows, so that a start that is found later is never beyond an end by mistake.
        ends = ending_positions(client, options, catalogue.partitions)
        starts = starting_positions(client, options, catalogue.partitions)
        spans = [
            Span(partition.topic, catalogue.ids[partition.topic], partition.partition, starts[partition], ends[partition])
            for partition in catalogue.partitions
        ]
        for span in spans:
            if span.size < 0 and options.starting.kind == options.ending.kind == "offsets":
                raise InvalidArgument(f"{span.topic}[{span.partition}] ends at {span.end}, before it begins at {span.start}")
        return split(spans, options.min_partitions, options.max_records_per_partition)


def _ranged(client: Asks, options: SourceOptions, catalogue: Catalogue) -> list[Span]:
    """What is before the log's start is a loss that the tasks judge; beyond its end a reader would wait."""
    wanted = options.offset_ranges or {}
    if strange := [partition for partition in wanted if partition not in catalogue.partitions]:
        raise InvalidArgument(f"option offsetRanges has {strange[0].topic}[{strange[0].partition}], which is not read")
    ends = client.offsets(list(wanted), "latest")
    spans = []
    for partition, ranges in wanted.items():
        topic_id = catalogue.ids[partition.topic]
        spans += [Span(partition.topic, topic_id, partition.partition, start, end) for start, end in ranges]
        if ranges and max(end for _, end in ranges) > ends[partition]:
            raise InvalidArgument(
                f"option offsetRanges: {partition.topic}[{partition.partition}] ends at {ends[partition]}, and a range goes on"
            )
    return spans
