"""Each peer alone, one after the other, in rounds: what it takes in, what it gives out, what one message waits for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.beside.document import markdown_table
from bench.beside.latency import Percentiles
from bench.beside.peers.nats_jetstream import NatsJetStream
from bench.beside.peers.peer import Peer, PeerMissing
from bench.beside.peers.rabbitmq import RabbitMq
from bench.beside.peers.redis_streams import RedisStreams
from bench.beside.peers.tidelog_topic import TidelogTopic
from bench.measure import Figure
from bench.workspace import Workspace

ROUNDS = 3
SINGLE = 1000

# How many messages keep each busy for about two seconds.
PEERS: list[tuple[Callable[[Path], Peer], int]] = [
    (lambda path: TidelogTopic(path, is_synced=True), 1_000_000),
    (RabbitMq, 30_000),
    (lambda path: RedisStreams(path, "always"), 300_000),
    (lambda path: TidelogTopic(path, is_synced=False), 1_000_000),
    (NatsJetStream, 100_000),
    (lambda path: RedisStreams(path, "everysec"), 300_000),
]


@dataclass(slots=True)
class PeerFigures:
    name: str
    durability: str
    published: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    mebibytes: list[float] = field(default_factory=list)


def run(workspace: Workspace, say: Callable[[str], None]) -> list[PeerFigures]:
    found: dict[str, PeerFigures] = {}
    missing: set[str] = set()
    for number in range(workspace.rounds(ROUNDS)):
        for make, count in PEERS:
            with workspace.directory("peer") as path:
                try:
                    peer = make(path.resolve())
                except PeerMissing as error:
                    if str(error) not in missing:
                        say(str(error))
                    missing.add(str(error))
                    continue
                figures = found.setdefault(peer.name, PeerFigures(peer.name, peer.durability))
                _measure(peer, workspace.scaled(count, 100), workspace.scaled(SINGLE), figures)
        say(f"  round {number}: done")
    return list(found.values())


def _measure(peer: Peer, count: int, single: int, figures: PeerFigures) -> None:
    try:
        peer.start()
        figures.published.append(count / peer.publish(count))
        figures.read.append(count / peer.read(count))
        found = Percentiles.of(peer.publish_one_by_one(single))
        figures.p50.append(found.p50)
        figures.p99.append(found.p99)
        figures.mebibytes.append(peer.mebibytes())
    finally:
        peer.kill()


def table(found: list[PeerFigures]) -> str:
    headings = ("", "an acknowledgement means", "messages in", "messages out", "one message, p50", "p99", "memory")
    return markdown_table(headings, [_line(figures) for figures in found])


def _line(figures: PeerFigures) -> list[str]:
    rates = [f"{Figure.of(values).value:,.0f} /s" for values in (figures.published, figures.read)]
    times = [f"{Figure.of(values).value:.2f} ms" for values in (figures.p50, figures.p99)]
    return [figures.name, figures.durability, *rates, *times, f"{Figure.of(figures.mebibytes).value:.0f} MiB"]
