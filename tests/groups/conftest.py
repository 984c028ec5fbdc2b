import pytest

from tests.groups.offset_bench import OffsetBench


@pytest.fixture
def bench() -> OffsetBench:
    """With one topic, orders. The folders of the protocols have a bench of their own."""
    return OffsetBench("orders")
