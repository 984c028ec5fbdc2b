"""What a user says of the JSON in a topic's values, and the columns that an archive has with it.

A schema is Spark's DDL (``id BIGINT NOT NULL, city STRING``) or the JSON of a ``StructType``, on the command line or in a file.
"""

import json
from pathlib import Path

import pyarrow as pa
from deltalake import Schema
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, VariantType

from tidelog.client.errors import InvalidArgument
from tidelog.client.fetch.schema import HEADERS_TYPE

RAW_COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("error", pa.string()),
    ]
)
DAY, BAD = "day", "bad"
PARTITION_COLUMNS = pa.schema([(DAY, pa.date32()), (BAD, pa.bool_())])
PARTITION_BY = (DAY, BAD)
# In days since 1970. A producer may write any 64 bits as a time: a day that no date can be written down of is null.
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
_RESERVED = {name.lower() for name in (*RAW_COLUMNS.names, *PARTITION_COLUMNS.names)}
# Names of columns become names in Parquet files, where Delta allows none of these.
_FORBIDDEN_CHARACTERS = " ,;{}()\n\t="


def read_schema(text: str | None, file: str | None) -> StructType | None:
    """None where neither is given. Needs a Spark session, which knows the types."""
    if file is not None:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"--schema-file {file} cannot be read: {error}") from error
    if text is None:
        return None
    option = "--schema" if file is None else f"--schema-file {file}"
    schema = _parse(text.strip(), option)
    _check_names(schema, option)
    _check_types(schema, option)
    return schema


def archive_columns(schema: StructType | None) -> pa.Schema:
    """Of the whole table, in its order."""
    fields = to_arrow_schema(schema, timezone="UTC") if schema is not None else pa.schema([])
    return pa.schema([*RAW_COLUMNS, *fields, *PARTITION_COLUMNS])


def _parse(text: str, option: str) -> StructType:
    try:
        found = StructType.fromJson(json.loads(text)) if text.startswith("{") else StructType.fromDDL(text)
    except (PySparkException, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidArgument(
            f"{option} is no schema: {reason}; expected columns such as id BIGINT NOT NULL, city STRING, "
            "or the JSON of a Spark StructType"
        ) from error
    if not isinstance(found, StructType) or not found.fields:
        raise InvalidArgument(f"{option} names no fields: expected columns such as id BIGINT NOT NULL, city STRING")
    return found


def _check_names(schema: StructType, option: str) -> None:
    seen: set[str] = set()
    for name in schema.names:
        if name.lower() in _RESERVED:
            raise InvalidArgument(
                f"{option} has a field {name}, and the archive has a column of that name for the message itself: leave it out "
                "(the value is kept whole)"
            )
        if name.lower() in seen:
            raise InvalidArgument(f"{option} has field {name} twice (Spark does not tell upper from lower case)")
        if not name or any(character in _FORBIDDEN_CHARACTERS for character in name):
            raise InvalidArgument(f"{option} has a field {name!r}: a column's name has no blanks and none of , ; {{ }} ( ) =")
        seen.add(name.lower())


def _check_types(schema: StructType, option: str) -> None:
    for field in schema.fields:
        try:
            if isinstance(field.dataType, VariantType):
                raise ValueError("a table cannot hold it")
            arrow = to_arrow_schema(StructType([field]), timezone="UTC")
            if any(pa.types.is_null(each.type) for each in arrow):
                raise ValueError("a table cannot hold it")
            Schema.from_arrow(arrow)
        except Exception as error:  # deltalake raises the bare class for types that it does not know
            raise InvalidArgument(
                f"{option}: field {field.name} is {field.dataType.simpleString()}, which a Delta table cannot hold"
            ) from error
