"""confluent-kafka as a member: with the classic protocol, and with the consumer protocol (KIP-848)."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.compatibility.clients.groups.member import HEARTBEAT_INTERVAL_MS, POLL_RECORDS_MAX, POLL_SECONDS, Member

# What a client says and goes on: the broker is down, a topic is not there yet, the group has gone over to the other
# protocol while it waited to join.
PASSING = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.REBALANCE_IN_PROGRESS,
}


class ConfluentMember(Member):
    client = "confluent-kafka"
    assignors = frozenset({"range", "roundrobin", "cooperative-sticky"})

    def settings(self) -> dict[str, Any]:
        wanted = self.membership
        settings: dict[str, Any] = {
            "bootstrap.servers": wanted.bootstrap_servers,
            "client.id": wanted.client_id,
            "group.id": wanted.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest" if wanted.may_reset else "error",
            "log_level": 0,
            "fetch.wait.max.ms": 50,
            "topic.metadata.refresh.interval.ms": 500,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 10,
            "retry.backoff.max.ms": 100,
            **self.protocol_settings(),
        }
        if wanted.instance_id is not None:
            settings["group.instance.id"] = wanted.instance_id
        return settings

    def protocol_settings(self) -> dict[str, Any]:
        return {
            "group.protocol": "classic",
            "partition.assignment.strategy": self.membership.assignor,
            "session.timeout.ms": self.membership.session_timeout_ms,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
        }

    def take_part(self) -> None:
        consumer = Consumer(self.settings())
        try:
            self._subscribe(consumer)
            while not self.is_leaving:
                self._poll(consumer)
                self._commit(consumer)
            self._commit(consumer)
        finally:
            consumer.close()

    def _subscribe(self, consumer: Any) -> None:
        def on_assign(_: Any, partitions: Iterable[Any]) -> None:
            self.on_assigned(partitions)

        def on_revoke(_: Any, partitions: Iterable[Any]) -> None:
            self._commit(consumer)
            self.on_gone("revoked", partitions)

        def on_lost(_: Any, partitions: Iterable[Any]) -> None:
            self.on_gone("lost", partitions)

        topics = list(self.membership.topics) if self.membership.pattern is None else [self.membership.pattern]
        consumer.subscribe(topics, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

    def _poll(self, consumer: Any) -> None:
        message = consumer.poll(POLL_SECONDS)
        for _ in range(POLL_RECORDS_MAX):
            if message is None:
                return
            self._take(message)
            message = consumer.poll(0)
        if message is not None:
            self._take(message)

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self.on_read(message.topic(), message.partition(), message.offset(), message.value())
        elif error.code() not in PASSING:
            raise KafkaException(error)

    def _commit(self, consumer: Any) -> None:
        offsets = self.take_uncommitted()
        if not offsets:
            return
        wanted = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        try:
            answered = consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            self.on_refused(offsets, error.args[0].name())
            return
        errors = {(each.topic, each.partition): each.error for each in answered}
        for partition, offset in offsets.items():
            refusal = errors[partition]
            if refusal is not None:
                self.on_refused({partition: offset}, refusal.name())
        self.on_committed({partition: offset for partition, offset in offsets.items() if errors[partition] is None})


class ConfluentConsumerProtocolMember(ConfluentMember):
    """The broker says how often to send heartbeats and after how long a member is out; it also assigns."""

    client = "confluent-kafka, consumer protocol"
    assignors = frozenset({"range", "uniform"})

    def protocol_settings(self) -> dict[str, Any]:
        return {"group.protocol": "consumer", "group.remote.assignor": self.membership.assignor}
