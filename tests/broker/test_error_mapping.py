import inspect

import pytest

from tidelog.broker.error_mapping import error_code_of
from tidelog.controller.errors import ApiError
from tidelog.log import errors as log_errors
from tidelog.replication import errors as replication_errors
from tidelog.wire.errors import ErrorCode


class Derived(log_errors.StorageError):
    """A kind that the table does not name."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (log_errors.OffsetOutOfRange(1, 2, 3), ErrorCode.OFFSET_OUT_OF_RANGE),
        (log_errors.MissingKey("x"), ErrorCode.INVALID_RECORD),
        (log_errors.LogOffline("orders-0", "x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (Derived("x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (replication_errors.NotLeader("x"), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (OSError(5, "x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (ApiError(ErrorCode.POLICY_VIOLATION, "no"), ErrorCode.POLICY_VIOLATION),
    ],
)
def test_the_nearest_type_decides(error: Exception, code: ErrorCode) -> None:
    assert error_code_of(error) == (code, str(error))


def test_a_fault_of_ours_tells_the_client_nothing() -> None:
    code, message = error_code_of(RuntimeError("the password is x"))
    assert code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "password" not in message


def raised_by_a_request(error: type[Exception]) -> bool:
    """Those of opening a directory never reach a client."""
    at_start = (
        log_errors.DirectoryUnusable,
        log_errors.DirectoryLocked,
        log_errors.CorruptCheckpoint,
        log_errors.CorruptSnapshot,
    )
    return not issubclass(error, at_start) and error is not log_errors.LogError


@pytest.mark.parametrize("module", [log_errors, replication_errors])
def test_every_error_of_a_log_or_partition_has_a_code(module: object) -> None:
    kinds = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if issubclass(kind, Exception)]
    unmapped = [
        kind.__name__
        for kind in kinds
        if raised_by_a_request(kind)
        and kind is not replication_errors.ReplicationError
        and error_code_of(kind.__new__(kind))[0] is ErrorCode.UNKNOWN_SERVER_ERROR
    ]
    assert unmapped == []
