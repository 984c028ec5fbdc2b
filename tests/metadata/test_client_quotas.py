from tidelog.metadata.client_quotas import ClientQuotasImage, quota_entity
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import ClientQuotaRecord, QuotaEntityPart

USER, CLIENT = QuotaEntityPart("user", None), QuotaEntityPart("client-id", "a")


def test_an_entity_is_the_same_in_any_order() -> None:
    image = ClientQuotasImage()
    image.change(ClientQuotaRecord((USER, CLIENT), "producer_byte_rate", 5.0))
    image.change(ClientQuotaRecord((CLIENT, USER), "consumer_byte_rate", 6.0))
    assert list(image) == [((CLIENT, USER), {"producer_byte_rate": 5.0, "consumer_byte_rate": 6.0})]
    assert image.find(quota_entity([("user", None), ("client-id", "a")])) == {
        "producer_byte_rate": 5.0,
        "consumer_byte_rate": 6.0,
    }


def test_the_last_quota_that_goes_takes_its_entity_with_it() -> None:
    image = ClientQuotasImage()
    image.change(ClientQuotaRecord((CLIENT,), "k", 5.0))
    image.change(ClientQuotaRecord((CLIENT,), "l", 5.0))
    image.change(ClientQuotaRecord((CLIENT,), "k", remove=True))
    assert image.find((CLIENT,)) == {"l": 5.0}
    image.change(ClientQuotaRecord((CLIENT,), "l", remove=True))
    image.change(ClientQuotaRecord((CLIENT,), "l", remove=True))
    assert len(image) == 0
    assert image.find((CLIENT,)) == {}


def test_the_cluster_image_says_that_they_changed() -> None:
    image = ClusterImage()
    delta = image.replay([ClientQuotaRecord((CLIENT,), "k", 5.0)], 0)
    assert delta.quotas_changed
    assert not delta.is_empty
    assert image.version == 1
    assert image.client_quotas.find((CLIENT,)) == {"k": 5.0}
