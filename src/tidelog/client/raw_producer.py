"""``RawProducer``: librdkafka's producer with the toolkit's errors, but without its policies.

It is for tools that send bytes as they are and handle delivery reports in callbacks. Applications want ``Producer``, which
returns futures, polls by itself and checks the settings that its promises depend on. Here the caller polls: callbacks run within
``produce``, ``poll`` and ``flush`` only.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import confluent_kafka

from tidelog.client.errors import TidelogError, from_delivery_error, from_produce_error, kafka_errors
from tidelog.client.librdkafka import (
    ConnectionProblems,
    librdkafka_configuration,
    message_bytes_max,
    refused_settings,
    wait_for_broker,
)
from tidelog.client.message import Message

# How long ``produce`` polls at a time while the buffer is full.
_FULL_POLL_SECONDS = 0.1
# librdkafka's numbers for a partition that the partitioner chooses, and for a timestamp that it takes itself.
_ANY_PARTITION = -1
_NOW = 0

DeliveryCallback = Callable[[TidelogError | None, Message], None]
Headers = Sequence[tuple[str, bytes | None]]


class RawProducer:
    """``on_delivery`` gets the report of every message for which ``produce`` names no callback of its own."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: Mapping[str, object] | None = None,
        *,
        on_delivery: DeliveryCallback | None = None,
        on_statistics: Callable[[str], None] | None = None,
        connect_timeout: float | None = None,
    ) -> None:
        """``connect_timeout`` is how long opening waits for a broker; None does not wait at all."""
        problems = ConnectionProblems()
        settings = librdkafka_configuration(bootstrap, config, {"error_cb": problems})
        if on_delivery is not None:
            settings["on_delivery"] = partial(self._report, on_delivery)
        if on_statistics is not None:
            settings["stats_cb"] = on_statistics
        self.addresses = str(settings["bootstrap.servers"])
        self._message_bytes_max = message_bytes_max(settings)
        self._transactional_id = settings.get("transactional.id")
        with refused_settings():
            self.handle: Any = confluent_kafka.Producer(settings)
        if connect_timeout is not None:
            wait_for_broker(self.handle, self.addresses, problems, connect_timeout)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: DeliveryCallback | None = None,
        while_full: Callable[[], None] | None = None,
    ) -> None:
        """Hand over one message. While the buffer is full this polls, and calls ``while_full`` in between, which may raise."""
        options: dict[str, Any] = {"headers": headers} if headers else {}
        if on_delivery is not None:
            options["on_delivery"] = partial(self._report, on_delivery)
        place = _ANY_PARTITION if partition is None else partition
        moment = _NOW if timestamp is None else timestamp
        while True:
            try:
                self.handle.produce(topic, value, key, partition=place, timestamp=moment, **options)
            except BufferError:
                self.poll(_FULL_POLL_SECONDS)
                if while_full is not None:
                    while_full()
            except confluent_kafka.KafkaException as error:
                raise from_produce_error(error, topic, self.addresses, self._message_bytes_max) from error
            else:
                return

    def poll(self, timeout: float) -> None:
        """Run the callbacks of the reports that have arrived; wait for one up to ``timeout`` seconds."""
        with kafka_errors("poll", self.addresses):
            self.handle.poll(timeout)

    def flush(self, timeout: float) -> int:
        """Wait for the reports of all messages; returns how many are still missing after ``timeout`` seconds."""
        with kafka_errors("flush", self.addresses):
            return int(self.handle.flush(timeout))

    def close(self, timeout: float) -> None:
        """Abandon what was not sent, and end librdkafka's threads.

        A producer that is only forgotten keeps sending in the background, and so creates a topic that was deleted again.
        """
        with kafka_errors("close", self.addresses):
            self.handle.purge()
            if not self.handle.flush(timeout):
                self.handle.close()

    def partitions(self, topic: str, timeout: float) -> int:
        """How many partitions the topic has now."""
        with kafka_errors(f"look up {topic}", self.addresses):
            return len(self.handle.list_topics(topic, timeout=timeout).topics[topic].partitions)

    def begin_transaction(self, timeout: float) -> None:
        """Take over the transactional id that ``config`` names, and begin a transaction."""
        with kafka_errors(f"begin a transaction as {self._transactional_id}", self.addresses):
            self.handle.init_transactions(timeout)
            self.handle.begin_transaction()

    def abort_transaction(self, timeout: float) -> None:
        with kafka_errors("abort the transaction", self.addresses):
            self.handle.abort_transaction(timeout)

    def _report(self, callback: DeliveryCallback, error: Any, raw: Any) -> None:
        typed = None
        if error is not None:
            typed = from_delivery_error(error, raw, self.addresses, self._message_bytes_max)
        callback(typed, Message((raw.key(), raw.value(), raw)))
