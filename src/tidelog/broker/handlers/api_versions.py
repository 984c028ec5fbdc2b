"""ApiVersions: which versions of which APIs are served, generated from the table, and the cluster's features.

This is the first request of most connections, and clients send it before they know which versions the broker serves. So a version
that we lack still gets an answer (KIP-511): in the layout of version 0, with UNSUPPORTED_VERSION, listing ApiVersions only, and
the client asks again.
"""

import re
from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.controller.errors import ApiError
from tidelog.controller.features import finalized_features
from tidelog.metadata.features import SUPPORTED_FEATURES
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, encode_response
from tidelog.wire.protocol import ApiKey

# Up to this version clients fail on a feature whose minimum level is 0.
WITHOUT_ZERO_LEVELS_UNTIL = 3
SOFTWARE_SINCE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(context: RequestContext, request: DecodedMessage) -> None:
    version = context.header.api_version
    if version >= SOFTWARE_SINCE:
        for text in (request.client_software_name, request.client_software_version):
            if not _SOFTWARE.fullmatch(text):
                raise ApiError(ErrorCode.INVALID_REQUEST, "the client's software name or version is not a plain word")
        context.session.identify(request.client_software_name, request.client_software_version)
    image, quorum = context.broker.image, context.broker.quorum
    context.reply(
        {
            "error_code": ErrorCode.NONE,
            "api_keys": [_api_fields(api) for _, api in sorted(context.session.apis.items())],
            "supported_features": [
                {"name": name, "min_version": low, "max_version": high}
                for name, (low, high) in SUPPORTED_FEATURES.items()
                if low > 0 or version > WITHOUT_ZERO_LEVELS_UNTIL
            ],
            "finalized_features_epoch": image.last_offset,
            "finalized_features": [
                {"name": name, "max_version_level": level, "min_version_level": level}
                for name, level in finalized_features(image, quorum.kraft_version).items()
            ],
        }
    )


def _api_fields(api: Api) -> dict[str, Any]:
    low, high = api.advertised_versions or api.versions
    return {"api_key": api.key, "min_version": low, "max_version": high}


def reply_unsupported(context: RequestContext) -> None:
    fields = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": [_api_fields(context.api)]}
    context.count_error(ErrorCode.UNSUPPORTED_VERSION)
    context.reply_parts([encode_response(ApiKey.API_VERSIONS, 0, fields)])


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    return {"error_code": code}


API = Api(
    key=ApiKey.API_VERSIONS,
    name="ApiVersions",
    versions=(0, 4),
    handle=handle,
    failure=_failure,
    unsupported=reply_unsupported,
    listeners=ALL_LISTENERS,
)
