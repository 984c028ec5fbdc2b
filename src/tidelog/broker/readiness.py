"""Is the broker ready to be sent clients, and if not, why not.

Ready is who is registered in the metadata and has loaded every coordinator shard that it leads. Until then clients that need a
coordinator would only be told to come back.

A shard that was dropped, or that cannot be had because its log is damaged, does not count: it concerns the groups and ids that
belong to it, and to send all other clients away would help nobody. ``tidelog_coordinator_shards`` shows it.
"""

from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.coordinator.shard import ShardState

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def unready_reason(broker: "Broker") -> str | None:
    """None when it is ready."""
    if not broker.is_running:
        return "the broker is starting or stopping"
    coordinators = broker.coordinators
    return _loading_reason(coordinators.groups) or _loading_reason(coordinators.transactions)


def _loading_reason(service: CoordinatorService[Any]) -> str | None:
    waiting = service.untried_count
    loading = sum(1 for shard in service.runtime if shard.state is ShardState.LOADING and not shard.drops)
    if waiting or loading:
        return f"{service.runtime.topic}: {waiting + loading} partitions are still to be loaded"
    return None
