"""``python -m demo``: a broker, orders with poison among them, a worker, four pipelines on Spark, and the proof that all agree.

Everything it writes is in one directory, which stays; the next run begins it anew. Exit codes: 0 the proof holds, 1 something
went wrong, 3 two sides differ, 130 interrupted. However it ends, no process is left.
"""

import argparse
import logging
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from demo.orders import POISON_EVERY, Kind, counts, orders
from demo.proof import Lake, claims
from demo.shop import GROUP, RETRIES, Handled, work
from demo.story import Story
from tidelog import Admin, Producer
from tidelog.client.errors import TidelogError
from tidelog.client.futures import Delivery
from tidelog.testing import Broker
from tidelog.testing.environment import BrokerFailed

TOPIC = "orders"
PARTITIONS = 4
ORDERS = 20_000
DIRECTORY = Path("data/demo")
MARKER = ".tidelog-demo"
STOPPED = "stopped; nothing is left running"
EXIT_ERROR, EXIT_DIFFERENT, EXIT_INTERRUPTED = 1, 3, 130


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description="Tidelog from end to end, in about a minute.")
    parser.add_argument("--orders", type=int, default=ORDERS, metavar="COUNT", help=f"how many are sent ({ORDERS:,})")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help=f"where everything goes ({DIRECTORY})")
    options = parser.parse_args(arguments)
    if options.orders < POISON_EVERY:
        parser.error(f"--orders is {POISON_EVERY} or more: fewer have not every kind of poison among them")
    with quiet_log(), interrupts() as is_interrupted:
        try:
            return run(options.directory, options.orders)
        except KeyboardInterrupt:
            return _fail(STOPPED, EXIT_INTERRUPTED)
        except (TidelogError, BrokerFailed, TimeoutError, OSError) as error:
            # A terminal's Ctrl-C ends the broker as well, and whoever talks to it may notice that first.
            return _fail(STOPPED, EXIT_INTERRUPTED) if is_interrupted.is_set() else _fail(str(error), EXIT_ERROR)


@contextmanager
def quiet_log() -> Iterator[None]:
    """The worker logs every order that it refuses, which is the story's to tell."""
    logger = logging.getLogger("tidelog")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """SIGINT and SIGTERM alike; set when one of them came."""
    is_interrupted = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        is_interrupted.set()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield is_interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(directory: Path, count: int) -> int:
    prepare(directory)
    story = Story()
    with Broker(persist=directory / "broker") as broker:
        bootstrap = broker.bootstrap_servers
        with story.chapter("A broker: one process, one directory, Kafka's protocol"):
            story.say(f"listening on {bootstrap}, data in {directory / 'broker'}; any Kafka client can talk to it")
        acknowledged = produce(story, bootstrap, count)
        handled = handle(story, bootstrap, count)
        proof = claims(counts(count), acknowledged, handled, analyse(story, bootstrap, directory))
    story.console.print("\n[bold]Proof[/]: every number was counted twice, by two parts that do not know of each other")
    story.prove(proof)
    if not all(claim.holds for claim in proof):
        return _fail("two sides differ: that is a bug, and it is worth a report", EXIT_DIFFERENT)
    look_next(story, directory)
    return 0


def prepare(directory: Path) -> None:
    """Empty, or ours from an earlier run: nothing else is removed."""
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARKER).exists():
            raise FileExistsError(f"{directory} is not empty and not of an earlier demo: name another with --directory")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARKER).touch()


def produce(story: Story, bootstrap: str, count: int) -> int:
    kinds = counts(count)
    with story.chapter(f"A stream of {count:,} orders to the topic {TOPIC}, {PARTITIONS} partitions, poison among them"):
        with Admin(bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        with Producer(bootstrap) as producer:
            deliveries = [producer.send(TOPIC, order.value, key=order.customer) for order in orders(count, datetime.now(UTC))]
            producer.flush()
            acknowledged = len({(message.partition, message.offset) for message in map(Delivery.result, deliveries)})
        story.say(f"{acknowledged:,} acknowledged: on disk, not only in memory (acks=all)")
        poison = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items() if kind is not Kind.GOOD)
        story.say(f"the key is the customer: orders of one customer stay in order; the poison: {poison}")
    return acknowledged


def handle(story: Story, bootstrap: str, count: int) -> Handled:
    with story.chapter(f"A worker, group {GROUP}: retries with backoff, then dead letters"):
        done = work(bootstrap, TOPIC, count, lambda settled: story.progress(settled, count, "orders"))
        story.say(f"{done.handled:,} handled in {done.seconds:.1f} s; {done.retried:,} retries, up to {RETRIES} for an order")
        story.say(f"what was busy at first went through on a retry; {done.dead:,} can never succeed and are dead letters,")
        story.say(f"with their story, in {TOPIC}.{GROUP}.dlq; only later orders of the same customer waited for them")
    return done


def analyse(story: Story, bootstrap: str, directory: Path) -> Lake:
    """In another thread, where pipelines leave signals alone: Ctrl-C ends the demo, not only the query that runs."""
    from demo.lake import Analysis

    analysis = Analysis(bootstrap, TOPIC, directory, story)
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(analysis.run).result()
        finally:
            analysis.stop()


def look_next(story: Story, directory: Path) -> None:
    from demo.lake import Places

    places = Places(directory)
    story.console.print("\n[bold]What to look at next[/]")
    for what, command in (
        ("the page", f"{places.page.absolute().as_uri()}"),
        (
            "the table",
            'python -c "import deltalake, pyarrow.fs as fs; '
            f"files = fs.SubTreeFileSystem('{places.orders}', fs.LocalFileSystem()); "
            f"print(deltalake.DeltaTable('{places.orders}').to_pyarrow_table(filesystem=files).slice(0, 5))\"",
        ),
        ("the broker again", f"tidelog start --data {directory / 'broker'}"),
        ("then, elsewhere", "tidelog dlq list"),
        ("", f"tidelog groups describe {GROUP}"),
        ("", f"tidelog pipeline run audit --table {places.orders}"),
        ("what there is", "tidelog pipeline list, and docs/PIPELINES.md"),
    ):
        story.console.print(f"   {what:<17} ", end="", highlight=False)
        story.console.print(command, style="cyan", markup=False, highlight=False, soft_wrap=True)


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"demo: {' '.join(message.split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
