"""Sets and removes client quotas.

Each entity of a request stands for itself, as with settings: refusing one does not stop the others. Any user name is accepted.
Without authentication every client is ``User:ANONYMOUS``, as in Kafka, so quotas of that user and of the default user are in
force, and those of other users have no effect until clients authenticate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.errors import ApiError
from tidelog.metadata.client_quotas import CLIENT_ID, IP, USER, QuotaEntity, quota_entity
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import ClientQuotaRecord, MetadataRecord
from tidelog.wire.errors import ErrorCode

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

# Maps a key to the largest whole number that it may have; None allows any number, with fractions.
CLIENT_QUOTA_KEYS: Mapping[str, int | None] = {
    PRODUCER_BYTE_RATE: 2**63 - 1,
    CONSUMER_BYTE_RATE: 2**63 - 1,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
IP_QUOTA_KEYS: Mapping[str, int | None] = {CONNECTION_CREATION_RATE: 2**31 - 1}
# Every request looks up its quota, and all entities are in memory. Kafka has no limit.
ENTITIES_MAX = 10_000
# Clients calculate with floats.
FRACTION_MAX = 1e-6


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """``changes`` holds (key, value) pairs; None removes the quota."""

    entity: Sequence[tuple[str, str | None]]
    changes: Sequence[tuple[str, float | None]]


@dataclass(frozen=True, slots=True)
class QuotaAlterationResult:
    entity: Sequence[tuple[str, str | None]]
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def alter_client_quotas(
    image: ClusterImage, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> ControllerResult[list[QuotaAlterationResult]]:
    records: list[MetadataRecord] = []
    results: list[QuotaAlterationResult] = []
    seen: set[QuotaEntity] = set()
    entities_left = ENTITIES_MAX - len(image.client_quotas)
    for alteration in alterations:
        try:
            entity = _check_entity(alteration.entity)
            if entity in seen:
                raise _invalid("the request names the entity twice")
            seen.add(entity)
            changes = _changes(image, entity, alteration.changes)
            if not image.client_quotas.find(entity) and any(not change.remove for change in changes):
                if entities_left <= 0:
                    raise ApiError(ErrorCode.POLICY_VIOLATION, f"there are {ENTITIES_MAX} entities with quotas already")
                entities_left -= 1
            records += changes
            results.append(QuotaAlterationResult(alteration.entity))
        except ApiError as error:
            results.append(QuotaAlterationResult(alteration.entity, error.code, error.message))
    return ControllerResult([] if validate_only else records, results)


def _check_entity(parts: Sequence[tuple[str, str | None]]) -> QuotaEntity:
    if not parts:
        raise _invalid("an entity without a type")
    types = [entity_type for entity_type, _ in parts]
    for entity_type, name in parts:
        if entity_type not in (USER, CLIENT_ID, IP):
            raise _invalid(f"there is no entity type {entity_type!r}, only {USER}, {CLIENT_ID} and {IP}")
        if types.count(entity_type) > 1:
            raise _invalid(f"the entity names its {entity_type} twice")
        if name == "":
            raise _invalid(f"an empty {entity_type}; the default is null")
    if IP in types:
        if len(types) > 1:
            raise _invalid(f"{IP} cannot be combined with {USER} or {CLIENT_ID}")
        _check_address(parts[0][1])
    return quota_entity(parts)


def _check_address(name: str | None) -> None:
    """Kafka also accepts host names and resolves them; here that would block the loop."""
    # The import takes some milliseconds, which hardly any start needs.
    from ipaddress import ip_address

    try:
        usual = name if name is None else str(ip_address(name))
    except ValueError:
        usual = ""
    if usual != name:
        raise _invalid(f"{name!r} is not the address of a client as the broker writes it" + (f": {usual}" if usual else ""))


def _changes(image: ClusterImage, entity: QuotaEntity, changes: Sequence[tuple[str, float | None]]) -> list[ClientQuotaRecord]:
    keys = IP_QUOTA_KEYS if entity[0].entity_type == IP else CLIENT_QUOTA_KEYS
    current = image.client_quotas.find(entity)
    records = []
    seen: set[str] = set()
    for key, value in changes:
        if key in seen:
            raise _invalid(f"{key} is given twice")
        seen.add(key)
        if value is None:
            # A quota that is removed need not be known, and need not be set.
            if key in current:
                records.append(ClientQuotaRecord(entity, key, remove=True))
            continue
        _check_value(keys, key, value)
        if current.get(key) != value:
            records.append(ClientQuotaRecord(entity, key, value))
    return records


def _check_value(keys: Mapping[str, int | None], key: str, value: float) -> None:
    if key not in keys:
        raise _invalid(f"there is no quota {key!r} for this entity, only {', '.join(keys)}")
    # Not "value <= 0", because that accepts NaN.
    if not value > 0 or math.isinf(value):
        raise _invalid(f"{key} must be greater than 0, and is {value:g}")
    value_max = keys[key]
    if value_max is not None:
        if value > value_max:
            raise _invalid(f"{key} is {value:g}, at most {value_max}")
        if abs(value - round(value)) > FRACTION_MAX:
            raise _invalid(f"{key} is a whole number, not {value:g}")


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
