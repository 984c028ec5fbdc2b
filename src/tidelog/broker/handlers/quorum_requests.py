"""The requests of the metadata quorum: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch and FetchSnapshot of the metadata log, and
changes of the voters.

They are one conversation among controllers, on their listeners. An operator who adds or removes a voter may ask any broker as
well, which forwards that to the active controller. The quorum answers each request, some later.
"""

from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.broker.quorum_wire import BY_KEY, QuorumApi
from tidelog.config.listeners import ListenerRole
from tidelog.controller.errors import ApiError
from tidelog.raft.messages import QuorumReply
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

_NAMES = {
    "VOTE": "Vote",
    "BEGIN_QUORUM_EPOCH": "BeginQuorumEpoch",
    "END_QUORUM_EPOCH": "EndQuorumEpoch",
    "FETCH": "Fetch",
    "FETCH_SNAPSHOT": "FetchSnapshot",
    "ADD_RAFT_VOTER": "AddRaftVoter",
    "REMOVE_RAFT_VOTER": "RemoveRaftVoter",
    "UPDATE_RAFT_VOTER": "UpdateRaftVoter",
}


def handle(context: RequestContext, request: DecodedMessage) -> None:
    api = BY_KEY[context.header.api_key]
    try:
        decoded = api.decode_request(request)
    except MalformedRequest as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error

    def answer(reply: QuorumReply) -> None:
        context.reply_later(lambda: api.reply_fields(reply))

    context.broker.quorum.handle(decoded, answer)


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code}


def _api(api: QuorumApi) -> Api:
    is_operators = api.key in (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER)
    return Api(
        key=api.key,
        name=_NAMES[api.key.name],
        versions=api.versions,
        handle=handle,
        failure=None if is_operators else _failure,
        listeners=ALL_LISTENERS if is_operators else frozenset((ListenerRole.CONTROLLER,)),
        is_forwarded=is_operators,
    )


APIS = tuple(_api(api) for api in BY_KEY.values())
