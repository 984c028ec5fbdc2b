"""The columns of a table against those that a pipeline writes: what is missing is added, what differs is refused.

Pure: types are Arrow's, and compared as Delta keeps them.
"""

import pyarrow as pa

from tidelog.spark.tables.errors import WrongSchema


def missing_columns(table: pa.Schema, wanted: pa.Schema, place: str) -> list[pa.Field]:
    """Those of ``wanted`` that the table has to get. WrongSchema when a column of both has two types."""
    for field in wanted:
        if field.name in table.names and not is_same(table.field(field.name).type, field.type):
            found = table.field(field.name).type
            raise WrongSchema(
                f"the table {place} has column {field.name} as {found}, the pipeline writes {field.type}: "
                f"give the field another name, or write to a new table"
            )
    missing = [field for field in wanted if field.name not in table.names]
    by_lower = {name.lower(): name for name in table.names}
    for field in missing:
        if field.name.lower() in by_lower:
            raise WrongSchema(
                f"the table {place} has column {by_lower[field.name.lower()]}, and cannot have {field.name} beside it: Spark "
                "does not tell upper from lower case"
            )
    return missing


def is_same(one: pa.DataType, other: pa.DataType) -> bool:
    """Names inside of lists and the width of their offsets are not the table's."""
    if pa.types.is_list(one) or pa.types.is_large_list(one):
        return (pa.types.is_list(other) or pa.types.is_large_list(other)) and is_same(one.value_type, other.value_type)
    if pa.types.is_struct(one):
        return (
            pa.types.is_struct(other)
            and [field.name for field in one] == [field.name for field in other]
            and all(is_same(mine.type, theirs.type) for mine, theirs in zip(one, other, strict=True))
        )
    return bool(_plain(one) == _plain(other))


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) and kind.tz is not None else kind
