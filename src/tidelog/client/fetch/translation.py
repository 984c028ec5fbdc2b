"""The errors of the connection as those of the toolkit, in one place."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError

from tidelog.client.errors import (
    BrokerUnavailable,
    InvalidArgument,
    NotAuthorized,
    TidelogError,
    TimedOut,
    UnknownTopic,
    from_kafka_error,
)
from tidelog.client.transactions.errors import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    InvalidAddress,
    RequestTimedOut,
    SecurityRequired,
    UnknownPartition,
)

_CLASSES: tuple[tuple[type[ClientError], type[TidelogError], str], ...] = (
    (BrokerUnreachable, BrokerUnavailable, "check the address and that the broker runs"),
    (ConnectionLost, BrokerUnavailable, "check that the broker runs"),
    (RequestTimedOut, TimedOut, "try again, or allow more time by socket.timeout.ms"),
    (InvalidAddress, InvalidArgument, "bootstrap servers are host:port, with commas between them"),
    (UnknownPartition, UnknownTopic, "create it first: admin.create_topic(...)"),
    (SecurityRequired, NotAuthorized, "give security.protocol, and what it needs, in the settings"),
)


@contextmanager
def translated(what: str, addresses: str) -> Iterator[None]:
    """``what`` is what was being done ("offsets of orders")."""
    try:
        yield
    except ClientError as error:
        raise as_tidelog_error(error, what, addresses) from error


def as_tidelog_error(error: ClientError, what: str, addresses: str) -> TidelogError:
    if isinstance(error, BrokerError):
        return from_kafka_error(KafkaError(int(error.code)), what, addresses)
    for kind, ours, advice in _CLASSES:
        if isinstance(error, kind):
            return ours(f"{what}: {error}: {advice}")
    return TidelogError(f"{what}: {error}")
