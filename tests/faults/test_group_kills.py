"""kill -9 of the broker while groups rebalance and commit: members come back by themselves, nothing is passed over, nobody starts
before the last acknowledged commit."""

from pathlib import Path
from random import Random, SystemRandom

import pytest
from confluent_kafka.admin import AdminClient

from tests.compatibility.clients.conftest import quiet_clients
from tests.compatibility.clients.groups.admin import committed_offsets
from tests.compatibility.clients.groups.member_classes import AIOKAFKA, CONFLUENT, CONFLUENT_CONSUMER, KAFKA_PYTHON
from tests.faults.group_rounds import CONFIGS, Kind, run_group_rounds
from tests.faults.load import COMMON
from tests.faults.rounds import AFTER_A_CRASH, ROUNDS
from tidelog.testing import Broker

__all__ = ["quiet_clients"]

# Not both protocols in one group: when the last member of the consumer protocol is given up, the group is a classic one again,
# and librdkafka then ends that member for good.
KINDS = {
    "mixed": Kind((CONFLUENT, KAFKA_PYTHON, AIOKAFKA), "range"),
    "cooperative": Kind((CONFLUENT, KAFKA_PYTHON), "cooperative-sticky"),
    "consumer-protocol": Kind((CONFLUENT_CONSUMER,), "uniform"),
}
# A restart may find a busy machine, and a member that left while the broker was down is missed later.
ALSO_FINE = {"loop_lag", "client_paused", "consumer_group_member_fenced", "classic_group_member_expired"}


@pytest.mark.usefixtures("quiet_clients")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_kills_of_working_groups(tmp_path: Path) -> None:
    seed = SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    with Broker(persist=tmp_path / "data", configs=CONFIGS) as broker:
        groups = run_group_rounds(broker, KINDS, ROUNDS, Random(seed))
        print({group.name: (group.ledger.reads, group.ledger.commits, sum(group.end_offsets)) for group in groups})
        assert {group.name: group.problems()[:5] for group in groups} == {name: [] for name in KINDS}
        admin = AdminClient({**COMMON, "bootstrap.servers": broker.bootstrap_servers})
        assert [committed_offsets(admin, group.name) for group in groups] == [group.ledger.committed for group in groups]
        assert [event for event in broker.events if event["event"] not in AFTER_A_CRASH | ALSO_FINE] == []
        assert [line for line in broker.log_lines if not line.startswith("{")] == []
        assert sum(event["event"] == "started" for event in broker.events) == ROUNDS + 1
