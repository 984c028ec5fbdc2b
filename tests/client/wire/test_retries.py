import pytest

from tidelog.client.wire import retries
from tidelog.client.wire.errors import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    InvalidAnswer,
    RequestTimedOut,
)
from tidelog.client.wire.retries import is_retriable, is_worth_another_broker, retried
from tidelog.wire.errors import ErrorCode

LOADING = BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "it")
FENCED = BrokerError(ErrorCode.INVALID_PRODUCER_EPOCH, "it")


class FakeTime:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(retries, "time", fake)
    return fake


def run(errors: list[ClientError], seconds_max: float) -> str:
    def attempt() -> str:
        if errors:
            raise errors.pop()
        return "done"

    return retried(attempt, seconds_max)


def test_it_is_tried_until_it_works_with_growing_pauses(fake_time: FakeTime) -> None:
    assert run([LOADING] * 7, 60) == "done"
    assert fake_time.pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_it_ends_at_the_deadline_with_the_last_error(fake_time: FakeTime) -> None:
    with pytest.raises(BrokerError) as raised:
        run([LOADING] * 100, 5)
    assert raised.value is LOADING
    assert 4 <= fake_time.now <= 5


def test_what_does_not_help_is_not_tried_again(fake_time: FakeTime) -> None:
    with pytest.raises(BrokerError):
        run([FENCED], 60)
    assert fake_time.pauses == []


@pytest.mark.parametrize(
    ("error", "here", "elsewhere"),
    [
        (LOADING, True, True),
        (FENCED, False, False),
        (BrokerError(999, "it"), False, False),
        (ConnectionLost("x"), True, True),
        (BrokerUnreachable("x"), False, True),
        (RequestTimedOut("x"), False, False),
        (InvalidAnswer("x"), False, False),
    ],
)
def test_what_helps(error: ClientError, here: bool, elsewhere: bool) -> None:
    assert (is_retriable(error), is_worth_another_broker(error)) == (here, elsewhere)
