"""Messages as lines: nothing is lost in JSON, and text shows what is no text."""

import json

import pytest

from tidelog.cli.errors import CommandFailed
from tidelog.cli.message_text import make_formatter


class Stored:
    """A message as librdkafka gives it."""

    def __init__(
        self, value: bytes | None, key: bytes | None = None, timestamp: tuple[int, int] = (1, 1_700_000_000_042)
    ) -> None:
        self._value = value
        self._key = key
        self._timestamp = timestamp

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [("a", b"1"), ("b", None)]

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp


def test_text() -> None:
    assert make_formatter("text")(Stored("grün".encode())) == "grün"
    assert make_formatter("text")(Stored(b"\xff\xfe")) == "\\xff\\xfe"
    assert make_formatter("text")(Stored(None)) == "null"


def test_full() -> None:
    assert make_formatter("full")(Stored(b"v", b"k")) == "3:7 2023-11-14T22:13:20.042Z k a=1,b=None v"
    assert make_formatter("full")(Stored(b"v", timestamp=(0, -1))) == "3:7 - null a=1,b=None v"


def test_json() -> None:
    document = json.loads(make_formatter("json")(Stored(b"\xff", b"k")))
    assert document == {
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "timestamp": 1_700_000_000_042,
        "key": "k",
        "value_base64": "/w==",
        "headers": [["a", "1"], ["b", None]],
    }


def test_a_template() -> None:
    assert make_formatter("{topic}-{partition}@{offset:04d} {timestamp}")(Stored(b"")) == "orders-3@0007 1700000000042"


@pytest.mark.parametrize("template", ["{nothing}", "{value", "{0}", "{key.secret}", "plain"])
def test_a_template_that_is_none(template: str) -> None:
    with pytest.raises(CommandFailed, match=r"^--format "):
        make_formatter(template)
