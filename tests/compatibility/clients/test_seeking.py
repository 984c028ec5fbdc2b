"""Reading from the middle: by offset, by time, and where a partition begins and ends."""

import time

import pytest

from tests.compatibility.clients.client import NOW, Client, Codec
from tests.compatibility.clients.conftest import MakeClient, MakeTopic
from tests.compatibility.kafka_records import SentRecord

# Young enough not to be deleted. Records are a second apart.
FIRST_MS = int(time.time() * 1000) - 3_600_000
COUNT = 30


@pytest.fixture
def filled(new_topic: MakeTopic, client_of: MakeClient) -> str:
    """A topic of three batches of ten records, the second compressed."""
    topic = new_topic()
    for start, codec in ((0, Codec.NONE), (10, Codec.ZSTD), (20, Codec.NONE)):
        records = [SentRecord(None, str(number).encode(), FIRST_MS + number * 1000) for number in range(start, start + 10)]
        client_of("confluent-kafka").send(topic, records, codec=codec)
    return topic


@pytest.mark.parametrize("offset", [0, 7, 10, 15, 29])
def test_from_an_offset_also_inside_a_batch(offset: int, client: Client, filled: str) -> None:
    read = client.read(filled, COUNT - offset, offset=offset)

    assert [record.offset for record in read] == list(range(offset, COUNT))
    assert read[0].value == str(offset).encode()


def test_from_a_time_on(client: Client, filled: str) -> None:
    between = FIRST_MS + 14_500

    read = client.read_since(filled, COUNT - 15, between)

    assert [record.offset for record in read] == list(range(15, COUNT))


@pytest.mark.parametrize(("after_first_ms", "offset"), [(-1, 0), (0, 0), (1, 1), (19_000, 19), (19_001, 20), (29_000, 29)])
def test_offset_for_a_time(after_first_ms: int, offset: int, client: Client, filled: str) -> None:
    assert client.offset_for_time(filled, FIRST_MS + after_first_ms) == offset


def test_no_offset_for_a_time_after_the_last(client: Client, filled: str) -> None:
    assert client.offset_for_time(filled, FIRST_MS + COUNT * 1000) is None


def test_watermarks(client: Client, filled: str, new_topic: MakeTopic) -> None:
    assert client.watermarks(filled) == (0, COUNT)
    assert client.watermarks(new_topic()) == (0, 0)


def test_records_sent_while_reading_follow(client: Client, filled: str) -> None:
    client.send(filled, [SentRecord(None, b"later", NOW)])

    assert [record.value for record in client.read(filled, 2, offset=COUNT - 1)] == [b"29", b"later"]
