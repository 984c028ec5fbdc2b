"""What is parsed without Spark is what Spark parses: the same values are good, with the same fields, and no others are."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from tests.spark.pipelines.archive.test_rows import VALUES
from tidelog.client.fetch.types import SCHEMA_WITH_HEADERS
from tidelog.spark.pipelines.archive import json_columns
from tidelog.spark.pipelines.archive.json_columns import JsonColumns, can_parse
from tidelog.spark.pipelines.archive.rows import CERTAIN, FIELDS, archive_rows

# The columns of ``test_rows``.
SCHEMA = (
    StructType()
    .add("id", LongType(), nullable=False)
    .add("city", StringType())
    .add("placed", TimestampType())
    .add("buyer", StructType().add("name", StringType(), nullable=False).add("age", IntegerType()))
    .add("price", DecimalType(5, 2))
    .add("lines", ArrayType(StructType().add("sku", StringType(), nullable=False)))
)
# All kinds, also within others.
WIDE = (
    StructType()
    .add("id", LongType(), nullable=False)
    .add("v", StringType())
    .add("end", BooleanType())
    .add("byte", ByteType())
    .add("short", ShortType())
    .add("double", DoubleType())
    .add("price", DecimalType(5, 2))
    .add("day", DateType())
    .add("moments", ArrayType(TimestampType()))
    .add("inner", StructType().add("day", DateType(), nullable=False).add("names", ArrayType(StringType())))
)


def parsed(*values: bytes | None, schema: StructType = SCHEMA) -> list[Any]:
    """The fields of each value; a text for those that are left to Spark."""
    found = JsonColumns(schema).parse(pa.array(values, pa.binary()))
    assert len(found.fields) == len(found.is_certain) == len(values)
    certain = found.is_certain.to_pylist()
    assert not [fields for fields, is_certain in zip(found.fields.to_pylist(), certain, strict=True) if fields and not is_certain]
    return [fields if is_certain else "uncertain" for fields, is_certain in zip(found.fields.to_pylist(), certain, strict=True)]


@pytest.mark.parametrize(("value", "error"), VALUES)
def test_no_bad_value_is_accepted(value: bytes | None, error: str | None) -> None:
    (fields,) = parsed(value)
    if error is not None:
        assert fields == "uncertain"
    assert (fields is None) == (value is None)


def test_bad_values_do_not_spoil_those_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_columns, "ATTEMPTS_MAX", 1_000)
    bad = [value for value, error in VALUES if error is not None]
    values: list[bytes | None] = [b'{"id": %d, "buyer": {"name": "x"}}' % number for number in range(3 * len(bad))]
    for number, value in enumerate(bad):
        values[3 * number] = value
    found = parsed(*values)
    assert [found[3 * number] for number in range(len(bad))] == ["uncertain"] * len(bad)
    # Those that errors do not name are found by halving, down to a few.
    known = [fields["id"] for fields in found if fields != "uncertain"]
    assert len(known) > len(bad)
    assert known == [number for number, fields in enumerate(found) if fields != "uncertain"]


@pytest.mark.parametrize(
    "value",
    [
        b'{"id": 1, "other": NaN}',
        b'{"id": 1, "other": [-Infinity]}',
        b'{"id": 1, "other": ' + b"[" * 2000 + b"]" * 2000 + b"}",
        b'{"id": 1, "other": ' + b"9" * 2000 + b"}",
        b'{"id": 1, "' + b"x" * 60_000 + b'": 1}',
        b'{"id": 1}}\0{"v":{"id":2}',
        b'{"id": 1}}\0',
        b'{"id": 1}}\n{"v":{"id": 2}',
        b'{"id": 1},"w":[{"id": 1}],"x":{"id": 2}',
        b'\xef\xbb\xbf{"id": 1}',
        b'{"id": 1, "id": 2}',
        b'{"id": 1, "price": -32769}',
        b'{"id": 1, "price": 1e3}',
        b'{"id": 1, "placed": "2026-02-30T10:00:00"}',
        b'{"id": 1, "placed": "2026-02-28T10:00:60"}',
    ],
)
def test_what_only_pyarrow_would_take_is_left_to_spark(value: bytes) -> None:
    assert parsed(value) == ["uncertain"]
    # Not even together with a value that makes up for it.
    assert parsed(value, b"", b'{"id": 1')[0] == "uncertain"


def test_two_values_are_never_one() -> None:
    assert parsed(b'{"id": 1', b'"city": "x"}') == ["uncertain"] * 2
    assert parsed(b'{"id": 1, "city": "', b'"}') == ["uncertain"] * 2
    assert parsed(b'{"id": 1}}{"v":{"id": 2}', b"") == ["uncertain"] * 2


def test_attempts_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []
    attempt = JsonColumns._attempt

    def count(columns: JsonColumns, documents: pa.Array) -> pa.StructArray:
        attempts.append(len(documents))
        return attempt(columns, documents)

    monkeypatch.setattr(JsonColumns, "_attempt", count)
    assert parsed(*[b'{"id": 1.5}'] * 2000) == ["uncertain"] * 2000
    assert len(attempts) * json_columns.ROWS_OF_AN_ATTEMPT <= json_columns.ATTEMPTS_MAX * 2500 + 1000


def test_types() -> None:
    assert can_parse(SCHEMA)
    assert can_parse(WIDE)
    for kind in (FloatType(), MapType(StringType(), StringType()), StringType("UTF8_LCASE"), StructType()):
        assert not can_parse(StructType().add("a", ArrayType(kind)))


# -- beside Spark -------------------------------------------------------------------------------------------------------------


TEXTS = [
    "",
    "x",
    "}{",
    '"',
    "},",
    "ü",
    "\u2028",
    "a\nb",
    "😀",
    "\\",
    "\x7f",
    "NaN",
    ": NaN",
    "2026-01-01",
    "1",
    "true",
    "v",
    "\0",
]
NUMBERS = [
    "0",
    "-0",
    "1",
    "127",
    "128",
    "-32769",
    "1.0",
    "1e2",
    "1E+400",
    "0.1",
    "1.234",
    "999.99",
    "1e-320",
    "01",
    "+1",
    ".5",
    "5.",
]
NUMBERS += [
    "9223372036854775807",
    "9223372036854775808",
    "0.30000000000000004",
    "123456789012345678901234567890",
    "-",
    "1e",
    "NaN",
]
DAYS = [
    "2026-02-28",
    "2024-02-29",
    "2026-02-29",
    "2026-13-01",
    "1582-10-10",
    "0001-01-01",
    "9999-12-31",
    "2026-1-2",
    "26-01-01",
    "",
]
TIMES = [
    "T10:00:00",
    " 23:59:59.123456",
    "T10:00:00Z",
    "T10:00",
    "T24:00:00",
    "T10:00:60",
    "T10:00:00+02:00",
    "T1:2:3",
    "T10:00:00.1234567",
]
JUNK = [
    "}",
    "{",
    "[",
    "]",
    ",",
    '"',
    ":",
    "\\",
    "\n",
    "\0",
    " ",
    "null",
    "NaN",
    '},"v":{',
    '}\n{"v":',
    ',"end":true}',
    "\\ud800",
    "\\u0041",
    "\t",
]


class Generator:
    """Values around what is good: most of them fit, some fit otherwise, some are damaged."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def value(self) -> bytes:
        names: dict[str, Callable[[], str]] = {
            "id": self._number,
            "v": self._text,
            "end": self._truth,
            "byte": self._number,
            "short": self._number,
            "double": self._number,
            "price": self._number,
            "day": self._day,
            "moments": lambda: self._list(self._moment),
            "inner": lambda: self._object({"day": self._day, "names": lambda: self._list(self._text), "x": self._any}),
            "other": self._any,
        }
        text = self._object(names, always="id").encode("utf-8", "surrogatepass")
        damages = self._random.choice([0, 0, 0, 1, 2])
        for _ in range(damages):
            text = self._damaged(text)
        return text

    def _object(self, names: dict[str, Callable[[], str]], always: str = "") -> str:
        chosen = [name for name in names if name == always or self._random.random() < 0.25]
        if self._is_odd(0.05):
            chosen = self._random.choices(list(names), k=2)
        blank = self._random.choice(["", "", " ", "\n"])
        pairs = [f'"{name}"{blank}:{blank}{names[name]()}' for name in chosen]
        return "{" + f",{blank}".join(pairs) + "}"

    def _list(self, of: Callable[[], str]) -> str:
        return "[" + ",".join(of() for _ in range(self._random.choice([0, 1, 2]))) + "]"

    def _any(self) -> str:
        if self._is_odd(0.3):
            return self._list(self._any) if self._is_odd(0.5) else self._object({"a": self._any, "b": self._any})
        return self._random.choice([self._number, self._text, self._truth])()

    def _number(self) -> str:
        return self._random.choice(NUMBERS) if self._is_odd(0.05) else str(self._random.randrange(100))

    def _text(self) -> str:
        return self._any() if self._is_odd(0.02) else json.dumps(self._random.choice(TEXTS), ensure_ascii=self._is_odd(0.5))

    def _truth(self) -> str:
        return self._random.choice(["true", "false", "null"])

    def _day(self) -> str:
        return f'"{self._random.choice(DAYS if self._is_odd(0.1) else DAYS[:2])}"'

    def _moment(self) -> str:
        return self._day()[:-1] + self._random.choice(TIMES if self._is_odd(0.1) else TIMES[:3]) + '"'

    def _damaged(self, text: bytes) -> bytes:
        place = self._random.randrange(len(text) + 1)
        junk = self._random.choice(JUNK).encode() if self._is_odd(0.9) else self._random.randbytes(1)
        way = self._random.randrange(4)
        if way == 0:
            return text[:place] + junk + text[place:]
        if way == 1:
            return text[:place] + text[place + 1 :]
        return text + junk + (text if way == 2 else b"")

    def _is_odd(self, share: float) -> bool:
        return self._random.random() < share


def messages(values: Sequence[bytes]) -> pa.Table:
    count = len(values)
    given = {"value": pa.array(values, pa.binary()), "offset": pa.array(range(count))}
    return pa.table([given.get(field.name, pa.nulls(count, field.type)) for field in SCHEMA_WITH_HEADERS], SCHEMA_WITH_HEADERS)


def assert_judged_alike(spark: SparkSession, values: list[bytes], random_numbers: random.Random) -> int:
    """Return how many values were parsed without Spark."""
    table = messages(values)
    long = archive_rows(spark.createDataFrame(table), WIDE).orderBy("offset").toArrow()
    start, fields, certain = 0, [], []
    while start < len(values):
        part = table.column("value").combine_chunks().slice(start, random_numbers.choice([1, 10, 100]))
        found = JsonColumns(WIDE).parse(part)
        fields.append(found.fields)
        certain.append(found.is_certain)
        start += len(part)
    with_fields = table.append_column(FIELDS, pa.chunked_array(fields)).append_column(CERTAIN, pa.chunked_array(certain))
    short = archive_rows(spark.createDataFrame(with_fields), WIDE).orderBy("offset").toArrow()
    # Python has no objects for some of the dates that Spark takes.
    differing = (
        [] if short.equals(long) else [row for row in range(len(values)) if not short.slice(row, 1).equals(long.slice(row, 1))]
    )
    assert [(values[row], str(short.slice(row, 1)), str(long.slice(row, 1))) for row in differing[:3]] == []
    return int(pc.sum(with_fields.column(CERTAIN)).as_py())


def test_spark_judges_alike(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_columns, "ATTEMPTS_MAX", 1_000)
    generator = Generator(20261118)
    values = [value for value, _ in VALUES if value is not None]
    values += [generator.value() for _ in range(3_000)]
    certain = assert_judged_alike(spark, values, random.Random(1))
    assert certain > len(values) // 4


@pytest.mark.soak
def test_spark_judges_alike_whatever_the_values_are(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_columns, "ATTEMPTS_MAX", 1_000)
    for _ in range(20):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        generator = Generator(seed)
        assert_judged_alike(spark, [generator.value() for _ in range(10_000)], random.Random(seed))
