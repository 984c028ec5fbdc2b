"""Offsets are asked for again while a partition has no leader, and no longer than that."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidelog.client.errors import NotAuthorized, TidelogError
from tidelog.deadletters import offsets as module
from tidelog.deadletters.connection import Bounds, Connection


class Admin:
    """Answers each question about offsets with the next of these: a number, or an error code."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)

    def list_offsets(self, places: dict[Any, Any], **_: object) -> dict[Any, "Future[Any]"]:
        answer = self.answers.pop(0)
        return {place: self._future(answer) for place in places}

    def _future(self, answer: int) -> "Future[Any]":
        future: Future[Any] = Future()
        if answer >= 100:
            future.set_result(SimpleNamespace(offset=answer))
        else:
            future.set_exception(KafkaException(KafkaError(answer)))
        return future


def connected(monkeypatch: pytest.MonkeyPatch, admin: Admin) -> Connection:
    connection = Connection("127.0.0.1:1", None)
    monkeypatch.setattr(connection, "_admin", admin)
    monkeypatch.setattr(module, "ASK_AGAIN_SECONDS", 0.0)
    return connection


def test_a_partition_that_gets_its_leader_late(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(KafkaError.NOT_LEADER_FOR_PARTITION, 100, KafkaError.LEADER_NOT_AVAILABLE, 105)
    assert connected(monkeypatch, admin).bounds("orders.email.dlq", [0, 1]) == {0: Bounds(100, 105), 1: Bounds(100, 105)}
    assert admin.answers == []


def test_a_partition_that_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEADER_SECONDS_MAX", 0.0)
    with pytest.raises(TidelogError, match=r"look up the offsets of orders\.email\.dlq: .*NOT_LEADER_FOR_PARTITION"):
        connected(monkeypatch, Admin(KafkaError.NOT_LEADER_FOR_PARTITION)).bounds("orders.email.dlq", [0])


def test_what_asking_again_does_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotAuthorized):
        connected(monkeypatch, Admin(KafkaError.TOPIC_AUTHORIZATION_FAILED)).bounds("orders.email.dlq", [0])
