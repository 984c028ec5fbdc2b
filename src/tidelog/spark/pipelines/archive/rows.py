"""Converts messages to rows of an archive: the message itself, the fields of its JSON, and the reason if it is bad.

A schema is Spark's DDL (``id BIGINT NOT NULL, city STRING``) or the JSON of a ``StructType``, on the command line or in a file.

A value is good if it is one JSON object in UTF-8 whose fields have the types of the schema, or are absent where the schema allows
it. A message without a value (a tombstone) is good and has no fields. Anything else is bad: its fields are null, ``error`` says
why, and the message itself is kept like any other. Fields that the schema does not name are in the value only.

Two rules are Spark's: a STRING takes any JSON as its text, and a DECIMAL rounds. Spark judges, except for values that the task
which read them could parse with certainty (``json_columns``).
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import Schema
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType

from tidelog.client.errors import InvalidArgument
from tidelog.client.fetch.types import HEADERS_TYPE

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
# In days since 1970. A producer may write any 64 bits as a time: a day that is not a valid date is null.
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
_RESERVED = {name.lower() for name in (*RAW_COLUMNS.names, *PARTITION_COLUMNS.names)}
# Column names become names in Parquet files, where Delta does not allow these characters.
_FORBIDDEN_CHARACTERS = " ,;{}()\n\t="


def read_schema(text: str | None, file: str | None) -> StructType | None:
    """Return None if neither is given. It needs a Spark session, which knows the types."""
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
    """All columns of the table, in order."""
    fields = to_arrow_schema(schema, timezone="UTC") if schema is not None else pa.schema([])
    return pa.schema([*RAW_COLUMNS, *fields, *PARTITION_COLUMNS])


def _parse(text: str, option: str) -> StructType:
    try:
        found = StructType.fromJson(json.loads(text)) if text.startswith("{") else StructType.fromDDL(text)
    except (PySparkException, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidArgument(
            f"{option} is not a schema: {reason}; expected columns such as id BIGINT NOT NULL, city STRING, "
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


# -- rows ---------------------------------------------------------------------------------------------------------------------


SECONDS_PER_DAY = 86_400
_STRICT = {"mode": "PERMISSIVE", "allowSingleQuotes": "false", "allowNonNumericNumbers": "false", "timeZone": "UTC"}
_CORRUPT = "corrupt"
# The columns of messages whose JSON was parsed when they were read: the fields, and whether they are certain.
FIELDS, CERTAIN = "_fields", "_certain"


def archive_rows(messages: DataFrame, schema: StructType | None, *others: str) -> DataFrame:
    """Return the columns of the archive, in its order, and ``others``. ``messages`` are the source's, with headers."""
    if schema is None:
        rows = messages.withColumns({"error": F.lit(None).cast("string"), BAD: F.lit(False)})
        return rows.withColumn(DAY, _day()).select(*RAW_COLUMNS.names, DAY, BAD, *others)
    text, certain = F.col("value").cast("string"), F.lit(None)
    if CERTAIN in messages.columns:
        text, certain = F.when(~F.col(CERTAIN), text), F.when(F.col(CERTAIN), F.col(FIELDS))
    parsed = messages.withColumn("text", text).withColumn("parsed", _parsed(F.col("text"), schema))
    judged = parsed.withColumn("error", _error(schema))
    is_bad = F.col("error").isNotNull()
    fields = [F.coalesce(certain[name], F.when(~is_bad, F.col("parsed.value")[name])).alias(name) for name in schema.names]
    return judged.select(*RAW_COLUMNS.names, *fields, _day().alias(DAY), is_bad.alias(BAD), *others)


def _day() -> Column:
    """The day in UTC, whatever the session's time zone is."""
    day = F.floor(F.unix_seconds("timestamp") / SECONDS_PER_DAY).cast("int")
    return F.when(day.between(FIRST_DAY, LAST_DAY), F.date_from_unix_date(day))


def _parsed(text: Column, schema: StructType) -> Column:
    """Parse the value. Spark stops reading after the first object and ignores what follows. So it gets the text as a part of
    another object, whose end it has to reach. A text may continue as that object does (``_is_one`` finds those)."""
    whole = F.concat(F.lit('{"value":'), text, F.lit(',"end":true}'))
    wanted = StructType().add("value", schema).add("end", "boolean").add(_CORRUPT, "string")
    return F.from_json(whole, wanted, {**_STRICT, "columnNameOfCorruptRecord": _CORRUPT})


def _is_one(text: Column) -> Column:
    """Whether the text is a single object. A text such as ``{"id":1},"end":true} more`` continues as the object around it does.
    No text does that and is one element of a list as well."""
    return F.coalesce(F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1, F.lit(False))


def _error(schema: StructType) -> Column:
    """The reason why a value is bad; null if it is good."""
    text = F.col("text")
    parsed, value = F.col("parsed"), F.col("parsed.value")
    is_whole = parsed[_CORRUPT].isNull() & parsed["end"].isNotNull() & value.isNotNull() & _is_one(text)
    found = F.when(text.isNull(), None).when(~F.is_valid_utf8(text), "not UTF-8").when(~is_whole, _misfit(text, schema))
    for path, is_missing in _required(schema, value, ""):
        found = found.when(is_missing, f"field {path} is missing")
    return found.otherwise(None).cast("string")


def _misfit(text: Column, schema: StructType) -> Column:
    """Find the reason for bad rows only, which are read once more for that."""
    as_list = F.concat(F.lit("["), text, F.lit("]"))
    texts = F.from_json(as_list, "array<map<string,string>>", _STRICT)
    by_name = F.get(texts, F.lit(0))
    is_object = (F.size(texts) == 1) & by_name.isNotNull()
    parsed = F.col("parsed.value")
    misfits = [
        F.when(by_name[field.name].isNotNull() & parsed[field.name].isNull(), _not_of_type(field)) for field in schema.fields
    ]
    first = F.coalesce(*misfits, F.lit("a field inside of another has the wrong type"))
    return (
        F.when(is_object, first)
        .when((F.trim(text) != "") & F.try_parse_json(as_list).isNotNull(), "not a JSON object")
        .otherwise("not JSON")
    )


def _not_of_type(field: StructField) -> str:
    return f"field {field.name} is no {field.dataType.simpleString()}"


def _required(kind: DataType, value: Column, path: str) -> Iterator[tuple[str, Column]]:
    """Each required field, and whether it is null although its parent exists."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            name = f"{path}.{field.name}" if path else field.name
            if not field.nullable:
                yield name, value.isNotNull() & value[field.name].isNull()
            yield from _required(field.dataType, value[field.name], name)
    elif isinstance(kind, ArrayType):
        yield from _required_of_each(kind.elementType, value, f"{path}[]")
    elif isinstance(kind, MapType):
        yield from _required_of_each(kind.valueType, F.map_values(value), f"{path}{{}}")


def _required_of_each(kind: DataType, values: Column, path: str) -> Iterator[tuple[str, Column]]:
    for index, (name, _) in enumerate(_required(kind, F.lit(None), path)):
        yield name, F.exists(values, _is_missing(kind, path, index))


def _is_missing(kind: DataType, path: str, index: int) -> Callable[[Column], Column]:
    return lambda element: list(_required(kind, element, path))[index][1]
