"""The brokers of the image: their ids, their endpoints, and whether they are active.

A broker is active while it is registered, not fenced and not shutting down. Its epoch is the offset of its registration, so a
later process of the same broker has a larger one.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidelog.metadata.records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    Ids,
    InconsistentRecord,
    RegisterBrokerRecord,
    SupportedFeature,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)


@dataclass(frozen=True, slots=True)
class BrokerImage:
    broker_id: int
    broker_epoch: int
    incarnation_id: bytes
    end_points: tuple[BrokerEndpoint, ...]
    features: tuple[SupportedFeature, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: Ids

    @property
    def is_active(self) -> bool:
        return not self.fenced and not self.in_controlled_shutdown

    def endpoint(self, listener: str) -> BrokerEndpoint | None:
        """The broker's address on the listener of this name."""
        return next((endpoint for endpoint in self.end_points if endpoint.name == listener), None)


class BrokersImage:
    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[int, BrokerImage] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[BrokerImage]:
        return iter(self._by_id.values())

    def __contains__(self, broker_id: int) -> bool:
        return broker_id in self._by_id

    def find(self, broker_id: int) -> BrokerImage | None:
        return self._by_id.get(broker_id)

    def is_active(self, broker_id: int) -> bool:
        broker = self._by_id.get(broker_id)
        return broker is not None and broker.is_active

    def freeze(self) -> Mapping[int, BrokerImage]:
        """The brokers as they are now."""
        return dict(self._by_id)

    # -- replay, called by the image only ------------------------------------------------------------------------------------

    def become(self, other: "BrokersImage") -> None:
        """Take over the brokers of ``other``, which is not used any more."""
        self._by_id = other._by_id

    def register(self, record: RegisterBrokerRecord) -> None:
        self._by_id[record.broker_id] = BrokerImage(
            broker_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            end_points=record.end_points,
            features=record.features,
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=record.log_dirs,
        )

    def unregister(self, record: UnregisterBrokerRecord) -> None:
        self._get(record.broker_id, record.broker_epoch)
        del self._by_id[record.broker_id]

    def fence(self, record: FenceBrokerRecord | UnfenceBrokerRecord) -> None:
        broker = self._get(record.id, record.epoch)
        self._by_id[record.id] = dataclasses.replace(broker, fenced=isinstance(record, FenceBrokerRecord))

    def change(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._get(record.broker_id, record.broker_epoch)
        self._by_id[record.broker_id] = dataclasses.replace(
            broker,
            fenced=broker.fenced if record.fenced == 0 else record.fenced > 0,
            in_controlled_shutdown=broker.in_controlled_shutdown or record.in_controlled_shutdown > 0,
            log_dirs=record.log_dirs or broker.log_dirs,
        )

    def _get(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        broker = self._by_id.get(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            known = "is not registered" if broker is None else f"is registered with epoch {broker.broker_epoch}"
            raise InconsistentRecord(f"a record of broker {broker_id}, epoch {broker_epoch}, which {known}")
        return broker
