"""Whether a broker answers at all, said in time: librdkafka itself waits and retries where a person wants to be told.

``wait_for_broker`` is what the constructors of the clients do. It waits, because a broker that is just starting is found that
way, but below ten seconds, after which nobody believes that anything is happening.
"""

from typing import Any

from confluent_kafka import KafkaException

from tidelog.client.errors import BrokerUnavailable, from_kafka_error

CONNECT_TIMEOUT_SECONDS = 8.0


class ConnectionProblems:
    """An ``error_cb`` that keeps the last problem, in librdkafka's words: its timeouts do not say why."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: str | None = None

    def __call__(self, error: Any) -> None:
        self.last = error.str()


def wait_for_broker(handle: Any, addresses: str, problems: ConnectionProblems, timeout: float = CONNECT_TIMEOUT_SECONDS) -> None:
    """Returns as soon as a broker answered ``handle`` (any client of confluent-kafka). BrokerUnavailable names the addresses."""
    try:
        handle.list_topics(timeout=timeout)
    except KafkaException as error:
        # The problem came as an event, which only a poll delivers.
        handle.poll(0)
        typed = from_kafka_error(error.args[0], "connect", addresses, otherwise=BrokerUnavailable)
        if not typed.retriable:
            raise typed from error
        raise BrokerUnavailable(
            f"no broker answers at {addresses} ({problems.last or error.args[0].str()}): "
            "check the address and that the broker runs",
            code=typed.code,
        ) from error
