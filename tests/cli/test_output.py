"""Tables, sizes, questions, and messages as lines: JSON loses nothing, and text shows bytes that are not text."""

import io
import json
import sys

import pytest
import typer

from tidelog.cli.errors import CommandFailed
from tidelog.cli.output import confirm, count_of, format_bytes, make_console, make_formatter, partitions_text, show_table
from tidelog.client.message import Message


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(make_console(), ("Name", "Count", "Rate"), [("[red]a", 1, 1234567.0), ("b", 20, 1.5)])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert rows[0] == ["Name", "Count", "Rate"]
    assert rows[1:] == [["[red]a", "1", "1,234,567"], ["b", "20", "1.50"]]


def test_sizes_and_counts() -> None:
    assert [format_bytes(count) for count in (0, 1023, 1024, 5 << 30)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]
    assert [count_of(count, "topic") for count in (0, 1, 2000)] == ["0 topics", "1 topic", "2,000 topics"]


def test_a_person_is_asked_and_a_script_must_say_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", "n\n", "y\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        with pytest.raises(CommandFailed, match=r"^Sure\? Nothing was changed, .* add --yes$"):
            confirm("Sure?", is_sure=False)
        confirm("Sure?", is_sure=True)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    with pytest.raises(typer.Abort):
        confirm("Sure?", is_sure=False)
    confirm("Sure?", is_sure=True)
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    confirm("Sure?", is_sure=False)


def test_partitions() -> None:
    assert partitions_text((("orders", 0), ("orders", 11), ("returns", 3))) == "orders(0,11), returns(3)"
    assert partitions_text(()) == "-"


def stored(value: bytes | None, key: bytes | None = None, timestamp: int | None = 1_700_000_000_042) -> Message:
    headers = [("a", b"1"), ("b", None)]
    return Message.of(value, key=key, topic="orders", partition=3, offset=7, headers=headers, timestamp=timestamp)


def test_text() -> None:
    assert make_formatter("text")(stored("grün".encode())) == "grün"
    assert make_formatter("text")(stored(b"\xff\xfe")) == "\\xff\\xfe"
    assert make_formatter("text")(stored(None)) == "null"


def test_full() -> None:
    assert make_formatter("full")(stored(b"v", b"k")) == "3:7 2023-11-14T22:13:20.042Z k a=1,b=None v"
    assert make_formatter("full")(stored(b"v", timestamp=None)) == "3:7 - null a=1,b=None v"


def test_json() -> None:
    document = json.loads(make_formatter("json")(stored(b"\xff", b"k")))
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
    assert make_formatter("{topic}-{partition}@{offset:04d} {timestamp}")(stored(b"")) == "orders-3@0007 1700000000042"


@pytest.mark.parametrize("template", ["{nothing}", "{value", "{0}", "{key.secret}", "plain"])
def test_a_template_that_is_none(template: str) -> None:
    with pytest.raises(CommandFailed, match=r"^--format "):
        make_formatter(template)
