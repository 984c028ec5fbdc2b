"""The brokers that a cluster knows, also those that are down, which librdkafka does not list; and the end of a registration.

The calls go through ``client.wire``, in plaintext only. Brokers that are down are listed by Tidelog and by Kafka since 4.0; an
older one lists those that run.
"""

from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from tidelog.client.wire.brokers import Brokers
from tidelog.client.wire.errors import check_code
from tidelog.client.wire.retries import is_worth_another_attempt, retried
from tidelog.wire.protocol import ApiKey

CONNECT_TIMEOUT_MS = 3_000
REQUEST_TIMEOUT_MS = 30_000
# Of the two kinds of nodes that can be described, the other one being controllers.
_BROKERS = 1


class RegisteredBroker(NamedTuple):
    broker_id: int
    host: str
    port: int
    rack: str | None
    is_down: bool
    """Whether the controller has fenced it: it leads nothing, and clients are not sent to it."""


class RegisteredBrokersAdmin:
    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "tidelog-brokers",
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Connects on the first call."""
        self._seconds_max = request_timeout_ms / 1000
        self._brokers = Brokers(bootstrap_servers, client_id, connect_timeout_ms / 1000, self._seconds_max)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._brokers.close()

    def describe(self) -> dict[int, RegisteredBroker]:
        """All brokers by id."""
        fields = {"endpoint_type": _BROKERS, "include_fenced_brokers": True}
        answer = self._brokers.patiently(partial(self._brokers.request_any, ApiKey.DESCRIBE_CLUSTER, fields))
        check_code(answer.error_code, "the brokers cannot be listed", answer.error_message)
        found = [
            RegisteredBroker(each.broker_id, each.host, each.port, each.rack, getattr(each, "is_fenced", False))
            for each in answer.brokers
        ]
        return {each.broker_id: each for each in sorted(found)}

    def unregister(self, broker_id: int) -> None:
        """Let the cluster forget a broker. It must be down and, on Tidelog, hold no replicas."""
        retried(partial(self._unregister_once, broker_id), self._seconds_max, is_worth_another_attempt)

    def _unregister_once(self, broker_id: int) -> None:
        answer = self._brokers.request_any(ApiKey.UNREGISTER_BROKER, {"broker_id": broker_id})
        check_code(answer.error_code, f"broker {broker_id} was not removed", answer.error_message)
