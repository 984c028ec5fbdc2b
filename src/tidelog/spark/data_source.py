"""The data source that Spark finds under ``format("tidelog")``: options in, readers and writers out.

Spark starts a Python process for every stream, and the stream begins when that process has loaded this module, so modules that
only a sink needs are imported on use. The columns are those of ``client.fetch.types`` under the stock connector's names.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from tidelog.client.errors import InvalidArgument
from tidelog.spark.options import SinkOptions, SourceOptions, wants_headers
from tidelog.spark.pushed_filters import are_wanted
from tidelog.spark.source import FilteringReader, TidelogReader, TidelogStreamReader

_COLUMNS = (
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
)
_HEADERS = ("headers", "array<struct<key:string,value:binary>>")


def schema_text(include_headers: bool) -> str:
    columns = (*_COLUMNS, _HEADERS) if include_headers else _COLUMNS
    return ",".join(f"{name}:{kind}" for name, kind in columns)


class TidelogDataSource(DataSource):
    """Every process that needs it creates it from the options alone."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> str:
        return f"struct<{schema_text(wants_headers(self.options))}>"

    def reader(self, schema: StructType) -> DataSourceReader:
        options = _with_columns(schema, SourceOptions.parse(self.options, is_stream=False))
        return FilteringReader(options) if are_wanted() else TidelogReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - the name that Spark calls
        return TidelogStreamReader(_with_columns(schema, SourceOptions.parse(self.options, is_stream=True)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from tidelog.spark.sink.writers import batch_writer

        return batch_writer(SinkOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        from tidelog.spark.sink.writers import stream_writer

        return stream_writer(SinkOptions.parse(self.options), schema, overwrite)


def _with_columns(schema: StructType, options: SourceOptions) -> SourceOptions:
    """Only the columns of the schema are decoded. A user who gives another schema most likely means that of the value."""
    known = dict((*_COLUMNS, _HEADERS))
    for field in schema.fields:
        if known.get(field.name) != field.dataType.simpleString():
            raise InvalidArgument(
                f"the source has no column {field.name} {field.dataType.simpleString()}: leave schema(...) out, or choose from "
                f"{schema_text(True)}; decode the value in Spark (from_json, cast)"
            )
    return options._replace(columns=tuple(schema.names))
