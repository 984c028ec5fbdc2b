"""AlterClientQuotas: sets and removes quotas of users, client ids and addresses. They are in force when the answer arrives."""

from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.controller.client_quotas import QuotaAlteration, QuotaAlterationResult, alter_client_quotas
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:
    alterations = [_alteration(entry) for entry in request.entries]
    context.decide(
        lambda image: alter_client_quotas(image, alterations, validate_only=request.validate_only),
        lambda results: {"entries": [_result(result) for result in results]},
    )


def _alteration(entry: DecodedMessage) -> QuotaAlteration:
    changes = [(change.key, None if change.remove else change.value) for change in entry.ops]
    return QuotaAlteration(_entity(entry), changes)


def _entity(entry: DecodedMessage) -> list[tuple[str, str | None]]:
    return [(part.entity_type, part.entity_name) for part in entry.entity]


def _result(result: QuotaAlterationResult) -> dict[str, Any]:
    entity = [{"entity_type": entity_type, "entity_name": name} for entity_type, name in result.entity]
    return {"error_code": result.error, "error_message": result.message, "entity": entity}


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    return {"entries": [_result(QuotaAlterationResult(_entity(entry), code, message)) for entry in request.entries]}


API = Api(
    key=ApiKey.ALTER_CLIENT_QUOTAS,
    name="AlterClientQuotas",
    versions=(0, 1),
    handle=handle,
    failure=_failure,
    listeners=ALL_LISTENERS,
    is_forwarded=True,
    is_repeatable=True,
)
