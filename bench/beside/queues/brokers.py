"""``Queue`` beside RabbitMQ's quorum queue, NATS JetStream and Redis Streams: each alone on the machine, in rounds.

Ours receives batches of 100 and acknowledges each before it asks for the next, which is durable when ``ack`` returns. The peers
are as fast as their clients allow: RabbitMQ pushes up to 1,000 messages ahead and acknowledges 500 at a time without an answer,
NATS fetches 1,000 and acknowledges each without an answer, Redis reads and acknowledges 1,000 at a time. With one message locked
at a time, the time from an acknowledgement until the next message is here is the one that all of them have. The rounds are short,
and beside the medians stand the quietest of them: whoever waits for the disk and for a processor with each batch feels most of
what else the machine does.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.beside.document import markdown_table
from bench.beside.latency import Percentiles
from bench.beside.peers.nats_jetstream import NatsJetStream
from bench.beside.peers.peer import PeerMissing, QueuePeer
from bench.beside.peers.rabbitmq import RabbitMq
from bench.beside.peers.redis_streams import RedisStreams
from bench.beside.peers.tidelog_queue import BATCH, TidelogQueue
from bench.measure import Figure, Target
from bench.workspace import Workspace

ROUNDS = 7
SINGLE = 300
# Of a queue topic, which is what ``tidelog queues create`` creates.
OURS = 0


@dataclass(frozen=True, slots=True)
class _Kind:
    make: Callable[[Path], QueuePeer]
    messages: int
    """How many messages are sent: enough to keep the peer busy for about a second."""
    rate: Target | None = None
    """How many times the peer's rate ours is to be."""
    p99: Target | None = None


KINDS = (
    _Kind(lambda path: TidelogQueue(path, is_queue_topic=True), 40_000),
    _Kind(lambda path: TidelogQueue(path, is_queue_topic=False), 40_000),
    _Kind(RabbitMq, 20_000, rate=Target(">=", 2.0), p99=Target("<=", 1.5)),
    _Kind(NatsJetStream, 10_000, rate=Target(">=", 2.0)),
    _Kind(lambda path: RedisStreams(path, "always"), 40_000, rate=Target(">=", 0.5)),
)


@dataclass(slots=True)
class QueueFigures:
    """One value for each round."""

    name: str
    durability: str
    rates: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    ack_p50: list[float] = field(default_factory=list)
    ack_p99: list[float] = field(default_factory=list)


def run(workspace: Workspace, say: Callable[[str], None]) -> list[QueueFigures | None]:
    """One for each of ``KINDS``; None for one that is not installed."""
    found: list[QueueFigures | None] = [None] * len(KINDS)
    for number in range(workspace.rounds(ROUNDS)):
        for place, kind in enumerate(KINDS):
            with workspace.directory("queue") as path:
                try:
                    peer = kind.make(path.resolve())
                except PeerMissing as error:
                    if not number:
                        say(str(error))
                    continue
                count, single = workspace.scaled(kind.messages, 500), workspace.scaled(SINGLE, 20)
                figures = found[place] = measure(peer, count, single, found[place])
                rate, p50, p99 = figures.rates[-1], figures.p50[-1], figures.p99[-1]
                say(f"  {peer.name}: {rate:,.0f}/s, one at a time {p50:.2f} ms, p99 {p99:.2f} ms")
        say(f"  round {number}: done")
    return found


def measure(peer: QueuePeer, count: int, single: int, figures: QueueFigures | None = None) -> QueueFigures:
    """Adds one round to ``figures``."""
    figures = figures or QueueFigures(peer.name, peer.durability)
    try:
        peer.start()
        # Whatever a peer has fetched beyond ``count`` goes back; no row may find its queue empty.
        peer.publish(count + single + 2 * BATCH)
        figures.rates.append(count / peer.read(count))
        times = Percentiles.of(peer.settle_one_by_one(single))
        figures.p50.append(times.p50)
        figures.p99.append(times.p99)
        if isinstance(peer, TidelogQueue):
            acknowledged = Percentiles.of(peer.acknowledged_ms)
            figures.ack_p50.append(acknowledged.p50)
            figures.ack_p99.append(acknowledged.p99)
    finally:
        peer.kill()
    return figures


def tables(found: list[QueueFigures | None]) -> str:
    ours = found[OURS]
    assert ours is not None, "Tidelog is always there"
    headings = (
        "batches",
        "an acknowledgement means",
        "received and acknowledged",
        "median",
        "Tidelog, times as many",
        "by the medians",
        "target",
        "",
    )
    rates = markdown_table(headings, [_rate_line(kind, each, ours) for kind, each in zip(KINDS, found, strict=True) if each])
    time_headings = (
        "one at a time",
        "`ack`, p50",
        "p99",
        "ack to the next message, p50",
        "p99",
        "Tidelog's `ack`, p99",
        "target",
        "",
    )
    times = markdown_table(time_headings, [_time_line(kind, each, ours) for kind, each in zip(KINDS, found, strict=True) if each])
    return f"{rates}\n\n{times}"


def _rate_line(kind: _Kind, figures: QueueFigures, ours: QueueFigures) -> list[str]:
    median, our_median = Figure.of(figures.rates).value, Figure.of(ours.rates).value
    cells = [figures.name, figures.durability, f"{max(figures.rates):,.0f} /s", f"{median:,.0f} /s"]
    ratio, target, verdict = _judged(kind.rate, max(ours.rates) / max(figures.rates))
    by_medians, _, verdict_by_medians = _judged(kind.rate, our_median / median)
    if verdict != verdict_by_medians:
        verdict += f", {verdict_by_medians} by the medians"
    return [*cells, ratio, by_medians, target, verdict]


def _time_line(kind: _Kind, figures: QueueFigures, ours: QueueFigures) -> list[str]:
    ack = [figures.ack_p50, figures.ack_p99] if figures.ack_p99 else []
    cells = [f"{min(values):.2f} ms" for values in ack] or ["", ""]
    cells += [f"{min(values):.2f} ms" for values in (figures.p50, figures.p99)]
    return [figures.name, *cells, *_judged(kind.p99, min(ours.ack_p99) / min(figures.p99))]


def _judged(target: Target | None, ratio: float) -> list[str]:
    if target is None:
        return ["", "", ""]
    return [f"{ratio:.2f}", f"{target.bound} {target.value:g}", "ok" if target.is_met_by(ratio) else "short"]
