"""Deletes the states of an empty share group: of some topics, or of all before the group itself goes.

The group notes first what is being deleted, then the share coordinator deletes the states, then the group notes that they are
gone. A crash in between leaves the note, and the next attempt goes on from there.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from tidelog.broker.api import ResultCollector
from tidelog.coordinator.machine import OnDone
from tidelog.groups.share.group import TopicStates
from tidelog.queues.records import SharePartitionKey

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode

OnDeleted = Callable[[Collection[bytes], Exception | None], None]


def delete_share_states(broker: "BrokerNode", group_id: str, topic_ids: Collection[bytes] | None, on_deleted: OnDeleted) -> None:
    """Call back with the ids of the topics whose states are gone. None stands for all topics of the group."""
    groups, states = broker.coordinators.groups, broker.coordinators.share_states

    def begun(topics: TopicStates | None, error: Exception | None) -> None:
        if topics is None or error is not None:
            on_deleted((), error)
            return
        keys = [SharePartitionKey(group_id, topic_id, index) for topic_id, state in topics.items() for index in state.partitions]
        gather = ResultCollector(len(keys), lambda errors: deleted(topics, errors))
        for position, key in enumerate(keys):
            states.delete(key, putter(gather, position))

    def putter(gather: ResultCollector, position: int) -> OnDone:
        return lambda _, error: gather.put(position, error)

    def deleted(topics: TopicStates, errors: Collection[Exception | None]) -> None:
        failed = next((error for error in errors if error is not None), None)
        if failed is not None or not topics:
            on_deleted((), failed)
            return
        # A leader without members here is dropped already; one that is left would write to a state that is gone.
        broker.share_sessions.share_partitions.drop_group(group_id)

        def noted(_: Any, error: Exception | None) -> None:
            on_deleted(topics.keys(), error)

        groups.write(group_id, lambda machine: machine.share.states_deleted(group_id, topics.keys()), noted)

    groups.write(group_id, lambda machine: machine.share.begin_deletion(group_id, topic_ids), begun)
