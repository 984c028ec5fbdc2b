"""The columns that are the same in every row of a partition: made once, and sliced for each batch."""

import numpy as np
import pyarrow as pa

from tidelog.client.fetch.varints import Integers


class ConstantColumns:
    """Each batch has at most ``rows_max`` rows."""

    __slots__ = ("_create_time", "_partition", "_topic")

    def __init__(self, topic: str, partition: int, rows_max: int) -> None:
        self._topic = pa.repeat(pa.scalar(topic, pa.string()), rows_max)
        self._partition = pa.repeat(pa.scalar(partition, pa.int32()), rows_max)
        self._create_time = pa.repeat(pa.scalar(0, pa.int32()), rows_max)

    def topic(self, count: int) -> pa.Array:
        return self._topic.slice(0, count)

    def partition(self, count: int) -> pa.Array:
        return self._partition.slice(0, count)

    def timestamp_type(self, is_append_time: Integers) -> pa.Array:
        """0 for the producer's time, 1 for the broker's; one topic may have both, when its setting was changed."""
        if not is_append_time.any():
            return self._create_time.slice(0, len(is_append_time))
        return pa.array(is_append_time.astype(np.int32))
