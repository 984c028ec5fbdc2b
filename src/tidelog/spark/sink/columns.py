"""Which columns a row may have, which it must have, and of which types: checked before anything runs.

As in the stock connector: value (text or bytes), and key, headers, partition, topic where wanted; timestamp is ours. Without the
option ``topic`` the column must be there; with it the column is not looked at.
"""

from typing import NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from tidelog.client.errors import InvalidArgument

_TEXT = (StringType, BinaryType)
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "key": (_TEXT, "string or binary"),
    "value": (_TEXT, "string or binary"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
    "timestamp": ((TimestampType,), "timestamp"),
}
_HEADERS = "array<struct<key:string,value:binary>>"


class Columns(NamedTuple):
    """Where each is in the batches; None where there is none."""

    value: int
    key: int | None
    headers: int | None
    partition: int | None
    timestamp: int | None
    topic: int | None


def check_columns(schema: StructType, topic: str | None) -> Columns:
    places = {field.name.lower(): index for index, field in enumerate(schema.fields)}
    known = [*_TYPES, "headers"]
    for field in schema.fields:
        if field.name.lower() not in known:
            raise InvalidArgument(
                f"the sink has no column {field.name}: select those of {', '.join(known)} (to_json(struct(...)) makes one value "
                "of several columns)"
            )
        _check_type(field.name, field.dataType)
    if "value" not in places:
        raise InvalidArgument(f"the column value is missing: there are {', '.join(schema.fieldNames()) or 'none'}")
    if "topic" not in places and topic is None:
        raise InvalidArgument("where to? Give the option topic, or a column topic")
    return Columns(
        places["value"],
        places.get("key"),
        places.get("headers"),
        places.get("partition"),
        places.get("timestamp"),
        places.get("topic") if topic is None else None,
    )


def _check_type(name: str, found: DataType) -> None:
    if name.lower() == "headers":
        is_right = (
            isinstance(found, ArrayType)
            and isinstance(found.elementType, StructType)
            and [(field.name, type(field.dataType)) for field in found.elementType.fields]
            == [("key", StringType), ("value", BinaryType)]
        )
        wanted = _HEADERS
    else:
        types, wanted = _TYPES[name.lower()]
        is_right = isinstance(found, types)
    if not is_right:
        raise InvalidArgument(f"the column {name} is {wanted}: not {found.simpleString()}")
