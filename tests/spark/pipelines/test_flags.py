"""Flags from a dataclass, through typer as the command line has it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import typer

from tidelog.spark.pipelines.flags import build, function_with, parameters_of


@dataclass(frozen=True)
class Options:
    topic: str = field(metadata={"help": "What is read.", "metavar": "TOPIC"})
    group_id: str | None = None
    kafka: tuple[str, ...] = ()
    share: float = 0.5
    continuous: bool = False
    headers: bool = True


@dataclass(frozen=True)
class OfSeveral:
    topic: tuple[str, ...]


def parse(*words: str, options: type[Any] = Options) -> Any:
    found: list[Any] = []

    def called(given: Mapping[str, Any]) -> int:
        found.append(build(options, given))
        return 0

    app = typer.Typer(add_completion=False)
    app.command("sample")(function_with(parameters_of(options), called, "A sample."))
    app(list(words), standalone_mode=False)
    return found[0] if found else None


def test_defaults_are_the_dataclass_s() -> None:
    assert parse("--topic", "t") == Options("t")


def test_every_kind_of_field() -> None:
    words = [
        "--topic",
        "t",
        "--group-id",
        "g",
        "--kafka",
        "a=1",
        "--kafka",
        "b=2",
        "--share",
        "0.25",
        "--continuous",
        "--no-headers",
    ]
    assert parse(*words) == Options("t", "g", ("a=1", "b=2"), 0.25, True, False)


def test_a_field_without_a_default_is_required() -> None:
    with pytest.raises(typer.TyperException) as caught:
        parse()
    assert caught.value.format_message() == "Missing option '--topic'."


def test_at_least_one_of_several() -> None:
    assert parse("--topic", "a", "--topic", "b", options=OfSeveral) == OfSeveral(("a", "b"))
    with pytest.raises(typer.TyperException) as caught:
        parse(options=OfSeveral)
    assert caught.value.format_message() == "Missing option '--topic'."


@pytest.mark.parametrize("words", [("--share", "x"), ("--nothing", "x"), ("stray",)])
def test_nonsense_is_a_usage_error(words: tuple[str, ...]) -> None:
    with pytest.raises(typer.TyperException) as caught:
        parse("--topic", "t", *words)
    assert caught.value.exit_code == 2


def test_help_has_the_words_of_the_metadata(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    parse("--help")
    shown = capsys.readouterr().out
    assert "What is read." in shown
    assert "TOPIC" in shown
    assert "--no-headers" in shown
