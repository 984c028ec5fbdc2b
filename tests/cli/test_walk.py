"""Every command does its work once as a script sees it (``--json`` into a pipe) and once as a person does (in a terminal).

``STEPS`` are in order: what one makes, the next ones use. In a terminal of 60 and of 200 columns nothing is cut or boxed; in a
pipe every line is one JSON object, and standard error is empty. Commands that run until they are stopped, or that want a cluster
of several, are in ``ELSEWHERE`` with the test that runs them. ``test_every_command.py`` sees to it that no command is missing.
"""

import fcntl
import io
import json
import os
import pty
import re
import shlex
import struct
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from tests.client.transactions.wire_producer import WireProducer
from tests.deadletters.letters import Letters
from tidelog.cli import main as cli
from tidelog.cli import output
from tidelog.testing import Broker

ELSEWHERE = {
    "start": "tests/cli/test_start.py",
    "up": "tests/cli/test_up.py",
    "worker run": "tests/cli/test_worker.py",
    "pipeline run": "tests/cli/test_pipeline.py",
    "drain": "tests/cli/test_reassign.py",
    "cluster remove": "tests/cli/test_reassign.py",
    "quorum add": "tests/cli/test_quorum.py",
    "quorum remove": "tests/cli/test_quorum.py",
    "quorum upgrade": "tests/faults/test_growing.py",
    "storage recover-quorum": "tests/faults/test_quorum_recovery.py",
    "transactions find-hanging": "another name of transactions hanging",
}
# One line each: the command, and after << what is typed into its standard input.
STEPS = """
storage random-uuid
storage format --cluster-id MkU3OEVBNTcwNTJENDM2Qg --node-id 3 --data {data}
storage info --data {data}
profile add here -b {broker}
profile use here
profile list
topics list
topics create orders --partitions 2
topics list
topics describe orders
topics alter orders --config retention.ms=3600000
topics delete-records orders --all --yes
produce orders << one two
produce orders {file}
consume orders --from-beginning -n 3
consume orders --from-beginning --group billing -n 2
topics hotkeys orders
groups list
groups describe billing
groups describe billing --members
groups describe billing --offsets
groups offsets billing
groups desired billing
groups reset billing --all-topics --to-earliest
groups delete billing --yes
queues create jobs
queues list
queues send jobs one two
queues describe jobs
queues receive jobs --ack --wait 20
queues purge jobs --yes
queues delete jobs --yes
dlq list
dlq list {letters} --letters
dlq show {letters} 0:0
dlq depth
dlq replay {letters} --offsets 0 --partition 0 --yes
dlq discard {letters} --all --reason walked --yes
transactions list
transactions describe payments-of-the-walk
transactions describe-producers orders --partition 0
transactions hanging
transactions abort orders --partition 0 --start-offset {offset}
configs describe --topic orders
configs alter --topic orders --set retention.ms=7200000
quotas set --client-id loader producer_byte_rate=1048576
quotas list
quotas delete --client-id loader
cluster describe
cluster status
cluster elect
reassign --plan
quorum status
bench --messages 200 --round-trips 5
pipeline list
pipeline submit-file
profile use --none
profile remove here
completion bash
topics delete no-such-topic --if-exists --yes
log verify {log}
log dump {log}/orders-0
log repair {log}
"""
# Lists that have nothing to list.
MAY_BE_EMPTY = ("transactions hanging", "topics delete no-such-topic --if-exists --yes")
WIDTHS = (60, 200)


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class WalkedBroker(Protocol):
    """What the steps ask of their broker; tests/release/walk.py has another one."""

    @property
    def bootstrap_servers(self) -> str: ...

    def stop(self) -> None: ...


class Place:
    """A broker with a dead letter and an open transaction, and the words that the steps leave open."""

    def __init__(self, directory: Path, broker: WalkedBroker) -> None:
        self._broker = broker
        letters = Letters(broker.bootstrap_servers)
        letters.write(*(letters.letter(partition=0, traceback="shop.py, line 7") for _ in range(2)))
        file = directory / "lines.txt"
        file.write_text("three\nfour\n")
        self.words = {
            "broker": broker.bootstrap_servers,
            "data": str(directory / "formatted"),
            "file": str(file),
            "letters": letters.topic,
            "log": str(directory / "data"),
            "offset": "0",
        }
        self._open = ExitStack()

    def prepare(self, step: str) -> list[str]:
        """The words of a step, when what it needs is there."""
        if step.startswith("transactions list"):
            producer = self._open.enter_context(WireProducer(self._broker.bootstrap_servers, "payments-of-the-walk"))
            producer.init()
            producer.add_partition("orders", 0)
            self.words["offset"] = str(producer.produce("orders", 0, b"x"))
        elif step.startswith("log verify"):
            # A directory can only be repaired while no broker has it.
            self._broker.stop()
        return shlex.split(step.format(**self.words))

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("TIDELOG_PROFILES", str(tmp_path / "profiles.toml"))
    monkeypatch.delenv("TIDELOG_PROFILE", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    with Broker(persist=tmp_path / "data") as broker:
        monkeypatch.setenv("TIDELOG_BOOTSTRAP", broker.bootstrap_servers)
        made = Place(tmp_path, broker)
        yield made
        made.close()


def typed(step: str) -> tuple[str, bytes]:
    command, _, stdin = step.partition(" << ")
    return command, "".join(f"{line}\n" for line in stdin.split()).encode()


def in_a_terminal(words: list[str], stdin: bytes, columns: int, monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Run it with standard output and standard error on a terminal of that width."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    heard: list[bytes] = []

    def listen() -> None:
        try:
            while found := os.read(ours, 65536):
                heard.append(found)
        except OSError:
            return  # The other end is closed.

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        with open(theirs, "w", buffering=1) as terminal, monkeypatch.context() as patched:
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            patched.setattr(sys, "stdout", terminal)
            patched.setattr(sys, "stderr", terminal)
            patched.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((columns, 50)))
            code = cli.main(words)
    finally:
        listener.join()
        os.close(ours)
    return Ended(code, b"".join(heard).decode(), "")


def test_with_json_every_line_is_one_object(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = []
    for step in STEPS.strip().splitlines():
        command, stdin = typed(step)
        words = place.prepare(command)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = cli.main([*words, "--json"])
        said = capsys.readouterr()
        try:
            documents: list[Any] = [json.loads(line) for line in said.out.splitlines()]
        except ValueError:
            documents = []
        is_right = documents and all(isinstance(each, dict) for each in documents)
        if (code, said.err) != (0, "") or not (is_right or (command in MAY_BE_EMPTY and not said.out)):
            problems.append((command, int(code), said.out, said.err))
    assert problems == []


def problem_in(ended: Ended) -> str | None:
    """What a person sees in the terminal if something is wrong there: the command failed, or text is cut or boxed."""
    # What stays on the screen: without colours, and without the bars that went away.
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", ended.out)
    return shown if ended.code != 0 or re.search(r"Traceback|…|[│╭╰┃┏]", shown) else None


@pytest.mark.parametrize("columns", WIDTHS)
def test_in_a_terminal_nothing_is_cut(columns: int, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = []
    for step in STEPS.strip().splitlines():
        command, stdin = typed(step)
        ended = in_a_terminal(place.prepare(command), stdin, columns, monkeypatch)
        shown = problem_in(ended)
        if shown is not None:
            problems.append((command, int(ended.code), shown))
    assert problems == []


def test_what_takes_long_shows_a_bar_to_a_person(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PROGRESS_BYTES_MIN", 1)
    titles = {
        "topics create orders": (),
        "produce orders {file}": ("Sending",),
        "bench --messages 200 --round-trips 5": ("Sending", "Receiving"),
        "log verify {log}": ("Verifying",),
    }
    for step, expected in titles.items():
        ended = in_a_terminal(place.prepare(step), b"", 80, monkeypatch)
        assert ended.code == 0, ended.out
        assert [title for title in ("Sending", "Receiving", "Verifying") if f"{title} " in ended.out] == list(expected), step
