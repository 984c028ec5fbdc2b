"""``tidelog up`` as a user calls it: what it prints, what it starts again, how it stops, and what it refuses in one line."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.faults.load import wait_until
from tidelog import Admin, Consumer
from tidelog.cli.main import main
from tidelog.client.errors import UnknownTopic
from tidelog.client.quorum import QuorumAdmin
from tidelog.ports.randomness import RealRandomness
from tidelog.server.cluster_layout import make_layout, ports_from
from tidelog.testing import Cluster

Output = pytest.CaptureFixture[str]
READY = re.compile(r"broker ([0-9]+) +(127\.0\.0\.1:[0-9]+) +ready after [0-9.]+ s, process ([0-9]+), log (.+)")


class Up:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []

    def read_until(self, pattern: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if re.match(pattern, line):
                return self.lines[-1]
        raise AssertionError(f"no line {pattern!r} among {self.lines}")

    def wait_until_ready(self) -> dict[int, tuple[str, int]]:
        """The address and the process id of each broker."""
        self.read_until("bootstrap ")
        found = [READY.fullmatch(line) for line in self.lines]
        return {int(match[1]): (match[2], int(match[3])) for match in found if match is not None}

    def stop(self) -> list[str]:
        before = len(self.lines)
        self.process.send_signal(signal.SIGINT)
        assert self.process.stdout is not None
        self.lines += [line.rstrip("\n") for line in self.process.stdout]
        assert self.process.wait(timeout=60) == 0, self.lines
        return self.lines[before:]


@contextmanager
def up(directory: Path, *arguments: str) -> Iterator[Up]:
    command = [sys.executable, "-m", "tidelog", "up", "--data", str(directory / "cluster"), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield Up(process)
    finally:
        # The brokers end with it.
        process.kill()
        process.communicate()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def has_three_replicas(servers: str, topic: str) -> bool:
    """Also false while the broker that is asked does not know the topic."""
    with Admin(servers) as admin:
        try:
            return sorted(admin.describe_topic(topic).partitions[0].replicas) == [1, 2, 3]
        except UnknownTopic:
            return False


def test_three_brokers_are_one_cluster_that_is_found_again(tmp_path: Path) -> None:
    ids: list[tuple[str, str]] = []
    for arguments in (("--brokers", "3", "--base-port", "0"), ()):
        with up(tmp_path, *arguments) as running:
            brokers = running.wait_until_ready()
            assert sorted(brokers) == [1, 2, 3]
            addresses = ",".join(brokers[node_id][0] for node_id in (1, 2, 3))
            assert running.lines[-1] == f"bootstrap  {addresses}   (Ctrl-C stops all)"
            with QuorumAdmin(addresses) as admin:
                assert admin.describe().leader_id in brokers
            # Nobody has to ask for three replicas.
            topic = f"orders-{len(ids)}"
            assert main(["topics", "create", topic, "-b", addresses]) == 0
            wait_until(partial(has_three_replicas, addresses, topic), "the broker that is asked knows the topic")
            stopped = running.stop()
            assert [line.split()[:3] for line in stopped] == [["broker", str(node_id), "stopped"] for node_id in (3, 2, 1)]
            assert not any(is_alive(pid) for _, pid in brokers.values())
            ids.append((running.lines[0], addresses))
    assert ids[0] == ids[1]
    for node_id in (1, 2, 3):
        assert "info started" in (tmp_path / "cluster" / f"broker-{node_id}.log").read_text()


def test_a_dead_broker_is_started_again(tmp_path: Path) -> None:
    with up(tmp_path, "--brokers", "1", "--base-port", "0") as running:
        address, pid = running.wait_until_ready()[1]
        os.kill(pid, signal.SIGKILL)
        assert running.read_until("broker 1 +ended").endswith("ended: signal 9; it starts again in 0.5 s")
        again = READY.fullmatch(running.read_until("broker 1 .*ready"))
        assert again is not None
        assert (again[2], int(again[3])) != (address, pid)
        assert again[2] == address
        assert running.stop() == ["broker 1   stopped"]


def test_the_brokers_end_with_their_supervisor(tmp_path: Path) -> None:
    with up(tmp_path, "--brokers", "1", "--base-port", "0") as running:
        running.wait_until_ready()
        running.process.kill()
        running.process.wait()
        log = tmp_path / "cluster" / "broker-1.log"
        # It stops in order: the log's last line says so.
        while "info stopped is_clean=True" not in log.read_text():
            time.sleep(0.02)


def test_a_broker_that_cannot_start_ends_everything(tmp_path: Path) -> None:
    with up(tmp_path, "--brokers", "1", "--base-port", "0") as running:
        running.wait_until_ready()
        running.stop()
    (tmp_path / "cluster" / "broker-1" / "meta.properties").write_text("nonsense")
    with up(tmp_path) as running:
        assert running.process.stdout is not None
        text = running.process.stdout.read()
        assert running.process.wait(timeout=60) == 1
    assert text.count("\n") == 1
    assert "meta.properties" in text


def test_a_node_with_a_damaged_vote_ends_everything(tmp_path: Path, capsys: Output) -> None:
    with Cluster(1, persist=tmp_path):
        pass
    state = tmp_path / "broker-1" / "__cluster_metadata-0" / "quorum-state"
    state.write_text("garbage")
    assert main(["up", "--data", str(tmp_path)]) == 1
    assert f"{state} is damaged" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--brokers", "2"], "has never been started; leave out --brokers once, then change it"),
        (["--base-port", "1234"], "has its clients at port 9092; leave out --base-port to run it"),
        (["-o", "listeners=PLAINTEXT://127.0.0.1:0"], "listeners: tidelog up sets this for each broker itself; leave it out"),
        (["-o", "num.partitions=none"], "num.partitions=none: expected a whole number"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str, tmp_path: Path, capsys: Output) -> None:
    node = {"node_id": 1, "client": 9092, "inter_broker": 9192, "controller": 9292, "directory_id": "AAAAAAAAAAAAAAAAAAAAAQ"}
    (tmp_path / "cluster.json").write_text(json.dumps({"version": 1, "cluster_id": "a", "is_formatted": False, "nodes": [node]}))
    assert main(["up", "--data", str(tmp_path), *arguments]) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert sorted(os.listdir(tmp_path)) == [".lock", "cluster.json"]


def test_a_port_that_is_taken(tmp_path: Path, capsys: Output) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["up", "--data", str(tmp_path), "--brokers", "1", "--base-port", str(port)]) == 1
    assert f"127.0.0.1:{port} is already in use; stop what uses it" in capsys.readouterr().err
    assert os.listdir(tmp_path) == [".lock"]


def test_a_port_that_does_not_exist(tmp_path: Path, capsys: Output) -> None:
    assert main(["up", "--data", str(tmp_path), "--base-port", "65500"]) == 2
    assert "expected a port from 1 to" in capsys.readouterr().err


def test_a_cluster_without_its_voters_is_refused(tmp_path: Path, capsys: Output) -> None:
    layout = replace(make_layout(RealRandomness(), ports_from(9092, 3)), is_formatted=True)
    (tmp_path / "cluster.json").write_text(layout.to_json())
    assert main(["up", "--data", str(tmp_path), "--brokers", "2"]) == 1
    assert "cannot do with 2: its voters are nodes of a cluster of at least 3" in capsys.readouterr().err
    assert (tmp_path / "cluster.json").read_text() == layout.to_json()


def test_two_brokers_become_one_when_the_second_is_empty(tmp_path: Path, capsys: Output) -> None:
    """As docs/OPERATIONS.md says: drain, stop, run fewer, remove."""
    with up(tmp_path, "--brokers", "2", "--base-port", "0", "-o", "default.replication.factor=1") as running:
        servers = running.wait_until_ready()[1][0]
        assert main(["topics", "create", "orders", "--partitions", "4", "--replication-factor", "1", "-b", servers]) == 0
        running.stop()
        capsys.readouterr()
        assert main(["up", "--data", str(tmp_path / "cluster"), "--brokers", "1"]) == 1
        assert re.search(
            r"broker 2 has orders-\d on its disk; run all 2 and empty it with tidelog drain 2", capsys.readouterr().err
        )
    with up(tmp_path) as running:
        running.wait_until_ready()
        wait_until(lambda: main(["cluster", "status", "-b", servers]) == 0, "both are there")
        assert main(["drain", "2", "-b", servers]) == 0
        wait_until(lambda: main(["reassign", "--verify", "-b", servers]) == 0, "broker 2 is empty")
        second = tmp_path / "cluster" / "broker-2"
        wait_until(lambda: not list(second.glob("orders-?")), "its copies are out of use")
        running.stop()
    with up(tmp_path, "--brokers", "1") as running:
        assert sorted(running.wait_until_ready()) == [1]
        wait_until(lambda: main(["cluster", "remove", "2", "-b", servers]) == 0, "the controller has noticed, and forgets it")
        wait_until(lambda: main(["cluster", "status", "-b", servers]) == 0, "one broker is the whole cluster")
        running.stop()


def test_one_broker_becomes_three_and_its_topics_get_replicas(tmp_path: Path, capsys: Output) -> None:
    """As docs/OPERATIONS.md says: grow, raise the internal topics, even out the rest."""
    with up(tmp_path, "--brokers", "1", "--base-port", "0", "-o", "offsets.topic.num.partitions=3") as running:
        servers = running.wait_until_ready()[1][0]
        assert main(["topics", "create", "orders", "--partitions", "3", "-b", servers]) == 0
        with Admin(servers) as admin, Consumer(servers, group="billing", topics=["orders"]) as consumer:

            def has_joined() -> bool:
                consumer.poll(timeout=0.2)
                return "__consumer_offsets" in admin.list_topics(internal=True)

            wait_until(has_joined, "the group has its topic")
        running.stop()
    with up(tmp_path, "--brokers", "3") as running:
        assert sorted(running.wait_until_ready()) == [1, 2, 3]
        wait_until(lambda: main(["cluster", "status", "-b", servers]) == 0, "all three are there")
        capsys.readouterr()
        assert main(["cluster", "status", "-b", servers]) == 0
        assert re.search("tidelog reassign .*--execute --internal", capsys.readouterr().out)
        with QuorumAdmin(servers) as quorum:
            wait_until(lambda: [voter.node_id for voter in quorum.describe().voters] == [1, 2, 3], "all three vote")
        for words in (["--internal"], []):
            assert main(["reassign", "--execute", *words, "-b", servers]) == 0
            wait_until(lambda: main(["reassign", "--verify", "-b", servers]) == 0, "nothing moves any more")
        capsys.readouterr()
        assert main(["cluster", "status", "--json", "-b", servers]) == 0
        assert json.loads(capsys.readouterr().out)["internal_topics_need_replicas"] is False
        assert main(["cluster", "describe", "--json", "-b", servers]) == 0
        leads = [broker["leads"] for broker in json.loads(capsys.readouterr().out)["brokers"]]
        assert len(leads) == 3
        assert sum(leads) == 6
        running.stop()
