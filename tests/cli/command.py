"""Runs one command of ``tidelog`` within the test: its exit code, and what it printed."""

import io
import json
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.toolkit_broker import create_topic
from tidelog.cli.main import main
from tidelog.testing import Broker


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def documents(self) -> list[dict[str, Any]]:
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def lines(self) -> list[str]:
        assert self.code == 0, self.err
        return self.out.splitlines()


class Command:
    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.bootstrap = bootstrap
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *words: str, stdin: bytes = b"") -> Result:
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capsys.readouterr()
        self._monkeypatch.setenv("TIDELOG_BOOTSTRAP", self.bootstrap)
        # The options of a pipeline are its own.
        code = main([*words, "--bootstrap", self.bootstrap] if words[0] == "pipeline" else words)
        captured = self._capsys.readouterr()
        return Result(code, captured.out, captured.err)

    def fails(self, *words: str, stdin: bytes = b"") -> str:
        """The one line that it says."""
        result = self(*words, stdin=stdin)
        assert result.code != 0, result.out
        assert result.err.count("\n") == 1
        if "--json" in words:
            document = json.loads(result.err)
            assert document["exit_code"] == result.code
            return str(document["error"])
        assert result.err.startswith("tidelog: ")
        return result.err.removeprefix("tidelog: ").removesuffix("\n")


def new_topic_name() -> str:
    return f"topic-{secrets.token_hex(4)}"


@pytest.fixture
def command(tidelog_broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(tidelog_broker.bootstrap_servers, capsys, monkeypatch)


@pytest.fixture
def fresh_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """With a broker of its own: for a page that names topics and groups as it likes, for what all clients of a broker feel, and
    for lists that hold nothing else."""
    with Broker() as broker:
        yield Command(broker.bootstrap_servers, capsys, monkeypatch)


@pytest.fixture
def topic(command: Command) -> str:
    """An empty topic with two partitions, whose leaders answer: Apache Kafka loses what is sent to them before with acks=0."""
    return create_topic(command.bootstrap, new_topic_name(), partitions=2)
