"""A broker that verifies no transaction: hanging ones can be made on it."""

import secrets
from collections.abc import Iterator

import pytest

from tests.compatibility.kafka_client import admin_client, create_topic
from tidelog.client.transactions.admin import TransactionAdmin
from tidelog.testing import Broker

CONFIGS = {"transaction.partition.verification.enable": "false", "transaction.state.log.num.partitions": "3"}


@pytest.fixture(scope="package")
def broker() -> Iterator[Broker]:
    with Broker(configs=CONFIGS) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    """Of the test's own, with two partitions."""
    name = f"topic-{secrets.token_hex(4)}"
    create_topic(admin_client(broker.bootstrap_servers), name, partitions=2)
    return name


@pytest.fixture
def admin(broker: Broker) -> Iterator[TransactionAdmin]:
    with TransactionAdmin(broker.bootstrap_servers) as admin:
        yield admin
