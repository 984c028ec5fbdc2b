"""Client quotas: how much a user, a client id or an address may take, by entity.

An entity is one name per type, or two types together (a client id of a user); the name None stands for the default, which applies
to everybody without an entity of their own. ``QuotaEntity`` keeps the types in alphabetical order, so one entity has one key.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from tidelog.metadata.records import ClientQuotaRecord, QuotaEntityPart

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"

QuotaEntity = tuple[QuotaEntityPart, ...]
NO_QUOTAS: Mapping[str, float] = MappingProxyType({})


def quota_entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity of these (type, name) pairs, in any order."""
    return tuple([QuotaEntityPart(*part) for part in sorted(parts, key=lambda part: part[0])])


class ClientQuotasImage:
    __slots__ = ("_by_entity",)

    def __init__(self) -> None:
        self._by_entity: dict[QuotaEntity, dict[str, float]] = {}

    def __len__(self) -> int:
        return len(self._by_entity)

    def __iter__(self) -> Iterator[tuple[QuotaEntity, Mapping[str, float]]]:
        return iter(self._by_entity.items())

    def find(self, entity: QuotaEntity) -> Mapping[str, float]:
        """The entity's quotas by key, such as producer_byte_rate."""
        return self._by_entity.get(entity, NO_QUOTAS)

    def freeze(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        """All quotas as they are now."""
        return dict(self._by_entity)

    # -- replay, called by the image only ------------------------------------------------------------------------------------

    def change(self, record: ClientQuotaRecord) -> None:
        entity = quota_entity(record.entity)
        # A frozen view may hold the quotas of an entity, so they are replaced and never changed.
        quotas = dict(self._by_entity.get(entity, {}))
        if not record.remove:
            quotas[record.key] = record.value
        else:
            quotas.pop(record.key, None)
        if quotas:
            self._by_entity[entity] = quotas
        else:
            self._by_entity.pop(entity, None)

    def become(self, other: "ClientQuotasImage") -> None:
        """Take over the quotas of ``other``, which is not used any more."""
        self._by_entity = other._by_entity
