"""Errors of the connection become those of the toolkit, each with what to do."""

import pytest

from tidelog.client.errors import BrokerUnavailable, InvalidArgument, NotAuthorized, TidelogError, TimedOut, UnknownTopic
from tidelog.client.fetch.translation import as_tidelog_error, translated
from tidelog.client.transactions.errors import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    InvalidAddress,
    InvalidAnswer,
    RequestTimedOut,
    SecurityRequired,
    UnknownPartition,
)
from tidelog.wire.errors import ErrorCode


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
    with pytest.raises(BrokerUnavailable), translated("read", "h:1"):
        raise ConnectionLost("it ended")
    with pytest.raises(KeyError), translated("read", "h:1"):
        raise KeyError
