"""Envelope: another broker forwards a client's request (KIP-590), and the active controller answers as if the client had asked
it.

The request is handled in a session of its own, whose only response travels back in the envelope. If this node is not the active
controller, or ceases to be before it has decided, the envelope says so, and the broker asks another one.
"""

from typing import Any

from tidelog.broker.api import Api, Part, RequestContext
from tidelog.broker.session import FORWARDED, ClientSession
from tidelog.config.listeners import ListenerRole
from tidelog.controller.errors import ApiError
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey, parse_request_header


def handle(context: RequestContext, request: DecodedMessage) -> None:
    broker = context.broker
    frame = memoryview(request.request_data)
    try:
        header = parse_request_header(frame)
        client_host = bytes(request.client_host_address).decode()
    except (MalformedRequest, UnicodeDecodeError) as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"the forwarded request cannot be read: {error}") from error
    api = context.session.apis.get(header.api_key)
    if api is None or not api.is_forwarded:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"requests of api key {header.api_key} are not forwarded")
    if not broker.controller.is_active:
        raise ApiError(ErrorCode.NOT_CONTROLLER, "this node is not the active controller")

    def end(fields: dict[str, Any]) -> None:
        context.session.remove_delayed(forwarded)
        inner.closed()
        context.reply_later(lambda: fields)

    def answered(parts: list[Part]) -> None:
        response = b"".join([bytes(part) for part in parts])  # type: ignore[arg-type]  # a decision has no slices of files
        end({"response_data": response, "error_code": ErrorCode.NONE})

    def refused(reason: str) -> None:  # noqa: ARG001 - the envelope has no place for words
        end({"response_data": None, "error_code": ErrorCode.INVALID_REQUEST})

    def not_controller() -> None:
        end({"response_data": None, "error_code": ErrorCode.NOT_CONTROLLER})

    inner = broker.inner_session(client_host, answered, refused, FORWARDED, not_controller)
    forwarded = _Forwarded(inner)
    context.session.add_delayed(forwarded)
    inner.receive(frame)


class _Forwarded:
    """Cancels the forwarded request with the connection that it came over."""

    __slots__ = ("_session",)

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    def cancel(self) -> None:
        self._session.closed()


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - as above
    return {"response_data": None, "error_code": code}


API = Api(
    key=ApiKey.ENVELOPE,
    name="Envelope",
    versions=(0, 0),
    handle=handle,
    failure=_failure,
    listeners=frozenset((ListenerRole.CONTROLLER,)),
)
