"""From messages to rows of an archive: the message itself, the fields of its JSON, and why there are none where it is bad.

Good is a value that is one JSON object in UTF-8, whose fields have the types of the schema, or are missing where they may be. A
message without a value (a tombstone) is good, and has no fields. Whatever else is bad: its fields are null, ``error`` says why,
and the message is kept whole like any other. Fields that the schema does not have are in the value, and nowhere else.

Two things are Spark's: a STRING takes any JSON as its text, and a DECIMAL rounds.
"""

from collections.abc import Callable, Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from tidelog.spark.pipelines.archive_schema import BAD, DAY, FIRST_DAY, LAST_DAY, RAW_COLUMNS

SECONDS_PER_DAY = 86_400
_STRICT = {"mode": "PERMISSIVE", "allowSingleQuotes": "false", "allowNonNumericNumbers": "false", "timeZone": "UTC"}
_CORRUPT = "corrupt"


def archive_rows(messages: DataFrame, schema: StructType | None) -> DataFrame:
    """The columns of the archive, in its order. ``messages`` are the source's, with headers."""
    if schema is None:
        rows = messages.withColumns({"error": F.lit(None).cast("string"), BAD: F.lit(False)})
        return rows.withColumn(DAY, _day()).select(*RAW_COLUMNS.names, DAY, BAD)
    parsed = messages.withColumn("parsed", _parsed(F.col("value").cast("string"), schema))
    judged = parsed.withColumn("error", _error(schema))
    is_bad = F.col("error").isNotNull()
    fields = [F.when(~is_bad, F.col("parsed.value")[name]).alias(name) for name in schema.names]
    return judged.select(*RAW_COLUMNS.names, *fields, _day().alias(DAY), is_bad.alias(BAD))


def _day() -> Column:
    """In UTC, whatever the zone of the session is."""
    day = F.floor(F.unix_seconds("timestamp") / SECONDS_PER_DAY).cast("int")
    return F.when(day.between(FIRST_DAY, LAST_DAY), F.date_from_unix_date(day))


def _parsed(text: Column, schema: StructType) -> Column:
    """Spark stops reading behind the first object and does not mind what follows: so it gets the text as a part of another
    object, whose end it has to come to. A text may go on as that object does (``_is_one`` tells)."""
    whole = F.concat(F.lit('{"value":'), text, F.lit(',"end":true}'))
    wanted = StructType().add("value", schema).add("end", "boolean").add(_CORRUPT, "string")
    return F.from_json(whole, wanted, {**_STRICT, "columnNameOfCorruptRecord": _CORRUPT})


def _is_one(text: Column) -> Column:
    """Whoever writes ``{"id":1},"end":true} more`` goes on as the object around it does. No text does that and is one element of
    a list as well."""
    return F.coalesce(F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1, F.lit(False))


def _error(schema: StructType) -> Column:
    """Null for what is good."""
    text = F.col("value").cast("string")
    parsed, value = F.col("parsed"), F.col("parsed.value")
    is_whole = parsed[_CORRUPT].isNull() & parsed["end"].isNotNull() & value.isNotNull() & _is_one(text)
    found = F.when(F.col("value").isNull(), None).when(~F.is_valid_utf8(text), "not UTF-8").when(~is_whole, _misfit(text, schema))
    for path, is_missing in _required(schema, value, ""):
        found = found.when(is_missing, f"field {path} is missing")
    return found.otherwise(None).cast("string")


def _misfit(text: Column, schema: StructType) -> Column:
    """For bad rows only, which are read once more for it."""
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
    """Each field that may not be null, and whether it is although what it is in is there."""
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
