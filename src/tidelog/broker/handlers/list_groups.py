"""ListGroups: lists the groups of all shards that this broker leads, filtered by state and type.

As long as one shard is still loading or unavailable, the request fails: a list without its groups would look complete.
"""

from collections.abc import Sequence
from typing import Any

from tidelog.broker.api import Api, RequestContext, ResultCollector, in_steps
from tidelog.coordinator.errors import CoordinatorLoading, NotCoordinator
from tidelog.coordinator.machine import OnDone
from tidelog.groups.coordinator import ListedGroup
from tidelog.ports.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    service = context.broker.coordinators.groups
    shards = service.shards()

    def listed(results: Sequence[list[ListedGroup] | Exception]) -> None:
        failed = next((result for result in results if isinstance(result, Exception)), None)
        if failed is not None:
            context.fail(failed)
        else:
            context.continue_in_slices(answer(results))

    def answer(results: Sequence[list[ListedGroup] | Exception]) -> Steps[None]:
        listed = [group for result in results if not isinstance(result, Exception) for group in result]
        groups = yield from in_steps(listed, _group)
        yield from context.reply_in_slices({"error_code": ErrorCode.NONE, "groups": groups})

    gather = ResultCollector(len(shards), listed)

    def put(position: int, index: int) -> OnDone:
        def done(groups: list[ListedGroup] | None, error: Exception | None) -> None:
            if not isinstance(error, NotCoordinator):
                gather.put(position, error or groups)
            elif index in service.shards():
                gather.put(position, CoordinatorLoading(f"shard {index} was dropped and is loading again: {error}"))
            else:
                gather.put(position, [])  # Another broker leads the shard by now and lists its groups.

        return done

    for position, (index, shard) in enumerate(shards.items()):
        if shard is None:
            gather.put(position, CoordinatorLoading(f"shard {index} is not loaded yet"))
        else:
            shard.read(lambda machine: machine.list_groups(request.states_filter, request.types_filter), put(position, index))
        yield


def _group(group: ListedGroup) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "protocol_type": group.protocol_type,
        "group_state": group.state,
        "group_type": group.type,
    }


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 -- only the code is in it
    return {"error_code": code, "groups": ()}


API = Api(key=ApiKey.LIST_GROUPS, name="ListGroups", versions=(0, 5), handle=handle, failure=_failure)
