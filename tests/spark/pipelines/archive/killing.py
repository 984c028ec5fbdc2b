"""archive in a driver of its own that dies at a given point: ``python -m tests.spark.pipelines.archive.killing JSON``.

The sink and the source of the files are replaced by ones that strike; what to do they find beside the table, in ``KILL``.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceStreamReader, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from tests.spark.conftest import config_in
from tidelog.spark.pipelines.archive import pipeline as archive
from tidelog.spark.pipelines.archive.source import ArchiveFilesReader, ArchiveFilesSource
from tidelog.spark.pipelines.pipeline import Silent
from tidelog.spark.spark_session import session
from tidelog.spark.tables.data_files import DataFileWriter
from tidelog.spark.tables.table_sink import StreamTableWriter, TableMessage, TidelogTableSink

KILL = "kill.json"
# In the middle of a task's rows, when its files are there, before the driver's commit, after it.
POINTS = ("rows", "files", "before_commit", "after_commit")


def strike(place: Path, at: str) -> None:
    plan = json.loads((place.parent / KILL).read_text())
    if plan["at"] == at:
        for process_id in [*plan["pids"], os.getpid()]:
            os.kill(process_id, signal.SIGKILL)


class KillingSink(TidelogTableSink):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        writer = super().streamWriter(schema, overwrite)
        assert isinstance(writer, StreamTableWriter)
        return KillingWriter(writer._place, writer._shape)


class KillingWriter(StreamTableWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TableMessage:
        install(self._place)
        message = super().write(iterator)
        strike(self._place, "files")
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        strike(self._place, "before_commit")
        super().commit(messages, batchId)
        strike(self._place, "after_commit")


class KillingFilesSource(ArchiveFilesSource):
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        reader = super().streamReader(schema)
        assert isinstance(reader, ArchiveFilesReader)
        return KillingReader(reader._options, reader._place, reader._schema)


class KillingReader(ArchiveFilesReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        install(self._place)
        return super().read(partition)


def install(place: Path) -> None:
    """In this worker: half of the rows are written, the rest never."""
    write_part = DataFileWriter.write_part

    def half(writer: DataFileWriter, values: Any, rows: pa.RecordBatch) -> None:
        write_part(writer, values, rows.slice(0, rows.num_rows // 2))
        strike(place, "rows")
        write_part(writer, values, rows.slice(rows.num_rows // 2))

    setattr(DataFileWriter, "write_part", half)  # noqa: B010 - an assignment would be taken for a mistake


def main(text: str) -> None:
    given = json.loads(text)
    place = Path(given["table"])
    spark = session(app_name="kills", master="local[2]", config=config_in(str(place.parent / "local")))
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]  # started by this process
    (place.parent / KILL).write_text(json.dumps({"at": given["at"], "pids": [java, os.getpid()]}))
    setattr(archive, "TidelogTableSink", KillingSink)  # noqa: B010 - an assignment would be taken for a mistake
    setattr(archive, "ArchiveFilesSource", KillingFilesSource)  # noqa: B010 - the same
    options = archive.ArchiveOptions(
        topic=(given["topic"],), table=given["table"], bootstrap=given["bootstrap"], schema=given["schema"], batch_rows=200
    )
    archive.run(spark, options, Silent())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
