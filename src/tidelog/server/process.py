"""A broker from its settings: checks them, puts it together on the real ports, and serves until it is told to stop.

The settings come as text under Kafka's names, from wherever the caller has them. Everything that can be wrong with them is found
before anything is bound or written.

The cluster's id is made once, when a data directory is new, and from then on read from the directory's ``meta.properties``.
"""

import base64
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from tidelog import __version__
from tidelog.broker.broker import Broker
from tidelog.broker.config import BrokerConfig
from tidelog.config.broker import (
    BROKER,
    METRICS_LISTENER,
    advertised_listener_of,
    data_directory_of,
    listener_of,
    metrics_listener_of,
)
from tidelog.config.definition import inherit, parse
from tidelog.config.listeners import ListenerAddress
from tidelog.config.topic import TOPIC
from tidelog.config.types import InvalidSetting
from tidelog.log import names
from tidelog.log.checkpoints import read_meta_properties
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk
from tidelog.ports.executor import Executor
from tidelog.ports.randomness import Randomness, RealRandomness
from tidelog.ports.real_disk import RealDisk
from tidelog.server.limits import Limits
from tidelog.server.loop_lag import Report
from tidelog.server.main import Embedding, serve
from tidelog.server.served import ServedBroker
from tidelog.server.server import Server

if TYPE_CHECKING:
    from tidelog.server.observation import Observation

OPEN_FILES_MAX = "tidelog.open.files.max"
# Descriptors that are neither a connection nor a segment: the interpreter's, the event loop's, locks, checkpoints being written.
DESCRIPTORS_RESERVED = 128
# An open segment costs some memory even when nobody reads it; opening one again costs microseconds.
OPEN_FILES_DERIVED_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Serving:
    """What is in force once clients can connect."""

    cluster_id: str
    node_id: int
    listener: ListenerAddress
    advertised: ListenerAddress
    data_path: str
    topic_count: int
    partition_count: int
    flush_messages: int
    was_stopped_cleanly: bool
    metrics: ListenerAddress | None = None
    """Where /metrics and /health are served."""

    def facts(self) -> dict[str, object]:
        """For the event ``started``."""
        metrics = str(self.metrics) if self.metrics is not None else None
        addresses = {"listener": str(self.listener), "advertised": str(self.advertised), "metrics": metrics}
        return {"version": __version__, **asdict(self), **addresses}


def run_broker(
    texts: Mapping[str, str],
    *,
    report: Report,
    on_serving: Callable[[Serving], None],
    may_be_insecure: bool = False,
    embedding: Embedding | None = None,
    disk: Disk | None = None,
) -> int:
    """Serve until a signal (or the embedding program) ends it; returns the exit code. ``disk`` is one that fails on purpose.

    InvalidSetting for settings that make no sense, LogError for a data directory that cannot be used, OSError for an address
    that cannot be bound."""
    values = parse(BROKER, texts)
    # What the broker's settings ask of every topic is checked now, not when the first topic is made.
    topic_defaults = parse(TOPIC, {}, inherit(TOPIC, texts))
    listener = listener_of(values)
    if not listener.is_loopback and not may_be_insecure:
        reason = "everyone who reaches this address could read and write everything; to allow that, add --insecure"
        raise InvalidSetting("listeners", str(listener), reason)
    metrics_listener = metrics_listener_of(values)
    if metrics_listener is not None and not metrics_listener.is_loopback and not may_be_insecure:
        reason = "everyone who reaches this address could read the names of topics and groups; to allow that, add --insecure"
        raise InvalidSetting(METRICS_LISTENER, str(metrics_listener), reason)
    data_path = os.path.abspath(data_directory_of(values))
    disk = disk if disk is not None else RealDisk()
    made: list[Broker] = []

    def make_broker(executor: Executor, clock: Clock, addresses: Sequence[tuple[str, int]]) -> ServedBroker:
        randomness = RealRandomness()
        advertised = advertised_listener_of(values, ListenerAddress(*addresses[0]))
        config = BrokerConfig.from_texts(
            texts,
            data_path=data_path,
            cluster_id=find_cluster_id(disk, randomness, data_path),
            advertised_host=advertised.host,
            advertised_port=advertised.port,
        )
        if OPEN_FILES_MAX not in texts:
            config = replace(config, values={**config.values, OPEN_FILES_MAX: derive_open_files_max(values)})
        made.append(Broker(config, disk=disk, clock=clock, randomness=randomness, executor=executor, report=report))
        return made[0]

    def serving(server: Server) -> None:
        broker = made[0]
        config = broker.config
        flush_messages = topic_defaults["flush.messages"]
        assert isinstance(flush_messages, int)
        on_serving(
            Serving(
                cluster_id=config.cluster_id,
                node_id=config.node_id,
                listener=ListenerAddress(*server.addresses[0]),
                advertised=ListenerAddress(config.advertised_host, config.advertised_port),
                data_path=data_path,
                topic_count=sum(1 for _ in broker.image.topics),
                partition_count=sum(len(topic.partitions) for topic in broker.image.topics),
                flush_messages=flush_messages,
                was_stopped_cleanly=broker.directory.was_stopped_cleanly,
                metrics=ListenerAddress(*observation.address) if observation is not None else None,
            )
        )

    observation = _observation(metrics_listener, lambda: made[0])
    limits = Limits.from_config(values)
    return serve(make_broker, [(listener.host, listener.port)], serving, limits, embedding, report, observation)


def _observation(listener: ListenerAddress | None, broker: Callable[[], Broker]) -> "Observation | None":
    if listener is None:
        return None
    # Only a broker that is asked to show its metrics takes the time to load what that needs.
    from tidelog.server.observation import Observation

    return Observation((listener.host, listener.port), broker)


def find_cluster_id(disk: Disk, randomness: Randomness, data_path: str) -> str:
    """That of the directory, or a new one for a new directory: 16 random bytes in 22 characters, as Kafka's are."""
    found = read_meta_properties(disk, names.join(data_path, names.META_PROPERTIES))
    if found is not None:
        return found.cluster_id
    while True:
        cluster_id = base64.urlsafe_b64encode(randomness.token(16)).decode().rstrip("=")
        # As in Kafka: one that begins with a dash would be taken for an option on a command line.
        if not cluster_id.startswith("-"):
            return cluster_id


def derive_open_files_max(values: Mapping[str, object]) -> int:
    """As many segments as descriptors are left beside the connections, and at least half of all."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections_max = values["max.connections"]
    assert isinstance(connections_max, int)
    if limit == resource.RLIM_INFINITY:
        return OPEN_FILES_DERIVED_MAX
    available = limit - DESCRIPTORS_RESERVED
    return max(16, min(max(available - connections_max, available // 2), OPEN_FILES_DERIVED_MAX))
