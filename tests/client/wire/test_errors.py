import pytest

from tidelog.client.errors import BrokerUnavailable, InvalidArgument, NotAuthorized, TidelogError, TimedOut, UnknownTopic
from tidelog.client.wire.errors import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    InvalidAddress,
    InvalidAnswer,
    RequestTimedOut,
    SecurityRequired,
    UnknownPartition,
    as_tidelog_error,
    error_of,
    toolkit_errors,
)
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


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (BrokerUnreachable("no broker answers at h:1"), BrokerUnavailable, "check the address"),
        (ConnectionLost("it ended"), BrokerUnavailable, "broker runs"),
        (RequestTimedOut("no answer"), TimedOut, "socket.timeout.ms"),
        (InvalidAddress("h:x: x is no port"), InvalidArgument, "host:port"),
        (UnknownPartition("orders"), UnknownTopic, "there is no topic orders"),
        (SecurityRequired("it speaks TLS"), NotAuthorized, "security.protocol"),
        (BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders"), NotAuthorized, "permission on the topic"),
        (BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "orders"), UnknownTopic, "create it first"),
        (InvalidAnswer("nonsense"), TidelogError, "nonsense"),
    ],
)
def test_each(error: ClientError, kind: type[TidelogError], words: str) -> None:
    found = as_tidelog_error(error, "read orders[0]", "h:1")
    assert type(found) is kind
    assert str(found).startswith("read orders[0]: ")
    assert words in str(found)


def test_only_errors_of_the_connection() -> None:
    with pytest.raises(BrokerUnavailable), toolkit_errors("read", "h:1"):
        raise ConnectionLost("it ended")
    with pytest.raises(KeyError), toolkit_errors("read", "h:1"):
        raise KeyError
