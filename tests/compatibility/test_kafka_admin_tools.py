"""Apache Kafka's own commands about the quorum and about where partitions lie, on our broker. Runs under ``make compat``."""

import json
from pathlib import Path

import pytest

from tests.compatibility.apache_kafka import KafkaUnavailable, kafka_classpath, run_tool
from tests.compatibility.kafka_client import admin_client, create_topic
from tidelog.testing import Broker

pytestmark = pytest.mark.apache_kafka

QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
NODE_ID = 1


def test_the_quorum_is_described_and_a_reassignment_is_seen_to_be_complete(tmp_path: Path) -> None:
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    with Broker(configs={"node.id": NODE_ID}) as broker:
        create_topic(admin_client(broker.bootstrap_servers), "orders")
        bootstrap = ("--bootstrap-server", broker.bootstrap_servers)

        status = dict(line.split(":", 1) for line in run_tool(QUORUM, *bootstrap, "describe", "--status").splitlines() if line)
        assert (status["LeaderId"].strip(), status["LeaderEpoch"].strip()) == (str(NODE_ID), "1")
        (voter,) = json.loads(status["CurrentVoters"])
        assert voter == {"id": NODE_ID, "endpoints": [f"PLAINTEXT://{broker.bootstrap_servers}"]}

        # Its log directory is named too, so that the command asks for that as well.
        place = {"topic": "orders", "partition": 0, "replicas": [NODE_ID], "log_dirs": [broker.data_path]}
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [place]}))
        wanted = ("--reassignment-json-file", str(plan))
        assert "Successfully started partition reassignment for orders-0" in run_tool(REASSIGN, *bootstrap, "--execute", *wanted)
        assert "Reassignment of partition orders-0 is completed" in run_tool(REASSIGN, *bootstrap, "--verify", *wanted)
        assert "No partition reassignments found" in run_tool(REASSIGN, *bootstrap, "--list")
