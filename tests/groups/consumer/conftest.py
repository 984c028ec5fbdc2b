import pytest

from tests.groups.consumer.bench import ConsumerBench


@pytest.fixture
def bench() -> ConsumerBench:
    return ConsumerBench()
