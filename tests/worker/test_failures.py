"""Failures: five tries after the first, each at its level; poison and rejects are dead at once."""

import json

import pytest

from tidelog.client.errors import SerializationError
from tidelog.worker.backoff import Backoff
from tidelog.worker.failures import Dead, Decision, FailurePolicy, InProgress, Reject, Retry

BACKOFF = Backoff(base=1, cap=10)


def policy(retries: int = 5, in_place_retries: int = 0, retriable: object = None) -> FailurePolicy:
    return FailurePolicy(
        retries=retries,
        in_place_retries=in_place_retries,
        backoff=BACKOFF,
        retriable=retriable,  # type: ignore[arg-type]  # several kinds are tried
        levels=max(retries, 1),
    )


def test_five_tries_after_the_first_each_at_its_level() -> None:
    decisions: list[Decision] = [policy().decide(attempts, True, 1_000, 0.5) for attempts in range(1, 7)]
    seconds = [1.5, 2.5, 4.5, 8.5, 10.5]
    assert decisions == [*(Retry(level, 1_000 + int(each * 1000)) for level, each in enumerate(seconds)), Dead()]


def test_tries_in_place_belong_to_one_level() -> None:
    decide = policy(retries=2, in_place_retries=2).decide
    assert [type(decide(attempts, True, 0, 0)) for attempts in (3, 6, 9)] == [Retry, Retry, Dead]
    assert decide(6, True, 0, 0) == Retry(1, 2_000)


def test_what_is_not_an_attempt_stays_at_its_level() -> None:
    assert policy().look_again(0, 0, 0) == Retry(0, 1_000)
    assert policy().look_again(3, 0, 0) == Retry(2, 4_000)
    assert policy(retries=0).look_again(0, 0, 0) == Retry(0, 1_000)


@pytest.mark.parametrize(
    "error", [SerializationError("x"), UnicodeDecodeError("utf-8", b"", 0, 1, "x"), json.JSONDecodeError("x", "", 0), Reject()]
)
def test_poison_and_rejects_are_dead_at_once(error: Exception) -> None:
    assert not policy().is_retriable(error)
    assert policy().decide(1, False, 0, 0) == Dead()


def test_the_application_says_what_is_retriable() -> None:
    assert policy().is_retriable(ValueError())
    assert policy(retriable=(OSError,)).is_retriable(ConnectionError())
    assert not policy(retriable=(OSError,)).is_retriable(ValueError())
    assert policy(retriable=lambda error: "again" in str(error)).is_retriable(ValueError("again"))
    assert not policy(retriable=lambda _: True).is_retriable(Reject())
    assert policy(retriable=()).is_retriable(InProgress())
