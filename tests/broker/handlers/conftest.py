import pytest

from tests.broker.harness import FakeClient, Machine


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def client(machine: Machine) -> FakeClient:
    return machine.client()
