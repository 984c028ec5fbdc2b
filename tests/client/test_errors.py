"""librdkafka's errors become typed ones that say what to do."""

import pytest
from confluent_kafka import KafkaError

from tidelog.client import errors
from tidelog.client.errors import InvalidArgument, TidelogError, from_kafka_error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._TRANSPORT, errors.BrokerUnavailable),
        (KafkaError._ALL_BROKERS_DOWN, errors.BrokerUnavailable),
        # A broker left the cluster's metadata while it was being asked.
        (KafkaError._DESTROY_BROKER, errors.BrokerUnavailable),
        (KafkaError._TIMED_OUT, errors.TimedOut),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, errors.UnknownTopic),
        (KafkaError._UNKNOWN_PARTITION, errors.UnknownTopic),
        (KafkaError.TOPIC_ALREADY_EXISTS, errors.TopicExists),
        (KafkaError.INVALID_REPLICATION_FACTOR, errors.InvalidTopic),
        (KafkaError.MSG_SIZE_TOO_LARGE, errors.MessageTooLarge),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, errors.NotAuthorized),
        (KafkaError._AUTHENTICATION, errors.NotAuthorized),
        (KafkaError.PRODUCER_FENCED, errors.Fenced),
        (KafkaError.ILLEGAL_GENERATION, errors.Rebalanced),
    ],
)
def test_a_code_has_its_class(code: int, kind: type[TidelogError]) -> None:
    typed = from_kafka_error(KafkaError(code), "send to orders", "host:9092")
    assert type(typed) is kind
    assert typed.code == code
    assert str(typed).startswith("send to orders: ")
    assert "\n" not in str(typed)


def test_what_stands_in_no_table_is_what_the_caller_says() -> None:
    error = KafkaError(KafkaError.INVALID_RECORD)
    assert type(from_kafka_error(error, "send", "host:9092")) is TidelogError
    assert type(from_kafka_error(error, "send", "host:9092", otherwise=errors.DeliveryFailed)) is errors.DeliveryFailed


def test_a_broker_that_does_not_answer_is_named() -> None:
    typed = from_kafka_error(KafkaError(KafkaError._TRANSPORT), "send to orders", "one:9092,two:9092")
    assert "one:9092,two:9092" in str(typed)
    assert typed.retriable


def test_what_can_be_done_again_says_so() -> None:
    assert from_kafka_error(KafkaError(KafkaError._TIMED_OUT), "x", "y").retriable
    assert not from_kafka_error(KafkaError(KafkaError.PRODUCER_FENCED), "x", "y").retriable
    assert from_kafka_error(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS, retriable=True), "x", "y").retriable
    # A topic that is made again while its old log is being deleted.
    assert from_kafka_error(KafkaError(KafkaError.KAFKA_STORAGE_ERROR), "x", "y").retriable


def test_an_invalid_argument_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="acks"):
        raise InvalidArgument("acks is wrong")


def test_every_class_says_what_it_means() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TidelogError)]
    assert len(kinds) > 15
    assert [kind.__name__ for kind in kinds if not kind.__doc__] == []
