"""The scan of retry partitions before their source is read."""

import time

from confluent_kafka import Producer

from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import ToolkitBroker, create_topic
from tests.worker.fakes import plain_letter
from tests.worker.running import WAIT_SECONDS_MAX, Place, running
from tidelog.client.message import Message


def test_letters_of_a_transaction_that_is_being_ended_block_their_keys(kafka: ToolkitBroker) -> None:
    """Offsets and letters of one transaction get its marker one after the other: the offsets may be seen first."""
    place = Place(kafka.bootstrap, partitions=1)
    create_topic(kafka.bootstrap, place.retries(0))
    config = {"bootstrap.servers": kafka.bootstrap, "transactional.id": place.group, "log_level": 0}
    before = Producer(config)
    before.init_transactions()
    before.begin_transaction()
    letter = plain_letter(0, place.topic, place.group)
    before.produce(place.retries(0), "first", "key", partition=0, headers=letter.to_headers([]))
    assert before.flush(WAIT_SECONDS_MAX) == 0
    place.send(["other", "second"], key=lambda value: "key" if value == "second" else value)
    seen: list[str | None] = []
    worker = place.worker(order="key")
    begun = time.monotonic()

    @worker.handler
    def handle(message: Message) -> None:
        seen.append(message.text())

    with running(worker) as run:
        run.until(lambda: worker.is_joined, "it has joined")
        # Long enough for the scan to come to where the transaction begins.
        wait_until(lambda: bool(seen) or time.monotonic() > begun + 2, "it looks", 10)
        before.commit_transaction()
        run.until(lambda: len(seen) == 3, "all are handled")
    assert [value for value in seen if value != "other"] == ["first", "second"]
