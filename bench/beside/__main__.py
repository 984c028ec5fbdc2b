"""``python -m bench.beside kafka``: Tidelog beside other brokers, as a table; ``--write`` puts it into docs/BENCHMARKS.md."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from bench.beside import kafka, kafka_pictures, milliseconds, pauses, plots, scaling
from bench.beside.document import PICTURES, comparison_tables, machine, replace_part
from bench.beside.peers import run as peers
from bench.beside.queues import brokers, service, share_consumers
from bench.beside.subjects import CompiledTidelogSubject, KafkaSubject, TidelogSubject
from bench.measure import Figure
from bench.workspace import NotEnoughRoom, Workspace, workspace
from tests.compatibility.apache_kafka import KafkaUnavailable, kafka_classpath
from tests.release.compiled import CannotCompile, compiled_build

DEFAULT_DIRECTORY = Path("build/bench")
INTERVALS_DRAWN_MAX = 600


def _kinds_with_kafka() -> kafka.Kinds:
    kinds: kafka.Kinds = [TidelogSubject]
    try:
        kafka_classpath()
        kinds.append(KafkaSubject)
    except KafkaUnavailable as error:
        say(f"{error}: Tidelog is measured alone")
    return kinds


def beside_kafka(place: Workspace, write: bool) -> str:
    kinds = _kinds_with_kafka()
    try:
        compiled_build()
        kinds.insert(1, CompiledTidelogSubject)
    except CannotCompile as error:
        say(f"{error}: only pure Python is measured")
    results = kafka.run(place, kinds, say)
    text = f"{kafka.tables(results, kinds)}\n\n{machine()}"
    if write:
        (place.path.parent / "kafka.json").write_text(results.to_json())
        pictures = kafka_pictures.draw(results, PICTURES)
        shown = "\n\n".join(f"![{title}](benchmarks/{name})" for title, name in pictures)
        replace_part("kafka", f"{text}\n\n{shown}")
    return text


def beside_peers(place: Workspace, write: bool) -> str:
    found = peers.run(place, say)
    text = f"{peers.table(found)}\n\n{machine()}"
    if write:
        title = "Messages of 100 B, one client"
        series = {
            "in": [Figure.of(figures.published).value for figures in found],
            "out": [Figure.of(figures.read).value for figures in found],
        }
        names = [figures.name.replace(", ", "\n") for figures in found]
        plots.bars(PICTURES / "peers.svg", title, "messages per second", names, series)
        replace_part("peers", f"{text}\n\n![{title}](benchmarks/peers.svg)")
    return text


def beside_share_groups(place: Workspace, write: bool) -> str:
    text = f"{comparison_tables(share_consumers.run(place, _kinds_with_kafka(), say))}\n\n{machine()}"
    if write:
        replace_part("share-consumers", text)
    return text


def beside_queue_brokers(place: Workspace, write: bool) -> str:
    text = f"{brokers.tables(brokers.run(place, say))}\n\n{machine()}"
    if write:
        replace_part("queue-peers", text)
    return text


def queue_service(place: Workspace, write: bool) -> str:
    text = f"{comparison_tables(service.run(place, say))}\n\n{machine()}"
    if write:
        replace_part("queue-service", text)
    return text


def growing(place: Workspace, write: bool) -> str:
    text = f"{scaling.run(place, PICTURES if write else None, say)}\n\n{machine()}"
    if write:
        replace_part("scaling", text)
    return text


def one_message(place: Workspace, write: bool) -> str:
    text = f"{milliseconds.run(place, say)}\n\n{machine()}"
    if write:
        replace_part("milliseconds", text)
    return text


def even_service(place: Workspace, write: bool) -> str:
    report = pauses.run(place, say)
    text = f"{report.text()}\n\n{machine()}"
    # Every interval is drawn with its longest, so that no pause is lost, however wide the intervals are.
    interval_seconds = max(0.1, place.minutes * 60 / INTERVALS_DRAWN_MAX)
    if write:
        report.draw(PICTURES / "pauses.svg", interval_seconds)
        replace_part("pauses", f"{text}\n\n![Latency over time](benchmarks/pauses.svg)")
    else:
        report.draw(place.path.parent / "pauses.svg", interval_seconds)
    return text


BENCHMARKS: dict[str, Callable[[Workspace, bool], str]] = {
    "kafka": beside_kafka,
    "peers": beside_peers,
    "share-consumers": beside_share_groups,
    "queue-peers": beside_queue_brokers,
    "queue-service": queue_service,
    "scaling": growing,
    "milliseconds": one_message,
    "pauses": even_service,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.beside", description="Measure Tidelog beside other brokers.")
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--directory", type=Path, default=DEFAULT_DIRECTORY, help="where to write; about 5 GB at the peak")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument("--write", action="store_true", help="put the result into docs/BENCHMARKS.md, with pictures")
    parser.add_argument("--minutes", type=float, default=10.0, help="of pauses (default: 10)")
    arguments = parser.parse_args()
    if arguments.quick and arguments.write:
        parser.error("--quick measures nothing worth writing")
    try:
        with workspace(arguments.directory, arguments.quick, arguments.minutes) as place:
            print(BENCHMARKS[arguments.name](place, arguments.write))
    except NotEnoughRoom as error:
        say(str(error))
        return 1
    return 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
