import pytest

from tidelog.broker.quotas.limits import Limit, find_address_limit, find_limit
from tidelog.metadata.client_quotas import ClientQuotasImage, quota_entity
from tidelog.metadata.records import ClientQuotaRecord

KEY = "producer_byte_rate"
# Most specific first, as Kafka documents it; and who shares it.
PRECEDENCE: list[tuple[dict[str, str | None], tuple[str, str]]] = [
    ({"user": "me", "client-id": "a"}, ("me", "a")),
    ({"user": "me", "client-id": None}, ("me", "a")),
    ({"user": "me"}, ("me", "")),
    ({"user": None, "client-id": "a"}, ("me", "a")),
    ({"user": None, "client-id": None}, ("me", "a")),
    ({"user": None}, ("me", "")),
    ({"client-id": "a"}, ("", "a")),
    ({"client-id": None}, ("", "a")),
]


def image_of(*quotas: tuple[dict[str, str | None], float], key: str = KEY) -> ClientQuotasImage:
    image = ClientQuotasImage()
    for entity, value in quotas:
        image.change(ClientQuotaRecord(quota_entity(entity.items()), key, value))
    return image


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_the_most_specific_one_wins(first: int) -> None:
    quotas = [(entity, float(number)) for number, (entity, _) in enumerate(PRECEDENCE) if number >= first]
    others: list[tuple[dict[str, str | None], float]] = [({"user": "you", "client-id": "a"}, 99.0), ({"client-id": "b"}, 99.0)]
    image = image_of(*reversed(quotas), *others)
    assert find_limit(image, KEY, "me", "a") == Limit(float(first), PRECEDENCE[first][1])


def test_only_the_key_that_is_asked_for_counts() -> None:
    image = image_of(({"client-id": "a"}, 1.0), key="consumer_byte_rate")
    image.change(ClientQuotaRecord(quota_entity([("client-id", None)]), KEY, 2.0))
    assert find_limit(image, KEY, "me", "a") == Limit(2.0, ("", "a"))
    assert find_limit(image_of(), KEY, "me", "a") is None


def test_without_a_client_id_there_are_only_quotas_of_users() -> None:
    image = image_of(({"client-id": None}, 1.0), ({"user": "me", "client-id": None}, 2.0))
    assert find_limit(image, KEY, "me", "") is None
    image = image_of(({"client-id": None}, 1.0), ({"user": None}, 3.0))
    assert find_limit(image, KEY, "me", "") == Limit(3.0, ("me", ""))


def test_an_address_has_its_own_or_the_default() -> None:
    image = image_of(({"ip": "10.0.0.1"}, 1.0), ({"ip": None}, 2.0))
    assert find_address_limit(image, KEY, "10.0.0.1") == Limit(1.0, ("10.0.0.1", ""))
    assert find_address_limit(image, KEY, "10.0.0.2") == Limit(2.0, ("10.0.0.2", ""))
    assert find_address_limit(image_of(), KEY, "10.0.0.2") is None
