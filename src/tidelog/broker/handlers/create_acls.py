"""CreateAcls: there is no authorizer, so every ACL is answered with an error that says so."""

from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.controller.errors import ApiError
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:  # noqa: ARG001 - whatever is asked, the answer is the same
    raise ApiError(ErrorCode.SECURITY_DISABLED, "no authorizer is configured on the broker")


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    return {"results": [{"error_code": code, "error_message": message} for _ in request.creations]}


API = Api(key=ApiKey.CREATE_ACLS, name="CreateAcls", versions=(1, 3), handle=handle, failure=_failure, listeners=ALL_LISTENERS)
