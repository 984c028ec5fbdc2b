"""A hundred thousand transactional ids take less than 100 MB."""

import tracemalloc

import pytest

from tidelog.transactions.records import RECORD_CODEC, TransactionRecord, TransactionTopic, TransactionValue
from tidelog.transactions.state import TransactionState
from tidelog.transactions.transaction import TransactionTable

# As many as fit into the time of a test; what they take grows in proportion.
IDS = 10_000
BYTES_PER_ID_MAX = 1_000


@pytest.mark.parametrize("state", [TransactionState.COMPLETE_COMMIT, TransactionState.ONGOING])
def test_what_an_id_takes(state: TransactionState) -> None:
    is_ongoing = state is TransactionState.ONGOING
    table = TransactionTable(lambda: 2)
    tracemalloc.start()
    try:
        for index in range(IDS):
            partitions = (TransactionTopic("orders", (index % 100,)), TransactionTopic("__consumer_offsets", (index % 50,)))
            value = TransactionValue(
                producer_id=index + 5_000,
                previous_producer_id=index + 5_000,
                next_producer_id=-1,
                producer_epoch=index % 3_000,
                next_producer_epoch=-1,
                timeout_ms=60_000,
                state=state,
                partitions=partitions if is_ongoing else (),
                last_update_timestamp_ms=1_700_000_000_000 + index,
                start_timestamp_ms=1_700_000_000_000 + index,
                client_transaction_version=2,
            )
            found = RECORD_CODEC.decode(*RECORD_CODEC.encode(TransactionRecord(f"payments-worker-{index:08}", value)))
            assert found is not None
            table.replay(found)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / IDS < BYTES_PER_ID_MAX
