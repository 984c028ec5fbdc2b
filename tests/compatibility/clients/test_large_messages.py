"""Messages of 20 MB: refused by default, accepted where the topic says so."""

import pytest

from tests.compatibility.clients.client import MEBIBYTE, NOW, Client, Refused
from tests.compatibility.clients.conftest import MakeTopic
from tests.compatibility.kafka_records import SentRecord

LARGE = b"0123456789abcdef" * (20 * MEBIBYTE // 16)
MESSAGE_TOO_LARGE = 10


def test_refused_by_default_and_the_next_one_passes(client: Client, new_topic: MakeTopic) -> None:
    topic = new_topic()

    with pytest.raises(Refused) as refused:
        client.send(topic, [SentRecord(None, LARGE, NOW)])
    client.send(topic, [SentRecord(None, b"small", NOW)])

    assert refused.value.code == MESSAGE_TOO_LARGE
    assert [record.value for record in client.read(topic, 1)] == [b"small"]


def test_accepted_where_the_topic_allows_it(client: Client, new_topic: MakeTopic) -> None:
    """Also read at the client's own default limits, which are smaller: a reader always gets at least one batch."""
    topic = new_topic(configs={"max.message.bytes": 21 * MEBIBYTE})

    client.send(topic, [SentRecord(b"first", LARGE, NOW), SentRecord(b"second", LARGE[::-1], NOW)])
    read = client.read(topic, 2)

    assert [record.key for record in read] == [b"first", b"second"]
    assert read[0].value == LARGE
    assert read[1].value == LARGE[::-1]
