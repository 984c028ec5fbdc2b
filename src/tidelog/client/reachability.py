"""Opening a client of librdkafka: refused settings and brokers that do not answer are reported at once.

librdkafka itself waits and retries for ever where a person wants to be told. The constructors of the clients call
``wait_for_broker``. It waits, so that a broker that is just starting is found, but for less than ten seconds, after which nobody
believes that anything is happening.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException

from tidelog.client.errors import BrokerUnavailable, InvalidArgument, from_kafka_error

CONNECT_TIMEOUT_SECONDS = 8.0


class ConnectionProblems:
    """An ``error_cb`` that keeps the last problem in librdkafka's words, because its timeouts do not give a reason."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: str | None = None

    def __call__(self, error: Any) -> None:
        self.last = error.str()


@contextmanager
def refused_settings() -> Iterator[None]:
    """Around the making of a client: settings that librdkafka refuses raise InvalidArgument."""
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        raise InvalidArgument(f"librdkafka refuses the settings: {cause.str().strip()}", code=cause.code()) from error


def wait_for_broker(handle: Any, addresses: str, problems: ConnectionProblems, timeout: float = CONNECT_TIMEOUT_SECONDS) -> None:
    """Return as soon as a broker answers ``handle`` (any client of confluent-kafka). BrokerUnavailable names the addresses."""
    try:
        handle.list_topics(timeout=timeout)
    except KafkaException as error:
        # The problem arrives as an event, which only a poll delivers.
        handle.poll(0)
        typed = from_kafka_error(error.args[0], "connect", addresses, otherwise=BrokerUnavailable)
        if not typed.retriable:
            raise typed from error
        raise BrokerUnavailable(
            f"no broker answers at {addresses} ({problems.last or error.args[0].str()}): "
            "check the address and that the broker runs",
            code=typed.code,
        ) from error
