"""A broker and a producer for the tests of transactions; others have a ``machine`` of their own."""

import pytest

from tests.broker.harness import Machine
from tests.broker.transactional import TransactionalProducer, transactional_machine


@pytest.fixture
def machine() -> Machine:
    return transactional_machine(partitions=2)


@pytest.fixture
def producer(machine: Machine) -> TransactionalProducer:
    return TransactionalProducer(machine).started()
