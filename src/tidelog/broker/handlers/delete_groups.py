"""DeleteGroups: deletes groups without members, together with their offsets. Each group is deleted or refused by itself.

A group and its offsets are deleted in one batch. Only if the offsets do not fit into one are they deleted in parts, and the group
with the last part. A crash in between leaves a group with fewer offsets, and the client, which got no answer, retries.
"""

from collections.abc import Collection
from typing import Any

from tidelog.broker.api import Api, Pace, RequestContext, ResultCollector
from tidelog.broker.share_deletion import delete_share_states
from tidelog.coordinator.errors import DecisionTooLarge
from tidelog.ports.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

# The number of offsets in the first part; it is halved as long as a part is too large.
PART_OFFSETS = 4096


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    gather = ResultCollector(len(request.groups_names), lambda results: context.reply_later(lambda: {"results": results}))
    pace = Pace()
    for index, group_id in enumerate(request.groups_names):
        _Deletion(context, gather, index, group_id).start()
        if pace.is_pause_due():
            yield


class _Deletion:
    __slots__ = ("_context", "_gather", "_group_id", "_index", "_offsets_max")

    def __init__(self, context: RequestContext, gather: ResultCollector, index: int, group_id: str) -> None:
        self._context = context
        self._gather = gather
        self._index = index
        self._group_id = group_id
        self._offsets_max: int | None = None

    def start(self) -> None:
        """The states of a share group are deleted before the group itself: without the group nobody would find them."""
        group_id = self._group_id
        groups = self._context.broker.coordinators.groups
        groups.read(group_id, lambda machine: machine.share.is_share_group(group_id), self._found)

    def _found(self, is_share_group: bool | None, error: Exception | None) -> None:
        if error is not None:
            self._done(None, error)
        elif is_share_group:
            delete_share_states(self._context.broker, self._group_id, None, self._states_deleted)
        else:
            self.go_on()

    def _states_deleted(self, _: Collection[bytes], error: Exception | None) -> None:
        if error is not None:
            self._done(None, error)
        else:
            self.go_on()

    def go_on(self) -> None:
        self._context.broker.coordinators.groups.write(
            self._group_id, lambda machine: machine.delete_group(self._group_id, self._offsets_max), self._done
        )

    def _done(self, is_gone: bool | None, error: Exception | None) -> None:
        if isinstance(error, DecisionTooLarge) and self._offsets_max != 1:
            self._offsets_max = PART_OFFSETS if self._offsets_max is None else self._offsets_max // 2
            self.go_on()
        elif error is None and not is_gone:
            self.go_on()
        else:
            code = ErrorCode.NONE if error is None else self._context.code_of(error)[0]
            self._gather.put(self._index, {"group_id": self._group_id, "error_code": code})


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 -- only the code is in it
    return {"results": [{"group_id": group_id, "error_code": code} for group_id in request.groups_names]}


API = Api(key=ApiKey.DELETE_GROUPS, name="DeleteGroups", versions=(0, 2), handle=handle, failure=_failure)
