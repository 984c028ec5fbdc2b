"""The cluster as the dead-letter tools see it: topics, offsets, groups, and reading letters and ledgers.

A read covers ranges of a topic's partitions, once, as a read_committed reader without a group. Each partition is read up to the
offset that was its end when the read began; later letters are for the next run, so that a replay whose letters fail again at once
does not chase its own tail. The last offset may be a transaction marker, which no reader sees; librdkafka's end-of-partition
event then says that the end was reached.

At most ``QUEUE_KIBIBYTES`` or ``QUEUE_MESSAGES`` and one fetch are in memory, however long the topic is. If the cluster answers
nothing for ``SILENCE_SECONDS_MAX``, the read ends with TimedOut.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tidelog.client.admin import Admin, PartitionBounds, PartitionDescription
from tidelog.client.errors import InvalidArgument, TimedOut, UnknownTopic
from tidelog.client.librdkafka import bootstrap_addresses, librdkafka_configuration
from tidelog.client.message import Message
from tidelog.client.producer import Producer
from tidelog.client.raw_consumer import RawConsumer
from tidelog.client.topic_partition import TopicPartition
from tidelog.deadletters.ledger import Ledger, Place
from tidelog.deadletters.topics import is_dead_letter_topic, ledger_topic

# The maximum time that a replay waits for one that was killed; its own transactions take a second at most.
TRANSACTION_TIMEOUT_MS = 30_000
# This is as large as a topic can allow: less would refuse messages that the source accepted. A transaction's bytes bound the
# memory.
MESSAGE_BYTES_MAX = 100_000_000
COMMITTED_SECONDS_MAX = 5.0
GROUP_ENABLE = "errors.deadletterqueue.group.enable"
LOOK_AGAIN_SECONDS = 0.01

QUEUE_KIBIBYTES = 16 * 1024
QUEUE_MESSAGES = 2000
FETCH_BYTES = 8 << 20
BATCH_MESSAGES = 1000
POLL_SECONDS = 0.5
SILENCE_SECONDS_MAX = 60.0

READER_CONFIG: Mapping[str, object] = {
    "group.id": "tidelog-deadletters",
    "isolation.level": "read_committed",
    # Retention may delete letters between the lookup and the read: continue with the first that is left.
    "auto.offset.reset": "earliest",
    "queued.max.messages.kbytes": QUEUE_KIBIBYTES,
    # librdkafka does not count the bytes of headers, where the stories are.
    "queued.min.messages": QUEUE_MESSAGES,
    # By default a full queue stops the fetches for a second, however soon it is empty again.
    "fetch.queue.backoff.ms": 5,
    "fetch.max.bytes": FETCH_BYTES,
    "fetch.error.backoff.ms": 50,
    # The end is known, so a fetch at the end has nothing to wait for.
    "fetch.wait.max.ms": 10,
    # A replay with a rate pauses between two batches.
    "max.poll.interval.ms": 24 * 60 * 60 * 1000,
}

_OWN_SETTING = "the tools depend on their own value"
REFUSED: Mapping[str, str] = {
    "isolation.level": "aborted messages are neither letters nor marks",
    "transactional.id": "it keeps two replays apart",
    "group.id": "the tools do not read as a group",
    "enable.partition.eof": _OWN_SETTING,
    "auto.offset.reset": _OWN_SETTING,
    "enable.auto.commit": _OWN_SETTING,
    "enable.auto.offset.store": _OWN_SETTING,
}

OffsetRanges = Mapping[int, tuple[int, int]]
"""By partition, the first offset and the offset after the last one."""


class DeadLetterCluster:
    """Connects on first use: BrokerUnavailable names the addresses."""

    def __init__(self, bootstrap: str | Sequence[str], config: Mapping[str, object] | None) -> None:
        self.addresses = bootstrap_addresses(bootstrap)
        self._config = dict(config or {})
        # Report wrong settings at once, not with the first call.
        librdkafka_configuration(self.addresses, self._config, {}, refused=REFUSED)
        self._admin: Admin | None = None

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self.addresses, config=self._config)
        return self._admin

    def open_producer(self, transactional_id: str) -> Producer:
        """Opening it fences any other producer with this id, and ends that one's transaction."""
        return Producer(
            self.addresses,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            delivery_timeout_ms=TRANSACTION_TIMEOUT_MS,
            config={"message.max.bytes": MESSAGE_BYTES_MAX, **self._config},
        )

    # -- requests ------------------------------------------------------------------------------------------------------------

    def topics(self) -> dict[str, tuple[PartitionDescription, ...]]:
        return self.admin.describe_cluster().topics

    def dead_letter_topics(self, wanted: Iterable[str] = ()) -> list[str]:
        """The given topics, or all. UnknownTopic if one does not exist, InvalidArgument if one has another kind of name and
        brokers may not write letters to it."""
        known = self.topics()
        names = list(dict.fromkeys(wanted)) or sorted(name for name in known if is_dead_letter_topic(name))
        for name in names:
            is_named_so = is_dead_letter_topic(name)
            if not is_named_so and not (name in known and self._takes_letters_of_brokers(name)):
                raise InvalidArgument(
                    f"{name} is not a dead-letter topic: they are called TOPIC.GROUP.dlq, or have {GROUP_ENABLE}=true"
                )
            if name not in known:
                raise UnknownTopic(
                    f"there is no topic {name} at {self.addresses}: list the dead-letter topics with tidelog dlq list"
                )
        return names

    def _takes_letters_of_brokers(self, topic: str) -> bool:
        setting = self.admin.describe_configs("topic", topic).get(GROUP_ENABLE)
        return setting is not None and setting.value == "true"

    def bounds(self, topic: str) -> dict[int, PartitionBounds]:
        """The offsets that a read_committed reader can see now, by partition; empty if the topic does not exist."""
        partitions = [TopicPartition(topic, each.partition) for each in self.topics().get(topic, ())]
        found = self.admin.bounds(partitions, isolation="read_committed")
        return {partition.partition: bounds for partition, bounds in found.items()}

    def wait_until_committed(self, topics: Iterable[str]) -> None:
        """Wait until read_committed readers can see what these topics contain now.

        A commit is confirmed when it is decided; its markers in the partitions follow. The wait is bounded: another producer's
        transaction may be open there, and what was decided becomes visible in any case.
        """
        known = self.topics()
        partitions = [TopicPartition(topic, each.partition) for topic in topics for each in known.get(topic, ())]
        ends = self.admin.list_offsets(partitions, "latest", isolation="read_uncommitted")
        deadline = time.monotonic() + COMMITTED_SECONDS_MAX
        while time.monotonic() < deadline:
            stable = self.admin.list_offsets(partitions, "latest", isolation="read_committed")
            if all((stable[partition] or 0) >= (end or 0) for partition, end in ends.items()):
                return
            time.sleep(LOOK_AGAIN_SECONDS)

    # -- reading -------------------------------------------------------------------------------------------------------------

    def read(self, topic: str, ranges: OffsetRanges) -> Iterator[list[Message]]:
        """The messages of the ranges in batches, each partition in its order."""
        ends = {partition: end for partition, (start, end) in ranges.items() if start < end}
        if not ends:
            return
        with RawConsumer(self.addresses, self._config, defaults=READER_CONFIG) as consumer:
            consumer.assign({TopicPartition(topic, partition): ranges[partition][0] for partition in ends})
            heard_at = time.monotonic()
            while ends:
                batch = self._next_batch(consumer, topic, ends)
                if batch is None:
                    if time.monotonic() - heard_at > SILENCE_SECONDS_MAX:
                        raise TimedOut(
                            f"read {topic}: {self.addresses} sent nothing for {SILENCE_SECONDS_MAX:.0f} s; run it again when the "
                            "broker answers, and it continues where it stopped"
                        )
                    continue
                if batch:
                    yield batch
                # The caller may have taken its time with the batch.
                heard_at = time.monotonic()

    def _next_batch(self, consumer: RawConsumer, topic: str, ends: dict[int, int]) -> list[Message] | None:
        """The next messages of the ranges; None if nothing arrived. Removes partitions from ``ends`` that have reached theirs."""
        fetched = consumer.fetch(BATCH_MESSAGES, POLL_SECONDS)
        for problem in fetched.problems:
            if problem.partition is None or problem.partition.partition in ends:
                raise problem.error
        batch: list[Message] = []
        reached: dict[int, int] = {}
        for message in fetched.messages:
            partition, offset = message.partition, message.offset
            if offset < ends.get(partition, 0):
                batch.append(message)
            reached[partition] = offset
        for end in fetched.ends:
            reached[end.partition] = max(end.offset, reached.get(end.partition, 0))
        done = [partition for partition, offset in reached.items() if partition in ends and offset >= ends[partition] - 1]
        for partition in done:
            del ends[partition]
        consumer.pause(TopicPartition(topic, partition) for partition in done)
        return batch if len(fetched.messages) or fetched.ends else None

    def read_ledger(self, topic: str, bounds: Mapping[int, PartitionBounds], watched: tuple[int, int] | None = None) -> Ledger:
        """The sum of the marks of a dead-letter topic that are committed now.

        ``watched`` is a partition and offset whose mark is kept whole. A ledger has one partition, so its end is one number. A
        writer of marks first opens the producer with the transactional id of the dead-letter topic: that fences every other
        writer and ends its transaction, so that the sum is complete.
        """
        topic_id = self.admin.topic_id(topic)
        log_starts = {partition: bound.start for partition, bound in bounds.items()}
        ledger = Ledger(topic, topic_id, log_starts, None if watched is None else Place(topic, topic_id, *watched))
        name = ledger_topic(topic)
        # If there is no ledger topic, nothing was ever replayed or discarded.
        for batch in self.read(name, self.bounds(name)):
            for message in batch:
                ledger.replay(message.key, message.value)
        return ledger
