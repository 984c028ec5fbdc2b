"""The options of a log and a data directory: the defaults of the configuration, and nothing lost on the way."""

import pytest

from tidelog.config.definition import parse
from tidelog.config.storage import STORAGE
from tidelog.config.topic import TOPIC
from tidelog.log.settings import INDEX_INTERVAL_BYTES_MAX, DirectoryOptions, LogSettings

CHANGED = {
    "segment.bytes": ("2097152", "segment_bytes", 2097152),
    "segment.ms": ("1234", "segment_ms", 1234),
    "segment.jitter.ms": ("12", "segment_jitter_ms", 12),
    "segment.index.bytes": ("4096", "segment_index_bytes", 4096),
    "index.interval.bytes": ("77", "index_interval_bytes", 77),
    "max.message.bytes": ("99", "message_bytes_max", 99),
    "message.timestamp.type": ("LogAppendTime", "log_append_time", True),
    "message.timestamp.before.max.ms": ("5", "timestamp_before_max_ms", 5),
    "message.timestamp.after.max.ms": ("6", "timestamp_after_max_ms", 6),
    "retention.ms": ("-1", "retention_ms", -1),
    "retention.bytes": ("1000", "retention_bytes", 1000),
    "file.delete.delay.ms": ("7", "file_delete_delay_ms", 7),
    "delete.retention.ms": ("8", "delete_retention_ms", 8),
    "min.cleanable.dirty.ratio": ("0.25", "min_cleanable_dirty_ratio", 0.25),
    "min.compaction.lag.ms": ("9", "min_compaction_lag_ms", 9),
    "max.compaction.lag.ms": ("10", "max_compaction_lag_ms", 10),
    "flush.messages": ("11", "flush_messages", 11),
    "flush.ms": ("12", "flush_ms", 12),
}


def test_what_is_absent_keeps_the_default_of_the_configuration() -> None:
    assert LogSettings.from_config(parse(TOPIC, {})) == LogSettings.from_config({}) == LogSettings()
    assert LogSettings().retention_ms == TOPIC.settings["retention.ms"].default
    assert DirectoryOptions.from_config(parse(STORAGE, {})) == DirectoryOptions.from_config({}) == DirectoryOptions()
    assert DirectoryOptions().checkpoint_interval_ms == 60_000


def test_an_index_is_never_so_sparse_that_a_lookup_walks_a_whole_segment() -> None:
    settings = LogSettings.from_config(parse(TOPIC, {"index.interval.bytes": str(2**31 - 1)}))
    assert settings.index_interval_bytes == INDEX_INTERVAL_BYTES_MAX


def test_a_setting_of_the_directory_arrives() -> None:
    options = DirectoryOptions.from_config(parse(STORAGE, {"log.retention.check.interval.ms": "77"}))
    assert options == DirectoryOptions(retention_check_interval_ms=77)


@pytest.mark.parametrize("name", CHANGED)
def test_every_setting_arrives(name: str) -> None:
    text, field, value = CHANGED[name]
    settings = LogSettings.from_config(parse(TOPIC, {name: text}))
    assert getattr(settings, field) == value
    assert settings == LogSettings(**{field: value})  # type: ignore[arg-type]  # values of several types by name


@pytest.mark.parametrize(
    ("policy", "compact", "delete"), [("delete", False, True), ("compact", True, False), ("compact,delete", True, True)]
)
def test_cleanup_policies(policy: str, compact: bool, delete: bool) -> None:
    settings = LogSettings.from_config(parse(TOPIC, {"cleanup.policy": policy}))
    assert (settings.compact, settings.delete) == (compact, delete)


def test_only_a_topic_that_asks_for_it_is_relaxed() -> None:
    assert not LogSettings().is_relaxed
    assert not LogSettings(flush_messages=1, flush_ms=5).is_relaxed
    assert LogSettings(flush_messages=2).is_relaxed


def test_a_compacted_topic_rolls_before_its_records_have_waited_too_long() -> None:
    lag = {"max.compaction.lag.ms": "5000", "segment.ms": "60000"}
    assert LogSettings.from_config(parse(TOPIC, {**lag, "cleanup.policy": "compact"})).segment_ms == 5000
    assert LogSettings.from_config(parse(TOPIC, lag)).segment_ms == 60000
