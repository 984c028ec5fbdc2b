"""``tidelog start`` as a user calls it: what it prints, what it refuses in one line, and how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tidelog.build import build_name
from tidelog.cli.main import main
from tidelog.cli.start import banner, read_settings
from tidelog.config.listeners import ListenerAddress, ListenerRole, NamedListener
from tidelog.server.process import Serving
from tidelog.testing import Broker

Output = pytest.CaptureFixture[str]


@contextmanager
def started(directory: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tidelog", "start", "--listener", "127.0.0.1:0", *arguments]
    process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def without_lag(lines: str) -> str:
    """Without what a broker says on a busy machine."""
    return "".join(line for line in lines.splitlines(keepends=True) if "loop_lag" not in line and "client_paused" not in line)


def test_what_it_prints(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().rstrip("\n") for _ in range(7)]
        title = rf"Tidelog [0-9.]+ \({build_name()}\): broker 1 of cluster [A-Za-z0-9_][A-Za-z0-9_-]{{21}}"
        assert re.fullmatch(title, lines[0])
        listening = re.fullmatch(r"  listening on  127\.0\.0\.1:([0-9]+) \(plaintext\)", lines[1])
        assert listening is not None
        assert lines[2] == f"  data          {tmp_path / 'data'} (no topics yet)"
        assert lines[3].startswith("  durability    ")
        assert lines[3].endswith("flush.messages=1")
        assert f"tidelog produce greetings --bootstrap 127.0.0.1:{listening[1]}" in lines[4]
        socket.create_connection(("127.0.0.1", int(listening[1])), timeout=10).close()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0
        assert re.fullmatch(r"\S+Z info stopped is_clean=True\n", without_lag(errors))
    assert (tmp_path / "data" / ".kafka_cleanshutdown").is_file()


@pytest.mark.parametrize(("level", "is_named"), [("debug", True), ("info", False)])
def test_the_log_level(tmp_path: Path, level: str, is_named: bool) -> None:
    with started(tmp_path, "--log-level", level) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(7)]
        port = int(re.findall(r"127\.0\.0\.1:([0-9]+)", lines[1])[0])
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert ("closed by the client" in errors or "the broker is stopping" in errors) is is_named
    assert "info stopped is_clean=True" in errors


def test_an_unknown_log_level(capsys: Output) -> None:
    assert main(["start", "--log-level", "loud"]) == 2
    assert "'loud' is not one of 'debug', 'info', 'warning', 'error'" in " ".join(capsys.readouterr().err.split())


def test_the_cluster_id_is_kept_and_events_are_json(tmp_path: Path) -> None:
    cluster_ids = []
    for _ in range(2):
        with started(tmp_path, "--data", "here", "--log-format", "json", "-o", "log.flush.interval.messages=10") as process:
            assert process.stderr is not None
            event = json.loads(process.stderr.readline())
            assert (event["event"], event["flush_messages"]) == ("started", 10)
            assert event["data_path"] == str(tmp_path / "here")
            cluster_ids.append(event["cluster_id"])
            process.send_signal(signal.SIGTERM)
            out, errors = process.communicate(timeout=30)
            assert (process.returncode, out) == (0, "")
            assert json.loads(without_lag(errors))["event"] == "stopped"
    assert cluster_ids[0] == cluster_ids[1]
    assert f"cluster.id={cluster_ids[0]}\n" in (tmp_path / "here" / "meta.properties").read_text()


def test_a_directory_in_use(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with started(tmp_path) as second:
            _, errors = second.communicate(timeout=30)
            assert second.returncode == 1
            assert errors.startswith(f"tidelog: {tmp_path / 'data'} is used by another process")
            assert errors.count("\n") == 1


def test_a_port_that_is_taken(tmp_path: Path, capsys: Output) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["start", "--data", str(tmp_path / "data"), "--listener", address]) == 1
    assert capsys.readouterr().err == (
        f"tidelog: {address} is already in use; stop the other broker, or choose another address with --listener\n"
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "log.retention.mss=1"], "tidelog: log.retention.mss: there is no such setting; did you mean log.retention.ms?\n"),
        (["-o", "num.partitions=none"], "tidelog: num.partitions=none: expected a whole number\n"),
        (["--listener", "10.1.2.3:9092"], "tidelog: listeners=10.1.2.3:9092: everyone who reaches this address could"),
        (["--listener", "0.0.0.0:9092"], "tidelog: listeners=0.0.0.0:9092: no client can connect to every address"),
        (
            ["--metrics", "10.1.2.3:9644"],
            "tidelog: tidelog.metrics.listener=10.1.2.3:9644: everyone who reaches this address could",
        ),
        (["--config", "missing.toml"], "tidelog: missing.toml: No such file or directory\n"),
        (["--config", "bad.toml"], "tidelog: bad.toml is not valid TOML: "),
    ],
)
def test_what_is_refused(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("= 1")
    assert main(["start", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert os.listdir(tmp_path) == ["bad.toml"]


def test_an_override_without_sense(capsys: Output) -> None:
    assert main(["start", "-o", "=1"]) == 2
    assert capsys.readouterr().err == "tidelog: Invalid value for -o: '=1': expected KEY=VALUE (try: tidelog start --help)\n"


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tidelog.toml"
    path.write_text('"num.partitions" = 3\n[log.retention]\nms = 5\n')
    assert read_settings(str(path), ["num.partitions=4", "log.dirs = a=b"]) == {
        "num.partitions": "4",
        "log.retention.ms": "5",
        "log.dirs": " a=b",
    }


def serving(flush_messages: int, topic_count: int, partition_count: int) -> Serving:
    address = ListenerAddress("127.0.0.1", 9092)
    listener = NamedListener("PLAINTEXT", ListenerRole.CLIENT, address, address)
    return Serving("cluster", 1, (listener,), "data", topic_count, partition_count, flush_messages, True)


def test_the_banner_says_what_is_there_and_what_is_at_stake() -> None:
    text = banner(serving(10_000, 1, 12))
    assert "data (1 topic, 12 partitions)\n" in text
    assert "a power cut may lose it: flush.messages=10000\n" in text
    assert "tidelog produce greetings\n" in text


def test_the_banner_says_where_the_metrics_are() -> None:
    assert "metrics" not in banner(serving(1, 1, 1))
    text = banner(replace(serving(1, 1, 1), metrics=ListenerAddress("127.0.0.1", 9644)))
    assert "  metrics       http://127.0.0.1:9644/metrics\n" in text


def test_what_clients_are_told_is_shown_where_it_differs() -> None:
    address, advertised = ListenerAddress("0.0.0.0", 9092), ListenerAddress("queue.example", 9092)
    listeners = (
        NamedListener("PLAINTEXT", ListenerRole.CLIENT, address, advertised),
        NamedListener("OTHERS", ListenerRole.INTER_BROKER, ListenerAddress("10.0.0.1", 9093), advertised),
    )
    text = banner(Serving("cluster", 1, listeners, "data", 2, 2, 1, True))
    assert "  for brokers   10.0.0.1:9093 (OTHERS)\n" in text
    assert "0.0.0.0:9092 (plaintext), advertised as queue.example:9092\n" in text
    assert "data (2 topics, 2 partitions)\n" in text
    assert "tidelog produce greetings --bootstrap queue.example:9092\n" in text


def test_a_damaged_vote_ends_the_start_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Broker(persist=tmp_path):
        pass
    state = tmp_path / "__cluster_metadata-0" / "quorum-state"
    state.write_text("garbage")
    assert main(["start", "--data", str(tmp_path), "--listener", "127.0.0.1:0"]) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tidelog: ")]
    assert len(said) == 1
    assert f"{state} is damaged" in said[0]
