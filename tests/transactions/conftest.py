"""A shard of the transaction coordinator, and a producer with a transactional id."""

import pytest

from tests.transactions.harness import TransactionBench


@pytest.fixture
def bench() -> TransactionBench:
    return TransactionBench()


@pytest.fixture
def producer(bench: TransactionBench) -> tuple[int, int]:
    """Its id and epoch."""
    return bench.started()
