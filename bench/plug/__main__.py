"""Pull the plug on brokers under load, and compare what they acknowledged with what they have afterwards.

    python -m bench.plug                       Tidelog, 50 cuts
    python -m bench.plug all --write           and its peers; the table goes into docs/DURABILITY.md
    python -m bench.plug tidelog kafka --cuts 10 --seed 7

Each life of a server begins on what the last cut left (see ``bench.plug.disk``). It serves, all earlier entries of the ledger are
compared with it, clients load it, and at a random moment the power goes. Exit code 1: Tidelog lost something that it had
acknowledged, or something else is wrong with it. Where the machine does not allow the experiment, it says so and ends with 0.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from shutil import disk_usage
from statistics import median

from bench.beside.document import ROOT, machine, markdown_table, replace_part
from bench.beside.peers.peer import PeerMissing
from bench.plug.disk import FREE_BYTES_MIN, CannotCutPower, PowerCutDisk, Unflushed, enter_private_mounts
from bench.plug.kafka_subject import KafkaClients, KafkaUnderCuts, TidelogUnderCuts
from bench.plug.ledger import Account, Ledger, lost_all
from bench.plug.peers import PEERS
from bench.plug.rig_check import check_rig
from bench.plug.subject import PowerCutSubject
from tests.compatibility.apache_kafka import KafkaFailed, KafkaUnavailable, kafka_classpath
from tidelog import __version__
from tidelog.testing.environment import BrokerFailed

PAGE = ROOT / "docs" / "DURABILITY.md"
CUTS = 50
# The power goes this long after the load began and something was acknowledged.
LOAD_SECONDS_MAX = 2.0
ACKNOWLEDGED_MIN = 50
ACKNOWLEDGED_SECONDS_MAX = 60.0
# Small segments roll in every few lives, so that cuts fall into rolls, checkpoints and new files too.
SEGMENT_BYTES = 1 << 20
DID_NOT_START = (BrokerFailed, KafkaFailed, RuntimeError, TimeoutError)


def tidelog(seed: int) -> PowerCutSubject:
    configs = {"log.segment.bytes": SEGMENT_BYTES}
    return KafkaClients(TidelogUnderCuts(f"Tidelog {__version__}", "on disk", configs), seed)


def relaxed_tidelog(seed: int) -> PowerCutSubject:
    """The counter-check: told to acknowledge from the page cache, it must lose, or the experiment shows nothing."""
    configs = {"log.segment.bytes": SEGMENT_BYTES, "log.flush.interval.messages": 2**63 - 1}
    name = f"Tidelog {__version__}, log.flush.interval.messages=2^63-1"
    return KafkaClients(TidelogUnderCuts(name, "page cache, as Kafka's default", configs), seed)


def kafka(seed: int) -> PowerCutSubject:
    kafka_classpath()
    return KafkaClients(KafkaUnderCuts(), seed)


SUBJECTS: Mapping[str, Callable[[int], PowerCutSubject]] = {
    "tidelog": tidelog,
    "tidelog-relaxed": relaxed_tidelog,
    "kafka": kafka,
    **{name: lambda seed, make=make: make() for name, make in PEERS.items()},  # type: ignore[misc]  # noqa: ARG005 - no chance in it
}


@dataclass(slots=True)
class Outcome:
    name: str
    promise: str
    cuts: int = 0
    starts_failed: int = 0
    serve_seconds: list[float] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def total(self) -> Account:
        accounts = self.ledger.accounts.values()
        return Account(sum(one.acknowledged for one in accounts), sum(one.lost for one in accounts))


def pull_the_plug(disk: PowerCutDisk, subject: PowerCutSubject, cuts: int, random: Random) -> Outcome:
    outcome = Outcome(subject.name, subject.promise)
    ledger = outcome.ledger
    try:
        install(disk, subject)
        for number in range(cuts):
            subject.begin_load(ledger)
            wait_for_acknowledgements(ledger)
            time.sleep(random.random() * LOAD_SECONDS_MAX)
            lengths = ledger.lengths()
            unflushed = random.choice(list(Unflushed))
            disk.picture(random, unflushed)
            subject.kill()
            subject.end_load()
            disk.restore()
            outcome.cuts += 1
            try:
                outcome.serve_seconds.append(start(subject, disk.data))
                lost = ledger.settle(lengths, subject.holdings(ledger))
            except DID_NOT_START as error:
                print(f"  {subject.name} did not start after cut {number + 1}: {error}", flush=True)
                outcome.starts_failed += 1
                subject.kill()
                lost = ledger.settle(lengths, lost_all(ledger))
                install(disk, subject)
            print(f"  {subject.name}: cut {number + 1}, unflushed: {unflushed.value}, {lost} lost", flush=True)
    finally:
        subject.kill()
        subject.end_load()
    return outcome


def install(disk: PowerCutDisk, subject: PowerCutSubject) -> None:
    """Begin on an empty disk. All that belongs to an installation is old enough to be on the medium before the first cut."""
    disk.renew()
    subject.prepare(disk.data)
    subject.start()
    subject.install()
    subject.wait_until_it_serves()
    disk.sync()


def start(subject: PowerCutSubject, path: Path) -> float:
    """Seconds from the start of the process to its first acknowledgement."""
    subject.prepare(path)
    began = time.perf_counter()
    subject.start()
    subject.wait_until_it_serves()
    return time.perf_counter() - began


def wait_for_acknowledgements(ledger: Ledger) -> None:
    deadline = time.monotonic() + ACKNOWLEDGED_SECONDS_MAX
    while ledger.new_entries() < ACKNOWLEDGED_MIN:
        if time.monotonic() > deadline:
            ledger.problem(f"fewer than {ACKNOWLEDGED_MIN} acknowledgements within {ACKNOWLEDGED_SECONDS_MAX:.0f} s")
            return
        time.sleep(0.005)


def tables(outcomes: list[Outcome]) -> str:
    headings = ("", "an acknowledged message is", "cuts", "acknowledged", "lost", "serves again after (median, slowest)")
    lines = []
    for outcome in outcomes:
        total = outcome.total
        seconds = outcome.serve_seconds
        again = f"{median(seconds):.2f} s, {max(seconds):.2f} s" if seconds else ""
        if outcome.starts_failed:
            again += f"; {outcome.starts_failed} times not at all"
        lines.append((outcome.name, outcome.promise, str(outcome.cuts), f"{total.acknowledged:,}", f"{total.lost:,}", again))
    parts = [markdown_table(headings, lines)]
    for outcome in outcomes:
        if len(outcome.ledger.accounts) > 1:
            kinds = [
                (kind, f"{account.acknowledged:,}", f"{account.lost:,}", str(account.cuts_with_loss))
                for kind, account in outcome.ledger.accounts.items()
            ]
            parts.append(f"**{outcome.name}**\n\n" + markdown_table(("", "acknowledged", "lost", "cuts with a loss"), kinds))
    return "\n\n".join(parts)


def run(names: list[str], cuts: int, seed: int) -> list[Outcome]:
    random = Random(seed)
    memory = Path("/dev/shm")
    # In memory if there is room: nothing has to survive this process, and the real disk is not part of the experiment.
    base = memory if memory.is_dir() and disk_usage(memory).free > FREE_BYTES_MIN else None
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="tidelog-plug-", dir=base) as directory:
        disk = PowerCutDisk(Path(directory))
        try:
            disk.prepare()
            check_rig(disk)
            for name in names:
                try:
                    subject = SUBJECTS[name](seed)
                except (PeerMissing, KafkaUnavailable) as error:
                    print(f"{name} is left out: {error}")
                    continue
                outcomes.append(pull_the_plug(disk, subject, cuts, random))
                print(tables(outcomes[-1:]), flush=True)
        finally:
            disk.close()
    return outcomes


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.plug", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "subjects",
        nargs="*",
        default=["tidelog"],
        choices=[*SUBJECTS, "all"],
        metavar="subject",
        help=", ".join([*SUBJECTS, "all"]),
    )
    parser.add_argument("--cuts", type=int, default=CUTS, help="how often the power goes, for each server")
    parser.add_argument("--seed", type=int, default=SystemRandom().getrandbits(32))
    parser.add_argument("--write", action="store_true", help="put the table into docs/DURABILITY.md")
    options = parser.parse_args(arguments)
    names = list(SUBJECTS) if "all" in options.subjects else options.subjects
    print(f"seed {options.seed}", flush=True)
    try:
        enter_private_mounts()
        outcomes = run(names, options.cuts, options.seed)
    except CannotCutPower as error:
        print(f"The plug was not pulled: {error}.")
        return 0
    if len(outcomes) > 1:
        print(f"\n{tables(outcomes)}")
    if options.write:
        replace_part("table", f"{tables(outcomes)}\n\n{machine()}, seed {options.seed}.", PAGE)
    problems = [problem for outcome in outcomes for problem in outcome.ledger.problems]
    for problem in problems:
        print(problem)
    is_ours = [outcome for outcome in outcomes if outcome.promise == "on disk"]
    return 1 if any(one.total.lost or one.starts_failed or one.ledger.problems for one in is_ours) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
