"""What clients do on one broker they do on three: a part of their tests in which several brokers have a say.

Topics have partitions on each broker, so producers and consumers talk to all of them; decisions go through whichever broker a
client picks; groups have their coordinators wherever the partition of their internal topic is.
"""

import pytest

from tests.compatibility.clients.groups.test_joining_and_leaving import test_join_and_leave
from tests.compatibility.clients.test_admin_aiokafka import test_create_partitions as test_aiokafka_creates_partitions
from tests.compatibility.clients.test_admin_confluent import (
    test_create_partitions,
    test_create_what_is_there_and_what_is_only_tried,
    test_list_offsets,
)
from tests.compatibility.clients.test_round_trips import test_acks, test_headers, test_partitions_are_apart
from tests.compatibility.clients.transactions.test_commit_and_abort import (
    test_open_transaction_holds_back_read_committed_only,
    test_transaction_over_120_partitions_of_several_topics,
)

__all__ = [
    "test_acks",
    "test_aiokafka_creates_partitions",
    "test_create_partitions",
    "test_create_what_is_there_and_what_is_only_tried",
    "test_headers",
    "test_join_and_leave",
    "test_list_offsets",
    "test_open_transaction_holds_back_read_committed_only",
    "test_partitions_are_apart",
    "test_transaction_over_120_partitions_of_several_topics",
]

# A client that is closed while it connects may leave the socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
