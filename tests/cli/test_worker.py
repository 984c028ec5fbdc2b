"""``tidelog worker run``: the application's worker until a signal, and one line for everything that is wrong with it."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import ToolkitBroker, create_topic
from tests.worker.running import Place
from tidelog.cli.main import main

MODULE = """
import os, time
from tidelog import Worker

worker = Worker({bootstrap!r}, group={group!r}, topics=[{topic!r}], drain_timeout=20, commit_interval=0.1)
number = 3

@worker.handler
def handle(message):
    with open({path!r}, "ab", buffering=0) as file:
        file.write(message.value + b"\\n")
    {more}
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The name of a module in the working directory that is not there yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return f"module_{secrets.token_hex(4)}"


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["worker", "run", *words]) == 1
    err = capsys.readouterr().err
    assert err.startswith("tidelog: ")
    assert err.count("\n") == 1
    return err


def test_what_is_wrong_with_the_target_is_one_line(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(f"{module}.py")
    assert "expected MODULE:WORKER" in fails(capsys, module)
    assert f"there is no module {module}" in fails(capsys, f"{module}:worker")
    file.write_text("import not_installed_anywhere\n")
    assert "No module named 'not_installed_anywhere'" in fails(capsys, f"{module}:worker")
    file.write_text("x = 1\ny = x / 0\n")
    assert f"ZeroDivisionError: division by zero ({module}.py:2)" in fails(capsys, f"{module}:worker")
    assert "--log-level loud" in fails(capsys, f"{module}:worker", "--log-level", "loud")


def test_options_that_the_worker_refuses_are_one_line(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = MODULE.format(bootstrap="127.0.0.1:1", group="g", topic="t", path="effects", more="pass")
    Path(f"{module}.py").write_text(text)
    assert "concurrency= is a whole number from 1" in fails(capsys, f"{module}:worker", "--concurrency", "0")
    assert "metrics_port= is a whole number" in fails(capsys, f"{module}:worker", "--metrics-port", "70000")


def test_what_is_no_worker_is_one_line(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = MODULE.format(bootstrap="127.0.0.1:1", group="g", topic="t", path="effects", more="pass")
    Path(f"{module}.py").write_text(text)
    assert "has no missing; it defines worker" in fails(capsys, f"{module}:missing")
    assert "has number, which is not a Worker but a int; it defines worker" in fails(capsys, f"{module}:number")


@pytest.mark.parametrize("is_slow", [False, True])
def test_it_runs_until_a_signal_and_a_second_one_stops_now(kafka: ToolkitBroker, tmp_path: Path, is_slow: bool) -> None:
    place = Place(kafka.bootstrap)
    place.send(["a"])
    effects = tmp_path / "effects"
    more = "time.sleep(60)" if is_slow else "pass"
    text = MODULE.format(bootstrap=kafka.bootstrap, group=place.group, topic=place.topic, path=str(effects), more=more)
    (tmp_path / "shop.py").write_text(text)
    command = [sys.executable, "-m", "tidelog", "worker", "run", "shop:worker"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": ""})
    try:
        wait_until(lambda: effects.is_file() or process.poll() is not None, "it works", 120)
        process.send_signal(signal.SIGTERM)
        if is_slow:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == (4 if is_slow else 0), err
    assert ("will be handled again" in err) == is_slow
    committed = sum(max(offset, 0) for offset, _ in place.committed().values())
    assert committed == (0 if is_slow else 1)


def test_concurrency_and_metrics_are_decided_at_the_start(kafka: ToolkitBroker, tmp_path: Path) -> None:
    """Each of the two messages waits for the other one, which works only if both are handled at once."""
    place = Place(kafka.bootstrap)
    place.send(["a", "b"])
    effects = tmp_path / "effects"
    more = f"while len(open({str(effects)!r}).read().split()) < 2: time.sleep(0.01)"
    text = MODULE.format(bootstrap=kafka.bootstrap, group=place.group, topic=place.topic, path=str(effects), more=more)
    (tmp_path / "shop.py").write_text(text.replace("commit_interval=0.1", 'commit_interval=0.1, order="none"'))
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    options = ["--concurrency", "2", "--metrics-port", str(port), "--metrics-host", "127.0.0.2", "--json"]
    command = [sys.executable, "-m", "tidelog", "worker", "run", "shop:worker", *options]
    environment = {**os.environ, "PYTHONPATH": ""}
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        handled = f'tidelog_worker_handled_total{{group="{place.group}"}} 2\n'
        wait_until(lambda: handled in page(port, "/metrics") or process.poll() is not None, "both are handled", 120)
        assert json.loads(page(port, "/health"))["alive"] is True
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out) == {"handled": 2, "retried": 0, "dead": 0, "is_drained": True}
    assert {json.loads(line)["level"] for line in err.splitlines()} >= {"INFO"}


def page(port: int, path: str) -> str:
    """Nothing while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.2:{port}{path}", timeout=30) as answer:
            return str(answer.read(), "utf-8")
    except OSError:
        return ""


def test_a_topic_that_is_not_there_is_one_line(kafka: ToolkitBroker, module: str, capsys: pytest.CaptureFixture[str]) -> None:
    create_topic(kafka.bootstrap, f"{module}-other")
    text = MODULE.format(bootstrap=kafka.bootstrap, group="g", topic=module, path="effects", more="pass")
    Path(f"{module}.py").write_text(text)
    assert f"there is no topic {module}" in fails(capsys, f"{module}:worker")
