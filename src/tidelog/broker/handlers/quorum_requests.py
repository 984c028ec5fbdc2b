"""The requests of the metadata quorum: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch and FetchSnapshot of the metadata log, and
changes of the voters.

They are one conversation, served on the controllers' listeners only. The quorum answers each of them, some later.
"""

from typing import Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.quorum_wire import BY_KEY, QuorumApi
from tidelog.config.listeners import ListenerRole
from tidelog.controller.errors import ApiError
from tidelog.raft.messages import QuorumReply
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.messages import DecodedMessage

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


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - most responses have no place for words
    return {"error_code": code}


def _api(api: QuorumApi) -> Api:
    return Api(
        key=api.key,
        name=_NAMES[api.key.name],
        versions=api.versions,
        handle=handle,
        failure=_failure,
        listeners=frozenset((ListenerRole.CONTROLLER,)),
    )


APIS = tuple(_api(api) for api in BY_KEY.values())
