"""The fixture as another project has it: by being installed, nothing else."""

import subprocess
import sys
from pathlib import Path

PROJECT_TEST = """
import socket
import pytest

def test_one(tidelog_broker):
    socket.create_connection(("127.0.0.1", tidelog_broker.port), timeout=10).close()
    (tidelog_broker.log_lines).append("seen")

SEEN = []

@pytest.mark.parametrize("number", ["a b/c", 2])
def test_topics_are_fresh(tidelog_broker, tidelog_topic, number):
    from tidelog import Consumer, Producer

    assert tidelog_topic not in SEEN
    SEEN.append(tidelog_topic)
    with Producer(tidelog_broker.bootstrap_servers) as producer:
        assert producer.send(tidelog_topic, "x").result(30).offset == 0

def test_two_has_the_same(tidelog_broker):
    assert "seen" in tidelog_broker.log_lines
    assert tidelog_broker.events[0]["flush_messages"] == 500
"""

PROJECT_CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def tidelog_configs():
    return {"log.flush.interval.messages": 500}
"""


def run(project: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120, check=False)


def test_a_project_uses_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "conftest.py").write_text(PROJECT_CONFTEST)
    (tmp_path / "test_project.py").write_text(PROJECT_TEST)
    finished = run(tmp_path)
    assert "4 passed" in finished.stdout, finished.stdout + finished.stderr


def test_the_fixture_is_documented(tmp_path: Path) -> None:
    finished = run(tmp_path, "--fixtures")
    assert "A running broker in its own process" in finished.stdout


def test_a_project_that_wants_no_broker_loads_none(tmp_path: Path) -> None:
    (tmp_path / "test_project.py").write_text("import sys\ndef test(): assert 'tidelog.testing.broker' not in sys.modules\n")
    assert "1 passed" in run(tmp_path).stdout
