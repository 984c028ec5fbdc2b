"""Apache Kafka's own commands operate three of our brokers. Runs under ``make compat``.

What a command prints for a cluster of Kafka's own is expected of ours: a script that reads it must not notice the difference.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from tests.compatibility.apache_kafka import KafkaUnavailable, java_command, kafka_classpath, run_tool, wait_until
from tests.compatibility.kafka_client import admin_client, quiet
from tidelog.testing import Cluster

pytestmark = [pytest.mark.apache_kafka, pytest.mark.timeout(900)]

TOOLS = "org.apache.kafka.tools"
TOPIC = "orders"
MESSAGES = 2000
VALUE_BYTES = 1000
SECONDS_MAX = 60.0
REPORTS_MAX = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    with Cluster(3) as cluster:
        admin = admin_client(cluster.bootstrap_servers)
        topics = [
            NewTopic(TOPIC, 2, replica_assignment=[[1, 2, 3], [2, 3, 1]], config={"min.insync.replicas": "2"}),
            NewTopic("strict", 1, replica_assignment=[[2, 3, 1]], config={"min.insync.replicas": "3"}),
            NewTopic("alone", 1, replica_assignment=[[1]]),
            NewTopic("moved", 1, replica_assignment=[[1]]),
        ]
        for created in admin.create_topics(topics).values():
            created.result(SECONDS_MAX)
        producer = Producer(quiet(cluster.bootstrap_servers))
        for number in range(MESSAGES):
            producer.produce("moved" if number % 2 else TOPIC, bytes(VALUE_BYTES), partition=0)
            producer.poll(0)
        assert not producer.flush(SECONDS_MAX)
        yield cluster


def run(cluster: Cluster, tool: str, *words: str) -> str:
    return run_tool(f"{TOOLS}.{tool}", "--bootstrap-server", cluster.bootstrap_servers, *words)


@contextmanager
def lines_of(tool: str, *words: str) -> Iterator[Iterator[str]]:
    """What a tool prints that runs until it is stopped."""
    process = subprocess.Popen(java_command(f"{TOOLS}.{tool}", *words), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield iter(process.stdout)
    finally:
        process.kill()
        process.communicate()


def test_replica_verification_reads_every_copy_and_finds_no_lag(cluster: Cluster) -> None:
    words = ("--broker-list", cluster.bootstrap_servers, "--topics-include", TOPIC, "--time", "-2", "--report-interval-ms", "500")
    with lines_of("ReplicaVerificationTool", *words) as lines:
        # The lag is the largest of all partitions: 0 when each copy was read to its end and compared.
        reports = islice(lines, REPORTS_MAX)
        assert any(re.search(r"max lag is 0 for partition orders-[01] at offset [0-9]+ among 2", line) for line in reports)


def test_a_throttled_reassignment_is_executed_cancelled_executed_again_and_verified(cluster: Cluster, tmp_path: Path) -> None:
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "moved"}]}))
    generated = run(
        cluster,
        "reassign.ReassignPartitionsCommand",
        *("--topics-to-move-json-file", str(topics), "--broker-list", "2", "--generate"),
    )
    proposal = json.loads(generated.split("Proposed partition reassignment configuration")[1])
    assert [(each["topic"], each["replicas"]) for each in proposal["partitions"]] == [("moved", [2])]
    plan.write_text(json.dumps(proposal))
    wanted = ("reassign.ReassignPartitionsCommand", "--reassignment-json-file", str(plan))

    begun = run(cluster, *wanted, "--execute", "--throttle", "1000")
    assert "The inter-broker throttle limit was set to 1000 B/s" in begun
    assert "Successfully started partition reassignment for moved-0" in begun
    assert "Reassignment of partition moved-0 is still in progress" in run(cluster, *wanted, "--verify")
    assert re.search(r"moved-0: replicas: 2,1\. adding: 2\. removing: 1\.", run(cluster, wanted[0], "--list"))
    assert "Successfully cancelled partition reassignment for: moved-0" in run(cluster, *wanted, "--cancel")

    run(cluster, *wanted, "--execute", "--throttle", "1000")
    # Another rate for what moves already.
    assert "throttle limit was set to 50000000 B/s" in run(
        cluster, *wanted, "--execute", "--additional", "--throttle", "50000000"
    )
    wait_until(lambda: "is completed" in run(cluster, *wanted, "--verify"), "the partition has moved", SECONDS_MAX)
    throttled = run_tool(
        "kafka.admin.ConfigCommand", "--bootstrap-server", cluster.bootstrap_servers, "--describe", "--entity-type", "brokers"
    )
    assert "throttled" not in throttled
    described = run(cluster, "TopicCommand", "--describe", "--topic", "moved")
    assert re.search(r"Leader: 2\s+Replicas: 2\s+Isr: 2", described), described


def test_log_dirs_and_offsets(cluster: Cluster) -> None:
    described = run(cluster, "LogDirsCommand", "--describe", "--topic-list", TOPIC)
    document = json.loads(described.splitlines()[-1])
    assert [broker["broker"] for broker in document["brokers"]] == [1, 2, 3]
    for broker in document["brokers"]:
        ((directory,),) = [broker["logDirs"]]
        assert directory["error"] is None
        sizes = {each["partition"]: each["size"] for each in directory["partitions"]}
        assert sizes[f"{TOPIC}-0"] > VALUE_BYTES * MESSAGES // 2
        assert {each["offsetLag"] for each in directory["partitions"]} == {0}
    offsets = run(cluster, "GetOffsetShell", "--topic", TOPIC)
    assert sorted(line for line in offsets.splitlines() if line.startswith(TOPIC)) == [
        f"{TOPIC}:0:{MESSAGES // 2}",
        f"{TOPIC}:1:0",
    ]


def test_throttles_are_set_and_removed_by_kafka_configs(cluster: Cluster) -> None:
    def configs(*words: str) -> str:
        where = ("--bootstrap-server", cluster.bootstrap_servers, "--entity-type", "brokers", "--entity-name", "1")
        return run_tool("kafka.admin.ConfigCommand", *where, *words)

    rate = "leader.replication.throttled.rate"
    configs("--alter", "--add-config", f"{rate}=1000000")
    assert f"{rate}=1000000" in configs("--describe")
    configs("--alter", "--delete-config", rate)
    assert rate not in configs("--describe")


def test_a_producer_performance_run(cluster: Cluster) -> None:
    words = ("--topic", TOPIC, "--num-records", "5000", "--record-size", "100", "--throughput", "-1")
    done = run_tool(f"{TOOLS}.ProducerPerformance", *words, "--bootstrap-server", cluster.bootstrap_servers)
    assert "5000 records sent" in done


def test_topics_without_replicas_are_found_and_leaders_elected_when_a_broker_is_back(cluster: Cluster) -> None:
    """The last one: it stops a broker."""

    def found(option: str) -> set[str]:
        described = run(cluster, "TopicCommand", "--describe", option)
        return {f"{topic}-{index}" for topic, index in re.findall(r"Topic: (\S+)\s+Partition: ([0-9]+)", described)}

    assert found("--under-replicated-partitions") == found("--unavailable-partitions") == set()
    cluster.stop(1)
    orders = {f"{TOPIC}-0", f"{TOPIC}-1"}
    assert found("--under-replicated-partitions") == {*orders, "strict-0", "alone-0"}
    assert found("--at-min-isr-partitions") >= orders
    assert found("--under-min-isr-partitions") == {"strict-0", "alone-0"}
    assert found("--unavailable-partitions") == {"alone-0"}
    cluster.start()
    wait_until(lambda: found("--under-replicated-partitions") == set(), "all is well again", SECONDS_MAX)
    elected = run(cluster, "LeaderElectionCommand", "--election-type", "preferred", "--topic", TOPIC, "--partition", "0")
    assert re.search(r"(Successfully completed leader election|Valid replica already elected).*orders-0", elected), elected
    assert re.search(r"Partition: 0\s+Leader: 1\s", run(cluster, "TopicCommand", "--describe", "--topic", TOPIC))
