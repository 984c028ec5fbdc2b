import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from tidelog.wire.errors import ErrorCode


def test_the_table_is_kafkas() -> None:
    ours = [(error.value, error.name, error.is_retriable) for error in ErrorCode]
    assert ours == [(int(error), error.name.upper(), error.retriable) for error in KioErrorCode]


def test_codes_have_no_gaps() -> None:
    assert [int(error) for error in ErrorCode] == list(range(-1, len(ErrorCode) - 1))


@pytest.mark.parametrize("error", ErrorCode)
def test_each_has_a_message_of_its_own(error: ErrorCode) -> None:
    assert error.message.endswith(".")
    assert [other for other in ErrorCode if other.message == error.message] == [error]


def test_it_is_the_code() -> None:
    assert int(ErrorCode.UNKNOWN_SERVER_ERROR) == -1
    assert ErrorCode(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.is_retriable
    assert not ErrorCode.OFFSET_OUT_OF_RANGE.is_retriable
