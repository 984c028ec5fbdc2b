"""Older clients get error codes that they know."""

import pytest

from tidelog.broker.handlers import add_offsets_to_txn, add_partitions_to_txn, end_txn, init_producer_id
from tidelog.broker.transactions.client_errors import coordinator_error
from tidelog.wire.errors import ErrorCode


@pytest.mark.parametrize(
    ("since", "first_version"),
    [
        (init_producer_id.FENCED_SINCE, 4),
        (add_partitions_to_txn.FENCED_SINCE, 2),
        (add_offsets_to_txn.FENCED_SINCE, 2),
        (end_txn.FENCED_SINCE, 2),
    ],
)
def test_old_clients_do_not_know_that_they_were_fenced(since: int, first_version: int) -> None:
    fenced = ErrorCode.PRODUCER_FENCED
    assert coordinator_error(fenced, first_version, since) is fenced
    assert coordinator_error(fenced, first_version - 1, since) is ErrorCode.INVALID_PRODUCER_EPOCH
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator_error(concurrent, first_version - 1, since) is concurrent
