"""The columns of the source, as Spark writes them: those of ``client.fetch.schema``, by the stock connector's names."""

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
