"""Reads the records of a batch of decisions: their values, which the quorum itself does not look into."""

from tidelog.ports.disk import Buffer
from tidelog.records.batch import read_records
from tidelog.records.errors import InvalidBatch
from tidelog.records.header import BatchHeader

# Far above what one decision writes; a damaged batch must not exhaust the memory.
BATCH_SIZE_MAX = 64 << 20
BATCH_RECORDS_MAX = 1_000_000


def read_values(data: Buffer, position: int, header: BatchHeader) -> list[bytes]:
    """The values of the batch at ``position``. Raises RecordError."""
    records = list(read_records(data, position, header, size_max=BATCH_SIZE_MAX, count_max=BATCH_RECORDS_MAX))
    values = [record.value for record in records if record.value is not None]
    if len(values) != len(records):
        raise InvalidBatch("it has a record without a value")
    return values
