from typing import Any

import pytest

from tidelog.controller import client_quotas
from tidelog.controller.client_quotas import QuotaAlteration, alter_client_quotas
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import ClientQuotaRecord, QuotaEntityPart
from tidelog.wire.errors import ErrorCode

A = QuotaEntityPart("client-id", "a")


def alter(image: ClusterImage, *alterations: QuotaAlteration, validate_only: bool = False) -> list[tuple[ErrorCode, str | None]]:
    """What each hears; what was decided is replayed."""
    result = alter_client_quotas(image, alterations, validate_only=validate_only)
    image.replay(result.records, 0)
    return [(each.error, each.message) for each in result.response]


def test_quotas_are_set_changed_and_taken_away() -> None:
    image = ClusterImage()
    assert alter(image, QuotaAlteration([A], [("producer_byte_rate", 10.0), ("request_percentage", 12.5)])) == [(0, None)]
    assert image.client_quotas.find((A,)) == {"producer_byte_rate": 10.0, "request_percentage": 12.5}
    assert alter(image, QuotaAlteration([A], [("producer_byte_rate", None), ("request_percentage", 50.0)])) == [(0, None)]
    assert image.client_quotas.find((A,)) == {"request_percentage": 50.0}


def test_what_changes_nothing_writes_nothing() -> None:
    image = ClusterImage()
    image.replay([ClientQuotaRecord((A,), "request_percentage", 1.0)], 0)
    same = QuotaAlteration([A], [("request_percentage", 1.0), ("consumer_byte_rate", None), ("no_such_key", None)])
    assert alter_client_quotas(image, [same]).records == []


def test_one_that_is_refused_does_not_stop_the_others_and_leaves_no_half() -> None:
    image = ClusterImage()
    bad = QuotaAlteration([("client-id", "b")], [("producer_byte_rate", 1.0), ("consumer_byte_rate", -1.0)])
    results = alter(image, bad, QuotaAlteration([A], [("producer_byte_rate", 2.0)]))
    assert [code for code, _ in results] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert list(image.client_quotas) == [((A,), {"producer_byte_rate": 2.0})]


def test_validate_only_says_what_would_be_and_does_nothing() -> None:
    image = ClusterImage()
    good, bad = QuotaAlteration([A], [("producer_byte_rate", 1.0)]), QuotaAlteration([], [])
    assert [code for code, _ in alter(image, good, bad, validate_only=True)] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert len(image.client_quotas) == 0


@pytest.mark.parametrize(
    ("entity", "changes", "reason"),
    [
        ([], [], "without a type"),
        ([("group", "g")], [], "no entity type 'group'"),
        ([("client-id", "")], [], "an empty client-id"),
        ([("user", "u"), ("user", "v")], [], "names its user twice"),
        ([("ip", "10.0.0.1"), ("user", "u")], [], "cannot be combined"),
        ([("ip", "broker.example")], [], "is not the address"),
        ([("ip", "::0001")], [], "::1"),
        ([("ip", "10.0.0.1")], [("producer_byte_rate", 1.0)], "only connection_creation_rate"),
        ([("ip", None)], [("connection_creation_rate", 2.0**31)], "at most 2147483647"),
        ([("user", "u")], [("connection_creation_rate", 1.0)], "there is no quota 'connection_creation_rate'"),
        ([A], [("retention.ms", 1.0)], "there is no quota 'retention.ms'"),
        ([A], [("producer_byte_rate", 0.0)], "greater than 0"),
        ([A], [("request_percentage", -1.0)], "greater than 0"),
        ([A], [("request_percentage", float("nan"))], "greater than 0"),
        ([A], [("request_percentage", float("inf"))], "greater than 0"),
        ([A], [("consumer_byte_rate", 1.5)], "whole number"),
        ([A], [("consumer_byte_rate", 1e300)], "at most"),
        ([A], [("producer_byte_rate", 1.0), ("producer_byte_rate", 2.0)], "given twice"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(entity: Any, changes: Any, reason: str) -> None:
    ((code, message),) = alter(ClusterImage(), QuotaAlteration(entity, changes))
    assert code is ErrorCode.INVALID_REQUEST
    assert message is not None
    assert reason in message


def test_an_entity_stands_in_a_request_once_in_whatever_order() -> None:
    first = QuotaAlteration([("user", "u"), ("client-id", "a")], [("request_percentage", 1.0)])
    second = QuotaAlteration([("client-id", "a"), ("user", "u")], [("request_percentage", 2.0)])
    assert [code for code, _ in alter(ClusterImage(), first, second)] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def test_users_and_addresses_have_quotas_too() -> None:
    image = ClusterImage()
    both = QuotaAlteration([("user", None), ("client-id", None)], [("controller_mutation_rate", 0.5)])
    address = QuotaAlteration([("ip", "::1")], [("connection_creation_rate", 3.0)])
    assert alter(image, both, address) == [(0, None), (0, None)]
    assert len(image.client_quotas) == 2


def test_there_are_no_more_entities_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "ENTITIES_MAX", 2)
    image = ClusterImage()
    names = ("a", "b", "c")
    results = alter(image, *[QuotaAlteration([("client-id", name)], [("request_percentage", 1.0)]) for name in names])
    assert [code for code, _ in results] == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    # Those that are there can be changed, and taken away.
    assert alter(image, QuotaAlteration([A], [("request_percentage", 2.0)])) == [(0, None)]
    assert alter(image, QuotaAlteration([A], [("request_percentage", None)])) == [(0, None)]
    assert len(image.client_quotas) == 1
