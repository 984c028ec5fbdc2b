"""The quorum as text: every file of ``traces`` is a list of commands with what each of them led to.

    python -m pytest tests/raft/test_traces.py --rewrite      writes what happens now into the files; read the difference

A block is commands, a line of dashes and the output; blocks are separated by an empty line, and lines that begin with # are
comments.
"""

from pathlib import Path

import pytest

from tests.raft.trace_cluster import COMMANDS, TraceCluster
from tidelog.raft.quorum import QuorumTimer, RaftState

TRACES = sorted((Path(__file__).parent / "traces").glob("*.txt"))
DASHES = "----"


def run(text: str) -> str:
    cluster = TraceCluster()
    blocks = []
    for block in text.strip().split("\n\n"):
        head = block.split(f"\n{DASHES}")[0].splitlines()
        commands = [line for line in head if line and not line.startswith("#")]
        if not commands:
            blocks.append("\n".join(head))
            continue
        outputs = [cluster.run(command) for command in commands]
        blocks.append("\n".join([*head, DASHES, *[output for output in outputs if output]]))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_the_trace_is_what_happens(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    now = run(text)
    if request.config.getoption("--rewrite"):
        path.write_text(now)
    else:
        assert now == text


def test_the_traces_reach_every_state_timer_and_command() -> None:
    everything = "\n".join(path.read_text() for path in TRACES)
    for state in RaftState:
        assert f"[state] state={state.value}" in everything
    for timer in QuorumTimer:
        assert f" {timer.value}\n" in everything, f"no trace lets the timer {timer.value} expire"
    for command in COMMANDS:
        assert f"\n{command}" in everything, f"no trace uses the command {command}"


def test_a_trace_that_tells_something_else_is_found() -> None:
    text = next(text for path in TRACES if "cluster voters=1,2,3\n" in (text := path.read_text()))
    assert run(text) == text
    assert run(text.replace("voters=1,2,3\n", "voters=1,2,3,4,5\n", 1)) != text
