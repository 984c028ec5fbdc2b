"""DescribeClientQuotas: lists the quotas that were set for the entities that match a filter.

Each component of the filter applies to one entity type and asks for a given name, the default, or any. An entity must match all
components; with a strict filter it must not have any other type either. A filter without components matches everything, or
nothing if it is strict.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.controller.errors import ApiError
from tidelog.metadata.client_quotas import CLIENT_ID, IP, USER, QuotaEntity
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

MATCH_EXACT = 0
MATCH_DEFAULT = 1
MATCH_ANY = 2


class _Any:
    """Takes the place of a name in a filter and matches every name, including the default."""


_ANY = _Any()
Wanted = dict[str, str | _Any | None]


def handle(context: RequestContext, request: DecodedMessage) -> None:
    wanted = _wanted(request.components)
    entries = [
        _entry(entity, quotas) for entity, quotas in context.broker.image.client_quotas if _fits(entity, wanted, request.strict)
    ]
    context.reply({"error_code": ErrorCode.NONE, "error_message": None, "entries": entries})


def _wanted(components: Sequence[DecodedMessage]) -> Wanted:
    wanted: Wanted = {}
    for component in components:
        entity_type = component.entity_type
        if entity_type in wanted:
            raise _invalid(f"the filter names {entity_type} twice")
        if entity_type not in (USER, CLIENT_ID, IP):
            if not entity_type:
                raise _invalid("a component without an entity type")
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"there is no entity type {entity_type!r}")
        wanted[entity_type] = _wanted_name(component)
    if IP in wanted and len(wanted) > 1:
        raise _invalid(f"{IP} cannot be combined with {USER} or {CLIENT_ID}")
    return wanted


def _wanted_name(component: DecodedMessage) -> str | _Any | None:
    if component.match_type == MATCH_EXACT:
        if component.match is None:
            raise _invalid("a component for one name does not say which")
        name: str = component.match
        return name
    if component.match_type not in (MATCH_DEFAULT, MATCH_ANY):
        raise _invalid(f"there is no match type {component.match_type}")
    if component.match is not None:
        raise _invalid("a component for the default or for any names one")
    return None if component.match_type == MATCH_DEFAULT else _ANY


def _fits(entity: QuotaEntity, wanted: Wanted, is_strict: bool) -> bool:
    names = dict(entity)
    if is_strict and len(names) != len(wanted):
        return False
    return all(kind in names and (name is _ANY or names[kind] == name) for kind, name in wanted.items())


def _entry(entity: QuotaEntity, quotas: Mapping[str, float]) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entity],
        "values": [{"key": key, "value": value} for key, value in quotas.items()],
    }


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - one signature for all
    return {"error_code": code, "error_message": message, "entries": None}


API = Api(
    key=ApiKey.DESCRIBE_CLIENT_QUOTAS,
    name="DescribeClientQuotas",
    versions=(0, 1),
    handle=handle,
    failure=_failure,
    listeners=ALL_LISTENERS,
)
