from kio.schema.errors import ErrorCode as KioErrorCode

from tidelog.wire.errors import ErrorCode, known_error


def test_the_table_is_kafkas() -> None:
    ours = [(error.value, error.name, error.is_retriable) for error in ErrorCode]
    assert ours == [(int(error), error.name.upper(), error.retriable) for error in KioErrorCode]


def test_codes_have_no_gaps() -> None:
    assert [int(error) for error in ErrorCode] == list(range(-1, len(ErrorCode) - 1))


def test_each_has_a_message_of_its_own() -> None:
    messages = [error.message for error in ErrorCode]
    assert [message for message in messages if not message.endswith(".") or messages.count(message) > 1] == []


def test_it_is_the_code() -> None:
    assert int(ErrorCode.UNKNOWN_SERVER_ERROR) == -1
    assert ErrorCode(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.is_retriable
    assert not ErrorCode.OFFSET_OUT_OF_RANGE.is_retriable


def test_a_code_that_is_not_in_the_table_is_an_unknown_error() -> None:
    assert [known_error(code) for code in (-1, 3, 10_000)] == [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ]
