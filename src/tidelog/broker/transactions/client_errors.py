"""The error codes that a client understands. An older client gets a code that makes it do the same."""

from enum import Enum

from tidelog.wire.errors import ErrorCode

# Retrying helps after these, but producers treat them as fatal unless a coordinator answers with them.
_COORDINATOR_ERRORS = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class ClientKind(Enum):
    """The kinds of client that ask whether a partition is part of a transaction."""

    BROKER = "another broker, which takes the answer as it is"
    INVALID_STATE = "a client that knows INVALID_TXN_STATE but not TRANSACTION_ABORTABLE"
    ABORTABLE = "a client that knows TRANSACTION_ABORTABLE"
    VERSION_2 = "a client that leaves adding partitions to the broker"


def client_kind(api_version: int, *, abortable_since: int, version_2_since: int) -> ClientKind:
    if api_version >= version_2_since:
        return ClientKind.VERSION_2
    return ClientKind.ABORTABLE if api_version >= abortable_since else ClientKind.INVALID_STATE


def verification_error(code: ErrorCode, client: ClientKind) -> ErrorCode:
    """Translate a code of the transaction coordinator for a request to another part of the broker."""
    if client is ClientKind.BROKER:
        return code
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH  # A log answers with this code too: the producer may abort and continue.
    if code in _COORDINATOR_ERRORS or (code is ErrorCode.CONCURRENT_TRANSACTIONS and client is not ClientKind.VERSION_2):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.TRANSACTION_ABORTABLE and client is ClientKind.INVALID_STATE:
        return ErrorCode.INVALID_TXN_STATE
    return code


def coordinator_error(code: ErrorCode, api_version: int, fenced_since: int) -> ErrorCode:
    """Translate a code of the transaction coordinator. Clients below ``fenced_since`` do not know PRODUCER_FENCED."""
    if code is ErrorCode.PRODUCER_FENCED and api_version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
