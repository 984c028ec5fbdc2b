"""What a task of the source does: one span of offsets of one partition, as Arrow batches.

It ends when its position reaches the end of the span, whatever there was on the way. Offsets that the log has lost meanwhile are
a failure that names them; with failOnDataLoss=false they are left out, and nothing else is: reading goes on at the log's start.
"""

from collections.abc import Iterator

import pyarrow as pa

from tidelog.client.fetch.errors import OffsetsLost
from tidelog.client.topic_partition import Partition
from tidelog.spark.catalogue import warn_of_loss
from tidelog.spark.clients import fetch_client, forget_client
from tidelog.spark.options import SourceOptions
from tidelog.spark.planning import Span

_NO_ID = bytes(16)


def read_span(options: SourceOptions, span: Span) -> Iterator[pa.RecordBatch]:
    position = span.start
    while position < span.end:
        batches = fetch_client(options).read(
            span.topic,
            span.partition,
            position,
            span.end,
            expected_topic_id=None if span.topic_id == _NO_ID else span.topic_id,
            include_headers=options.include_headers,
        )
        try:
            yield from batches
            return
        except OffsetsLost as lost:
            if options.fails_on_data_loss:
                raise
            warn_of_loss(Partition(span.topic, span.partition), lost.wanted, min(lost.log_start, span.end))
            position = lost.log_start
        except Exception:
            # Its connections may be in the middle of an answer.
            forget_client(options)
            raise
