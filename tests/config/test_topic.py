"""The topic settings: Kafka's names and defaults, and the one default that differs on purpose."""

import pytest

from tidelog.config.definition import inherit, parse
from tidelog.config.topic import TOPIC
from tidelog.config.types import LONG_MAX, InvalidSetting

# Of Kafka 4.4 (KIP-1191): each topic of dead letters says so itself.
DEAD_LETTERS = "errors.deadletterqueue.group.enable"
# Ours: whether a topic is a queue is no matter of the broker.
QUEUES = {"tidelog.queue.enable": False, "tidelog.queue.ttl.ms": -1, "tidelog.queue.expired.dead.letters.enable": False}
# As Apache Kafka 4 prints them for a topic without settings of its own.
KAFKA_DEFAULTS = {
    "cleanup.policy": ("delete",),
    "compression.gzip.level": -1,
    "compression.lz4.level": 9,
    "compression.type": "producer",
    "compression.zstd.level": 3,
    "delete.retention.ms": 86_400_000,
    "file.delete.delay.ms": 60_000,
    "flush.messages": LONG_MAX,
    "follower.replication.throttled.replicas": (),
    "flush.ms": LONG_MAX,
    "index.interval.bytes": 4096,
    "leader.replication.throttled.replicas": (),
    "max.compaction.lag.ms": LONG_MAX,
    "max.message.bytes": 1_048_588,
    "message.timestamp.after.max.ms": 3_600_000,
    "message.timestamp.before.max.ms": LONG_MAX,
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": 0.5,
    "min.compaction.lag.ms": 0,
    "min.insync.replicas": 1,
    "retention.bytes": -1,
    "retention.ms": 604_800_000,
    "segment.bytes": 1_073_741_824,
    "segment.index.bytes": 10_485_760,
    "segment.jitter.ms": 0,
    "segment.ms": 604_800_000,
    "unclean.leader.election.enable": False,
}


def test_defaults_are_kafkas_except_that_visible_means_durable() -> None:
    assert parse(TOPIC, {}) == KAFKA_DEFAULTS | QUEUES | {"flush.messages": 1, DEAD_LETTERS: False}


def test_every_default_is_a_value_that_the_setting_takes() -> None:
    for setting in TOPIC.settings.values():
        assert setting.allowed is None or setting.allowed.accepts(setting.default), setting.name


def test_every_setting_is_documented_and_has_a_broker_default() -> None:
    for setting in TOPIC.settings.values():
        assert setting.documentation.endswith("."), setting.name
        alone = setting.name in (DEAD_LETTERS, *QUEUES) or "throttled.replicas" in setting.name
        assert setting.synonyms or alone, setting.name


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("segment.bytes", "1048575", "segment.bytes=1048575: expected at least 1048576"),
        ("segment.byte", "1048576", "segment.byte: there is no such setting; did you mean segment.bytes?"),
        ("log.segment.bytes", "1048576", "log.segment.bytes: there is no such setting; did you mean segment.bytes?"),
        ("cleanup.policy", "compress", "cleanup.policy=compress: expected a list of any of compact, delete"),
        ("message.timestamp.type", "createtime", "message.timestamp.type=createtime: expected one of CreateTime, LogAppendTime"),
        ("flush.messages", "0", "flush.messages=0: expected at least 1"),
        ("retention.ms", "-2", "retention.ms=-2: expected at least -1"),
        (
            "leader.replication.throttled.replicas",
            "0:1,2",
            "leader.replication.throttled.replicas=0:1,2: expected * or a list of partition:broker, such as 0:1,0:2",
        ),
        ("min.cleanable.dirty.ratio", "1.5", "min.cleanable.dirty.ratio=1.5: expected 0 to 1"),
    ],
)
def test_refuses_with_the_reason(name: str, text: str, message: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse(TOPIC, {name: text})
    assert str(caught.value) == message


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_queue_is_not_compacted(policy: str) -> None:
    with pytest.raises(InvalidSetting, match=r"cleanup.policy=compact.*tidelog.queue.enable=true.*equal keys"):
        parse(TOPIC, {"tidelog.queue.enable": "true", "cleanup.policy": policy})


def test_the_compaction_lags_must_leave_room() -> None:
    assert parse(TOPIC, {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "10"})["min.compaction.lag.ms"] == 10
    with pytest.raises(
        InvalidSetting, match=r"min\.compaction\.lag\.ms=11: expected at most max\.compaction\.lag\.ms, which is 10"
    ):
        parse(TOPIC, {"min.compaction.lag.ms": "11", "max.compaction.lag.ms": "10"})


@pytest.mark.parametrize(
    ("broker_texts", "name", "value"),
    [
        ({"log.retention.hours": "24"}, "retention.ms", 86_400_000),
        ({"log.retention.minutes": "3", "log.retention.hours": "24"}, "retention.ms", 180_000),
        ({"log.roll.hours": "1"}, "segment.ms", 3_600_000),
        ({"message.max.bytes": "5"}, "max.message.bytes", 5),
        ({"log.cleaner.min.cleanable.ratio": "0.1"}, "min.cleanable.dirty.ratio", 0.1),
        ({"log.index.size.max.bytes": "800"}, "segment.index.bytes", 800),
        ({"log.flush.scheduler.interval.ms": "9"}, "flush.ms", 9),
        ({"log.cleanup.policy": "compact"}, "cleanup.policy", ("compact",)),
    ],
)
def test_a_broker_gives_topics_their_defaults(broker_texts: dict[str, str], name: str, value: object) -> None:
    assert parse(TOPIC, {}, inherit(TOPIC, broker_texts))[name] == value
