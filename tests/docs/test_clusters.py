"""The section about clusters of docs/OPERATIONS.md as written, on loopback: one machine, and "three machines"."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.docs.shell import ROOT, Shell, blocks
from tests.faults.nodes import Node
from tidelog.testing.environment import reserve_port

PAGE = (ROOT / "docs" / "OPERATIONS.md").read_text()
SECTION = PAGE[PAGE.index("## Run a cluster") : PAGE.index("## Choose keys and partition counts")]
UP, TRY, FORMAT, START, UPGRADE, STATUS = blocks(re.sub("^ {3}", "", SECTION, flags=re.MULTILINE), "bash")
(SETTINGS,) = blocks(SECTION, "toml")


@contextmanager
def running(command: str, directory: Path) -> Iterator["subprocess.Popen[str]"]:
    """A command of the page that runs until it is stopped."""
    words = command.split()
    assert words[0] == "tidelog"
    process = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=120)


def line_of(process: "subprocess.Popen[str]", start: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line
    raise AssertionError(f"the process ended without a line that starts with {start!r}")


def test_on_one_machine(tmp_path: Path) -> None:
    with running(UP.replace("--base-port 9092", "--base-port 0"), tmp_path) as process:
        servers = re.findall(r"127\.0\.0\.1:[0-9]+", line_of(process, "bootstrap"))
        assert len(servers) == 3
        shell = Shell(tmp_path, servers[0])
        said = shell.run(TRY)
        assert said.endswith("hello\n")
        assert "Leader " in shell.run(STATUS)
    assert (tmp_path / "cluster" / "broker-1.log").is_file()


def addresses() -> Iterator[tuple[str, str]]:
    """The addresses of the page, and those on this machine that take their place. All ports are reserved until the last one is
    chosen, so that no two are the same."""
    with ExitStack() as reservations:
        for node_id in (1, 2, 3):
            for port in (9092, 9192, 9292):
                reserved = reservations.enter_context(reserve_port())
                yield f"10.0.0.{node_id}:{port}", f"127.0.0.1:{reserved.getsockname()[1]}"


def test_on_three_machines(tmp_path: Path) -> None:
    replacements = dict(addresses())
    shell = Shell(tmp_path, replacements["10.0.0.1:9092"])
    for node_id in (1, 2, 3):
        settings = SETTINGS.replace('"node.id" = 1', f'"node.id" = {node_id}').replace('"data"', f'"data-{node_id}"')
        listeners, others = settings.partition('"listener.security')[0], settings.partition('"listener.security')[2]
        settings = listeners.replace("10.0.0.1", f"10.0.0.{node_id}") + '"listener.security' + others
        for page, here in replacements.items():
            settings = settings.replace(page, here)
        (tmp_path / f"node-{node_id}.toml").write_text(settings)
    *ids, command = FORMAT.strip().splitlines()
    script = "\n".join([*ids, *(command.replace("node-1", f"node-{node_id}") for node_id in (1, 2, 3))])
    shell.run(script, replacements)
    commands = [START.replace("node-1", f"node-{node_id}") for node_id in (1, 2, 3)]
    with (
        running(commands[0], tmp_path) as first,
        running(commands[1], tmp_path) as second,
        running(commands[2], tmp_path) as third,
    ):
        for process in (first, second, third):
            line_of(process, "  stop")
        said = shell.run(STATUS)
        assert "Leader " in said
        assert len(re.findall(r"^ *[123] +(?:leader|voter)", said, re.MULTILINE)) == 3


def test_voters_move_into_the_log(tmp_path: Path) -> None:
    node = Node(1, tmp_path / "data", {})
    try:
        shell = Shell(tmp_path, node.start().bootstrap_servers)
        assert "The voters stand in the metadata log" in shell.run(UPGRADE)
        assert " leader " in shell.run(STATUS)
    finally:
        node.close()


@pytest.mark.parametrize(
    "words", ["storage recover-quorum", "quorum remove", "quorum add", "storage format", "drain", "reassign", "cluster status"]
)
def test_every_command_exists(words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "tidelog", *words.split(), "--help"], capture_output=True, check=False)
    assert done.returncode == 0
