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

    # -- replay, called by the image only ------------------------------------------------------------------------------------

    def change(self, record: ClientQuotaRecord) -> None:
        entity = quota_entity(record.entity)
        if not record.remove:
            self._by_entity.setdefault(entity, {})[record.key] = record.value
        elif entity in self._by_entity:
            quotas = self._by_entity[entity]
            quotas.pop(record.key, None)
            if not quotas:
                del self._by_entity[entity]
