"""Client quotas, which librdkafka cannot describe or alter, on any Kafka since 2.6.

An entity maps types (``user``, ``client-id``, ``ip``) to names; None is the default of its type. The calls go through
``client.wire``, in plaintext only. A change is requested once: after an error it may or may not have been made.
"""

from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from tidelog.client.wire.brokers import Brokers
from tidelog.client.wire.errors import check_code
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

CONNECT_TIMEOUT_MS = 3_000
REQUEST_TIMEOUT_MS = 30_000
Entity = Mapping[str, str | None]
_MATCH_EXACT, _MATCH_DEFAULT = 0, 1


class EntityQuotas(NamedTuple):
    entity: dict[str, str | None]
    quotas: dict[str, float]


class QuotaAdmin:
    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "tidelog-quotas",
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Connects on the first call."""
        self._brokers = Brokers(bootstrap_servers, client_id, connect_timeout_ms / 1000, request_timeout_ms / 1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._brokers.close()

    def describe(self, entity: Entity | None = None) -> list[EntityQuotas]:
        """All entities that have quotas, or those that contain ``entity``, whatever other types they have."""
        components: list[dict[str, object]] = [
            {"entity_type": kind, "match_type": _MATCH_DEFAULT if name is None else _MATCH_EXACT, "match": name}
            for kind, name in (entity or {}).items()
        ]
        answer: DecodedMessage = self._brokers.patiently(partial(self._describe, components))
        found = [
            EntityQuotas(
                {part.entity_type: part.entity_name for part in entry.entity},
                {value.key: value.value for value in sorted(entry.values, key=lambda value: str(value.key))},
            )
            for entry in answer.entries or ()
        ]
        return sorted(found, key=lambda each: [(kind, name is not None, name) for kind, name in sorted(each.entity.items())])

    def _describe(self, components: list[dict[str, object]]) -> DecodedMessage:
        answer = self._brokers.request_any(ApiKey.DESCRIBE_CLIENT_QUOTAS, {"components": components, "strict": False})
        check_code(answer.error_code, "the quotas cannot be described", answer.error_message)
        return answer

    def alter(self, entity: Entity, quotas: Mapping[str, float | None], *, validate_only: bool = False) -> None:
        """Set the quotas that have a value, and remove those with None."""
        entry = {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in quotas.items()],
        }
        fields = {"entries": [entry], "validate_only": validate_only}
        for result in self._brokers.request_any(ApiKey.ALTER_CLIENT_QUOTAS, fields).entries:
            check_code(result.error_code, "the quotas were not changed", result.error_message)
