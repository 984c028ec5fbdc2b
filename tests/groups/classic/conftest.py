import pytest

from tests.groups.classic.bench import GroupBench


@pytest.fixture
def bench() -> GroupBench:
    return GroupBench()
