"""DescribeAcls: there is no authorizer, and the answer says so with the error that tools understand."""

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.controller.errors import ApiError
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def handle(context: RequestContext, request: DecodedMessage) -> None:  # noqa: ARG001 - whatever is asked, the answer is the same
    raise ApiError(ErrorCode.SECURITY_DISABLED, "no authorizer is configured on the broker")


API = Api(key=ApiKey.DESCRIBE_ACLS, name="DescribeAcls", versions=(1, 3), handle=handle, listeners=ALL_LISTENERS)
