"""The options that pipelines share, each declared once: a field is a flag, and its metadata has the help text.

A pipeline's options extend ``ClusterOptions``, or ``StreamOptions`` if it can run continuously, or ``TopicStreamOptions`` if it
streams a topic, or ``TableStreamOptions`` if it streams a topic into a table. Checks of shared fields are here as well: a class
that has more of its own calls ``super().__post_init__()``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tidelog.client.errors import InvalidArgument
from tidelog.spark.tables.upkeep import RETENTION_HOURS, RETENTION_HOURS_MIN

BOOTSTRAP = "127.0.0.1:9092"
# Spark does not accept windows and triggers shorter than a millisecond.
SECONDS_MIN = 0.001


def flag(
    help_text: str,
    metavar: str | None = None,
    *,
    also: tuple[str, ...] = (),
    variable: str | None = None,
    shown_default: str | None = None,
    **default: Any,
) -> Any:
    """A field with its help; required unless ``default`` is given. ``also`` are further names of the flag, ``variable`` is the
    environment variable that stands for it where it is not given, and ``shown_default`` says where else its value may come
    from."""
    metadata = {"help": help_text, "metavar": metavar, "also": also, "variable": variable, "shown_default": shown_default}
    return field(metadata=metadata, **default)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    bootstrap: str = flag(
        "A broker, or several separated by commas.",
        "HOST:PORT",
        also=("--bootstrap-server", "-b"),
        variable="TIDELOG_BOOTSTRAP",
        shown_default=f"the profile in use, or {BOOTSTRAP}",
        default=BOOTSTRAP,
    )
    kafka: tuple[str, ...] = flag(
        "A librdkafka property, such as security.protocol=SASL_SSL; repeatable.", "NAME=VALUE", also=("-X",), default=()
    )

    def __post_init__(self) -> None:
        kafka_settings(self.kafka)

    @property
    def settings(self) -> dict[str, str]:
        """librdkafka's settings, from ``--kafka``."""
        return kafka_settings(self.kafka)

    @property
    def connection(self) -> dict[str, str]:
        """Bootstrap servers and settings as options of ``format("tidelog")``."""
        return {"bootstrap": self.bootstrap} | {f"kafka.{name}": value for name, value in self.settings.items()}


@dataclass(frozen=True, kw_only=True)
class StreamOptions(ClusterOptions):
    continuous: bool = flag("Keep running with new messages until stopped.", default=False)
    trigger_seconds: float = flag("Time between batches with --continuous.", "SECONDS", default=10.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trigger_seconds < SECONDS_MIN:
            raise InvalidArgument(f"--trigger-seconds must be at least {SECONDS_MIN}: not {self.trigger_seconds}")

    @property
    def trigger(self) -> dict[str, Any]:
        """Arguments of ``writeStream.trigger``."""
        if self.continuous:
            return {"processingTime": f"{round(self.trigger_seconds * 1000)} milliseconds"}
        return {"availableNow": True}


@dataclass(frozen=True, kw_only=True)
class TopicStreamOptions(StreamOptions):
    group_id: str | None = flag("Show the progress as this consumer group, for tools that watch lag.", "NAME", default=None)
    batch_rows: int = flag("The greatest number of messages in one batch.", "COUNT")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_rows < 1:
            raise InvalidArgument(f"--batch-rows must be at least 1: not {self.batch_rows}")

    def source(self, topic: str, starting_offsets: str) -> dict[str, str]:
        """Options of ``readStream.format("tidelog")``."""
        group = {} if self.group_id is None else {"groupId": self.group_id}
        return {
            **self.connection,
            "subscribe": topic,
            "includeHeaders": "true",
            "startingOffsets": starting_offsets,
            "maxOffsetsPerTrigger": str(self.batch_rows),
            **group,
        }


@dataclass(frozen=True, kw_only=True)
class TableStreamOptions(TopicStreamOptions):
    table: str = flag("The directory of the table.", "DIRECTORY")
    schema: str | None = flag(
        "Fields of the values' JSON that become columns: 'id BIGINT NOT NULL, city STRING'.", "DDL", default=None
    )
    schema_file: str | None = flag("The schema from a file instead, as DDL or as the JSON of a StructType.", "FILE", default=None)
    checkpoint: str | None = flag("Where Spark keeps its progress; by default within the table.", "DIRECTORY", default=None)
    retention_hours: int = flag(
        "Files that the table no longer uses are removed after this time.", "HOURS", default=RETENTION_HOURS
    )
    skip_lost: bool = flag("Continue where the topic has lost messages before they were read.", default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.table:
            raise InvalidArgument("--table is missing: the directory of the table")
        if self.schema is not None and self.schema_file is not None:
            raise InvalidArgument("--schema and --schema-file: give one of them")
        if self.retention_hours < RETENTION_HOURS_MIN:
            raise InvalidArgument(f"--retention-hours must be at least {RETENTION_HOURS_MIN}: not {self.retention_hours}")

    def source(self, topic: str, starting_offsets: str) -> dict[str, str]:
        return {**super().source(topic, starting_offsets), "failOnDataLoss": str(not self.skip_lost).lower()}


def kafka_settings(pairs: Sequence[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        name, is_pair, value = pair.removeprefix("kafka.").partition("=")
        if not is_pair or not name:
            raise InvalidArgument(f"--kafka {pair}: expected NAME=VALUE, as in sasl.username=me")
        settings[name] = value
    return settings
