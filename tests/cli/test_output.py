"""Tables, sizes and questions."""

import io
import sys

import pytest
import typer

from tidelog.cli.output import confirm, count_of, format_bytes, make_console, show_table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(make_console(), ("Name", "Count", "Rate"), [("[red]a", 1, 1234567.0), ("b", 20, 1.5)])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert rows[0] == ["Name", "Count", "Rate"]
    assert rows[2:] == [["[red]a", "1", "1,234,567"], ["b", "20", "1.50"]]


def test_sizes_and_counts() -> None:
    assert [format_bytes(count) for count in (0, 1023, 1024, 5 << 30)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]
    assert [count_of(count, "topic") for count in (0, 1, 2000)] == ["0 topics", "1 topic", "2,000 topics"]


def test_a_person_is_asked_and_a_script_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    confirm("Sure?", is_sure=False)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    with pytest.raises(typer.Abort):
        confirm("Sure?", is_sure=False)
    confirm("Sure?", is_sure=True)
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    confirm("Sure?", is_sure=False)
