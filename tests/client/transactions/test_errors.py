from tidelog.client.transactions.errors import BrokerError, UnknownPartition, error_of
from tidelog.wire.errors import ErrorCode


def test_a_broker_s_error_says_what_where_and_which() -> None:
    error = BrokerError(47, "t-0")
    assert error.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert str(error) == "t-0: The producer's epoch is old. (INVALID_PRODUCER_EPOCH)"
    assert str(BrokerError(47, "t-0", "own words")) == "t-0: own words (INVALID_PRODUCER_EPOCH)"


def test_a_code_that_is_newer_than_we_are() -> None:
    assert error_of(9999) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert str(BrokerError(9999, "t-0")) == "t-0: error code 9999"


def test_a_topic_or_a_partition_that_is_not_there() -> None:
    assert str(UnknownPartition("t")) == "there is no topic t"
    assert str(UnknownPartition("t", 3)) == "there is no partition t-3"
