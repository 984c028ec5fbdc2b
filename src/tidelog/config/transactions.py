"""Settings of the transaction coordinator. Kafka's names and defaults, except that one broker is enough for its topic."""

from collections.abc import Mapping

from tidelog.config.definition import AtLeast, Between, Setting
from tidelog.config.types import InvalidSetting, SettingType, Value

_STATE_LOG = (
    Setting(
        "transaction.state.log.num.partitions",
        SettingType.INT,
        50,
        "How many partitions __transaction_state has, and so how many coordinators there are. Read when the topic is created.",
        AtLeast(1),
    ),
    Setting(
        "transaction.state.log.replication.factor",
        SettingType.INT,
        1,
        "How many replicas __transaction_state has. Read when the topic is created.",
        Between(1, 2**15 - 1),
    ),
    Setting(
        "transaction.state.log.min.isr",
        SettingType.INT,
        1,
        "How many replicas of __transaction_state must have a write before it counts. Read when the topic is created.",
        AtLeast(1),
    ),
    Setting(
        "transaction.state.log.segment.bytes",
        SettingType.INT,
        100 << 20,
        "The segment size of __transaction_state: small enough for compaction to keep loading fast.",
        AtLeast(1 << 20),
    ),
)

_COORDINATOR = (
    Setting(
        "transaction.max.timeout.ms",
        SettingType.INT,
        900_000,
        "The longest transaction timeout that a producer may ask for.",
        AtLeast(1),
    ),
    Setting(
        "transactional.id.expiration.ms",
        SettingType.INT,
        604_800_000,
        "How long a transactional id without a transaction is remembered.",
        AtLeast(1),
    ),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        SettingType.INT,
        10_000,
        "How often the coordinator looks for transactions that have timed out, to abort them.",
        AtLeast(1),
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        SettingType.INT,
        3_600_000,
        "How often the coordinator looks for transactional ids that have expired, to forget them.",
        AtLeast(1),
    ),
    Setting(
        "transaction.partition.verification.enable",
        SettingType.BOOLEAN,
        True,
        "Whether a partition asks the coordinator before it accepts the first records of a transaction.",
    ),
    Setting(
        "tidelog.transactional.ids.max",
        SettingType.INT,
        100_000,
        "How many transactional ids one coordinator shard keeps; a new one beyond that is refused.",
        AtLeast(1),
    ),
)

TRANSACTIONS = (*_STATE_LOG, *_COORDINATOR)


def check_transactions(values: Mapping[str, Value]) -> None:
    """Check that the topic's partitions can accept a write; otherwise every transaction would stop."""
    min_isr, replicas = values["transaction.state.log.min.isr"], values["transaction.state.log.replication.factor"]
    assert isinstance(min_isr, int)
    assert isinstance(replicas, int)
    if min_isr > replicas:
        reason = f"expected at most transaction.state.log.replication.factor, which is {replicas}"
        raise InvalidSetting("transaction.state.log.min.isr", str(min_isr), reason)
