"""Changed settings as the responses of AlterConfigs and IncrementalAlterConfigs show them."""

from typing import Any

from tidelog.controller.configs import ResourceAlteration
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage


def altered_fields(altered: list[ResourceAlteration]) -> dict[str, Any]:
    return {
        "responses": [
            {
                "error_code": resource.error,
                "error_message": resource.message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
            for resource in altered
        ]
    }


def alteration_failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:
    resources = dict.fromkeys((resource.resource_type, resource.resource_name) for resource in request.resources)
    return altered_fields([ResourceAlteration(*resource, code, message) for resource in resources])
