"""``tidelog reassign``, ``tidelog drain`` and ``tidelog cluster status`` on a real cluster."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.cli.command import Command
from tests.faults.load import wait_until
from tidelog import Producer
from tidelog.client.admin import Admin
from tidelog.testing import Cluster


def replicas_of(command: Command, topic: str) -> list[list[int]]:
    (document,) = command("topics", "describe", topic, "--json").documents
    return [sorted(each["replicas"]) for each in document["partitions"]]


def test_an_operator_moves_drains_and_asks_what_may_stop(
    tidelog_cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(tidelog_cluster.bootstrap_servers, capsys, monkeypatch)
    assert command("topics", "create", "orders", "--partitions", "2", "--replication-factor", "2").code == 0
    assert command("topics", "create", "alone", "--partitions", "1", "--replication-factor", "1").code == 0

    plan = tmp_path / "plan.json"
    entries = [{"topic": "orders", "partition": index, "replicas": [1, 2]} for index in range(2)]
    plan.write_text(json.dumps({"version": 1, "partitions": [*entries, {"topic": "alone", "partition": 0, "replicas": [2]}]}))
    assert command("reassign", "--execute", "--file", str(plan)).code == 0
    wait_until(lambda: command("reassign", "--verify").code == 0, "the moves have ended")
    assert (replicas_of(command, "orders"), replicas_of(command, "alone")) == ([[1, 2], [1, 2]], [[2]])

    wait_until(lambda: command("cluster", "status").code == 0, "the cluster is healthy")
    (status,) = command("cluster", "status", "--safe-to-stop", "3", "--json").documents
    assert (status["brokers"], status["partitions"], status["cannot_do_without_3"]) == ([1, 2, 3], 3, [])
    refused = command("cluster", "status", "--safe-to-stop", "2")
    assert (refused.code, "alone-0" in refused.out) == (3, True)

    assert command("drain", "2").code == 0
    wait_until(lambda: command("reassign", "--verify").code == 0, "broker 2 is empty")
    assert all(2 not in replicas for topic in ("orders", "alone") for replicas in replicas_of(command, topic))
    wait_until(lambda: command("cluster", "status", "--safe-to-stop", "2").code == 0, "broker 2 may be stopped")

    (planned,) = command("reassign", "--plan", "--json").documents
    assert planned["partitions"] != [], "broker 2 holds nothing, so the plan moves something there"
    assert command("reassign", "--execute", "--json").documents == [planned]
    wait_until(lambda: command("reassign", "--verify").code == 0, "the cluster is even")
    assert "0 partitions cancelled" in command("reassign", "--cancel").out
    assert command("reassign", "--plan", "--json").documents == [{"version": 1, "partitions": []}]


def throttles(command: Command, topic: str, brokers: Sequence[int]) -> dict[str, set[str]]:
    """The settings of throttles that were set."""
    found: dict[str, set[str]] = {}
    for words in (("--topic", topic), *(("--broker", str(broker)) for broker in brokers)):
        for setting in command("configs", "describe", *words, "--json").documents:
            if "replication.throttled" in setting["name"]:
                found.setdefault(setting["name"], set()).update(setting["value"].split(","))
    return found


def test_a_throttled_move_shows_what_is_left_is_hurried_on_and_leaves_no_throttle(
    tidelog_cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(tidelog_cluster.bootstrap_servers, capsys, monkeypatch)
    assert command("topics", "create", "slow", "--partitions", "1", "--replication-factor", "1").code == 0
    with Producer(tidelog_cluster.bootstrap_servers) as producer:
        for _ in range(20):
            producer.send("slow", value=os.urandom(100_000)).result()
    ((source,),) = replicas_of(command, "slow")
    target = source % 3 + 1
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "slow", "partition": 0, "replicas": [target]}]}))

    assert command("reassign", "--execute", "--file", str(plan), "--throttle", "1kB").code == 0
    shown = command("reassign", "--verify", "--json")
    assert shown.code == 3
    moving = json.loads(shown.out)
    assert moving["moving"][0]["adding"] == [target]
    assert moving["moving"][0]["bytes_left"] > 1_000_000
    assert throttles(command, "slow", [source, target]) == {
        "leader.replication.throttled.replicas": {f"0:{source}"},
        "follower.replication.throttled.replicas": {f"0:{target}"},
        "leader.replication.throttled.rate": {"1000"},
        "follower.replication.throttled.rate": {"1000"},
    }
    assert "left to copy" in command("reassign", "--throttle", "50MB").out
    wait_until(lambda: command("reassign", "--verify").code == 0, "the move has ended")
    assert replicas_of(command, "slow") == [[target]]
    wait_until(lambda: throttles(command, "slow", [1, 2, 3]) == {}, "no throttle is left")

    # A move that is refused leaves none either, and neither does one that is cancelled.
    assert command("configs", "alter", "--topic", "slow", "--set", "min.insync.replicas=1").code == 0
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "slow", "partition": 0, "replicas": [source]}]}))
    assert command("reassign", "--execute", "--file", str(plan), "--throttle", "1kB").code == 0
    assert "1 partition cancelled" in command("reassign", "--cancel").out
    wait_until(lambda: throttles(command, "slow", [1, 2, 3]) == {}, "no throttle is left of the cancelled move")
    assert replicas_of(command, "slow") == [[target]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("reassign",), "give one of --plan, --execute, --verify and --cancel"),
        (("reassign", "--plan", "--file", "plan.json"), "--file belongs to --execute"),
        (("reassign", "--execute", "--throttle", "fast"), "--throttle fast: expected bytes per second, such as 20000000 or 20MB"),
        (("reassign", "--verify", "--throttle", "1MB"), "--throttle belongs to --execute"),
        (("reassign", "--throttle", "1MB"), "nothing moves, so there is no rate to change"),
        (("drain", "1"), "has 1 replica(s), and only 0 other broker(s) could hold them"),
        (("drain", "9"), "there is no broker 9, and nothing is on it; running are 1"),
        (("cluster", "status", "--safe-to-stop", "9"), "there is no broker 9 to stop; running are 1"),
    ],
)
@pytest.mark.usefixtures("topic")
def test_what_is_refused(command: Command, words: tuple[str, ...], message: str) -> None:
    assert message in command.fails(*words)


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        ([("missing", 0, [1])], "missing-0, which does not exist; nothing was moved"),
        ([("TOPIC", 0, [1, 1])], "name each broker once; nothing was moved"),
        ([("TOPIC", 0, [9])], "on broker 9; running are 1; nothing was moved"),
        ([("TOPIC", 0, [1]), ("TOPIC", 0, [1])], "twice"),
        ([("TOPIC", 0, None)], "is not a plan of partitions and their replicas"),
    ],
)
def test_a_plan_that_does_not_fit(
    command: Command, topic: str, tmp_path: Path, partitions: list[tuple[str, int, object]], message: str
) -> None:
    plan = tmp_path / "plan.json"
    entries = [{"topic": name.replace("TOPIC", topic), "partition": part, "replicas": on} for name, part, on in partitions]
    plan.write_text(json.dumps({"version": 1, "partitions": entries}))
    assert message in command.fails("reassign", "--execute", "--file", str(plan))


def test_one_move_that_is_refused_refuses_the_plan_and_a_broker_that_is_down_is_named(
    tidelog_cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(tidelog_cluster.bootstrap_servers, capsys, monkeypatch)
    with Admin(tidelog_cluster.bootstrap_servers) as admin:
        topics = {"first": [[1]], "second": [[1, 3]], "third": [[2]], "alone": [[3]], "wide": [[1, 2, 3]]}
        new = [NewTopic(name, 1, replica_assignment=replicas) for name, replicas in topics.items()]
        for created in admin.handle.create_topics(new).values():
            created.result(30)
        admin.alter_configs("topic", "wide", {"min.insync.replicas": "2"})
    wait_until(lambda: command("cluster", "status").code == 0, "the cluster is healthy")

    def execute(*moves: tuple[str, list[int]]) -> str:
        plan = tmp_path / "plan.json"
        entries = [{"topic": name, "partition": 0, "replicas": replicas} for name, replicas in moves]
        plan.write_text(json.dumps({"version": 1, "partitions": entries}))
        return command.fails("reassign", "--execute", "--throttle", "1MB", "--file", str(plan))

    refusal = execute(("first", [2]), ("wide", [1]))
    assert "the plan puts wide-0 on [1], fewer than the 2 of its min.insync.replicas; nothing was moved" in refusal
    assert replicas_of(command, "first") == [[1]]

    tidelog_cluster.kill(3)
    wait_until(lambda: "brokers down: 1 (3)" in command("cluster", "status").out, "broker 3 is missed")
    wait_until(lambda: "voters silent: 1 (3)" in command("cluster", "status").out, "its vote is missed")
    shown = command("cluster", "status", "--json")
    status = json.loads(shown.out)
    assert (shown.code, status["brokers"], status["brokers_down"], status["voters_silent"]) == (3, [1, 2], [3], [3])
    assert status["without_leader"] == ["alone-0"]
    # The quorum needs both votes that are left, whatever is on the broker.
    stopped = json.loads(command("cluster", "status", "--safe-to-stop", "2", "--json").out)
    assert sorted(stopped["cannot_do_without_2"]) == ["__cluster_metadata-0", "third-0", "wide-0"]

    # Only the controller knows that nobody could lead the second, and the first has moved by then.
    refusal = execute(("first", [2]), ("second", [3]))
    assert "second-0: all brokers of the assignment [3] are fenced or shutting down; nothing was moved" in refusal
    wait_until(lambda: command("reassign", "--verify").code == 0, "nothing moves")
    assert (replicas_of(command, "first"), replicas_of(command, "second")) == ([[1]], [[1, 3]])
    assert throttles(command, "first", [1, 2]) == {}
    assert "only broker 3, which is down, has all of alone-0" in command.fails("drain", "3")
    assert "broker 2 is running: stop it first" in command.fails("cluster", "remove", "2")
    assert "broker 3 holds 3 replicas (alone-0), of 1 partition (alone-0) the only one" in command.fails("cluster", "remove", "3")
    assert "there is no broker 9; registered are 1, 2, 3" in command.fails("cluster", "remove", "9")

    # What can be lost is given up; what has copies moves; then the vote, and then the broker itself.
    assert command("topics", "delete", "alone", "--yes").code == 0
    assert "only 2 other broker(s) could hold them" in command.fails("drain", "3")
    assert command("topics", "delete", "wide", "--yes").code == 0
    assert command("drain", "3").code == 0
    wait_until(lambda: command("reassign", "--verify").code == 0, "broker 3 holds nothing")
    assert replicas_of(command, "second") == [[1, 2]]
    assert "node 3 is a voter of the quorum" in command.fails("cluster", "remove", "3")
    assert command("quorum", "remove", "3", "--yes").code == 0
    assert command("cluster", "remove", "3").out == "Broker 3 is removed.\n"
    wait_until(lambda: command("cluster", "status").code == 0, "two brokers are a healthy cluster")
