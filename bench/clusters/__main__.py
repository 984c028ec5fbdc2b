"""``python -m bench.clusters``: each experiment by itself, on one cluster after the other.

``--list`` names the experiments, ``--only NAME`` picks some of them, and ``--write`` puts each row into docs/BENCHMARKS.md as
soon as it is measured, without touching the other rows. An experiment that fails on a cluster is reported, and the next begins.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

from bench.beside.document import machine
from bench.clusters import copying, faults, load, page, quorum
from bench.clusters.experiment import Experiment, Line, Run, Scale
from bench.clusters.page import COMPILED, OURS, THEIRS, Found
from bench.clusters.subjects import COMPILED as COMPILED_PATH
from bench.clusters.subjects import ClusterKind, CompiledCluster, KafkaCluster, TidelogCluster
from bench.workspace import NotEnoughRoom, Workspace, workspace
from tests.compatibility.apache_kafka import KafkaUnavailable, kafka_classpath

DEFAULT_DIRECTORY = Path("build/bench")
EXPERIMENTS = (*quorum.EXPERIMENTS[:4], *faults.EXPERIMENTS, *load.EXPERIMENTS, *copying.EXPERIMENTS, *quorum.EXPERIMENTS[4:])
KINDS: dict[str, tuple[str, ClusterKind]] = {
    "tidelog": (OURS, TidelogCluster),
    "compiled": (COMPILED, CompiledCluster),
    "kafka": (THEIRS, KafkaCluster),
}
# Several starts make one figure.
ROUNDS_OF_STARTS = 5
CALM_SECONDS_MAX = 1800.0
LOOK_SECONDS = 5.0


def measure(experiment: Experiment, names: Sequence[str], scale: Scale, place: Workspace) -> tuple[Found, bool]:
    """Measure the experiment, and return the figures and whether every cluster finished."""
    found = Found(os.getloadavg()[0], circumstances(experiment, scale))
    is_whole = True
    for name in names:
        column, kind = KINDS[name]
        if name == "kafka" and not experiment.is_beside_kafka:
            continue
        began = monotonic()
        # A cluster that has not been started yet is measured from there, each time with empty directories.
        for _ in range(1 if experiment.starts else scale.fewer_rounds(ROUNDS_OF_STARTS)):
            with place.directory("cluster") as path:
                try:
                    run = measure_once(experiment, kind, path, scale)
                except Exception:
                    is_whole = False
                    say(f"  {column}: {experiment.name} failed\n{traceback.format_exc()}")
                    break
            for what, values in run.values.items():
                found.values.setdefault(column, {}).setdefault(what, []).extend(values)
            found.notes += run.notes
        say(f"  {column}: {monotonic() - began:.0f} s")
    return found, is_whole


def measure_once(experiment: Experiment, kind: ClusterKind, path: Path, scale: Scale) -> Run:
    subject = kind(path / "nodes", scale.is_quick)
    run = Run(subject, scale, say)
    try:
        if experiment.starts:
            subject.start_all()
        experiment.measure(run)
    finally:
        subject.close()
    return run


def wait_until_calm(load_max: float) -> None:
    """Return when little else runs on the machine, or when that took too long: each row says how busy it was."""
    deadline = monotonic() + CALM_SECONDS_MAX
    while os.getloadavg()[0] > load_max and monotonic() < deadline:
        sleep(LOOK_SECONDS)


def circumstances(experiment: Experiment, scale: Scale) -> list[str]:
    """The sizes that this experiment names."""
    sizes = {
        "--minutes": f"{scale.minutes:g} min",
        "--mebibytes": f"{scale.mebibytes} MiB",
        "--partitions": f"{scale.partitions} partitions",
    }
    return [text for option, text in sizes.items() if option in experiment.about]


def lines_of(experiments: Sequence[Experiment]) -> list[Line]:
    return [line for experiment in experiments for line in experiment.lines]


def main() -> int:
    arguments = parse()
    if arguments.list:
        for experiment in EXPERIMENTS:
            print(f"{experiment.name:<18} {experiment.about}")
        return 0
    chosen = [experiment for experiment in EXPERIMENTS if not arguments.only or experiment.name in arguments.only]
    scale = Scale(arguments.rounds, arguments.minutes, arguments.mebibytes, arguments.partitions, arguments.quick)
    rows: page.Rows = {}
    is_whole = True
    try:
        with workspace(arguments.directory, scale.is_quick) as place:
            for experiment in chosen:
                if arguments.calm is not None:
                    wait_until_calm(arguments.calm)
                say(f"{experiment.name}: {experiment.about}")
                found, is_complete = measure(experiment, available(arguments.on), scale, place)
                is_whole = is_whole and is_complete
                rows = page.updated(rows, experiment.lines, found)
                if arguments.write:
                    page.write(EXPERIMENTS, experiment.lines, found)
    except NotEnoughRoom as error:
        say(str(error))
        return 1
    print(f"{page.tables(chosen, rows)}\n\n{machine()}")
    return 0 if is_whole else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.clusters", description=__doc__)
    names = [experiment.name for experiment in EXPERIMENTS]
    parser.add_argument("--list", action="store_true", help="name the experiments and end")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="measure these experiments only")
    parser.add_argument(
        "--on", nargs="+", choices=KINDS, default=["tidelog", "kafka"], help="the clusters (default: tidelog kafka)"
    )
    parser.add_argument("--rounds", type=int, default=10, help="of each fault (default: 10)")
    parser.add_argument("--minutes", type=float, default=10.0, help="of full load and of availability (default: 10)")
    parser.add_argument("--mebibytes", type=int, default=2048, help="of what is copied (default: 2048)")
    parser.add_argument("--partitions", type=int, default=3_000, help="of the cluster with many (default: 3000)")
    parser.add_argument(
        "--calm", type=float, metavar="LOAD", help="wait for a lower load average, half an hour at most, each time"
    )
    parser.add_argument("--directory", type=Path, default=DEFAULT_DIRECTORY, help="where to write; about 20 GB at the peak")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument("--write", action="store_true", help="put the rows into docs/BENCHMARKS.md")
    arguments = parser.parse_args()
    if arguments.quick and arguments.write:
        parser.error("--quick measures nothing worth writing")
    return arguments


def available(names: Sequence[str]) -> list[str]:
    found = list(names)
    if "kafka" in found:
        try:
            kafka_classpath()
        except KafkaUnavailable as error:
            say(f"{error}: Tidelog is measured alone")
            found.remove("kafka")
    if "compiled" in found and not COMPILED_PATH.exists():
        say("there is no compiled build; make compile creates it")
        found.remove("compiled")
    return found


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
