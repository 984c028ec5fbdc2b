"""Rounds of kill -9 on workers at work, the broker beside them, at random moments, and the ledger at the end.

Messages come in all the while. Each round kills some workers, or the broker, or both; workers come back under their instance's
name, as under a supervisor. At the end everybody is left alone: what was sent must be handled or dead-lettered, each key's
effects must have come in order (of their first times), each letter of a transactional worker must be there once, and the group
must have committed everything, retry topics too: nothing is stuck.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from confluent_kafka import Producer

from tests.faults.load import COMMON, wait_until
from tests.worker.kill_worker import GAVE_UP_STATUS, RETRIES, is_dead_letter
from tests.worker.running import Place
from tidelog.deadletters.letter import Letter
from tidelog.testing import Broker

ROOT = Path(__file__).parents[2]
PARTITIONS = 3
KEYS = 20
WORKERS = 2
MESSAGES_PER_ROUND = 120
# How far into the round's work a kill may come.
KILL_SECONDS_MAX = 0.6
SETTLE_SECONDS_MAX = 200.0

CONFIGS = {
    "group.min.session.timeout.ms": 1_000,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}


class Mode(NamedTuple):
    order: str
    exactly_once: bool


class Fleet:
    """Workers as processes, by instance."""

    def __init__(self, place: Place, mode: Mode, ledger: Path) -> None:
        self._place = place
        self._mode = mode
        self._ledger = ledger
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._words = ledger.with_suffix(".stderr")
        self.gave_up: list[str] = []
        self.failures: list[str] = []

    def start(self, instance: str) -> None:
        settings: dict[str, Any] = {
            "bootstrap": self._place.bootstrap,
            "group": self._place.group,
            "topic": self._place.topic,
            "order": self._mode.order,
            "exactly_once": self._mode.exactly_once,
            "instance": instance,
            "ledger": str(self._ledger),
        }
        command = [sys.executable, "-m", "tests.worker.kill_worker", json.dumps(settings)]
        with self._words.open("ab") as words:
            self._processes[instance] = subprocess.Popen(command, cwd=ROOT, stderr=words)

    def kill(self, instance: str) -> None:
        process = self._processes.pop(instance)
        process.kill()
        process.wait()

    def is_supervised(self) -> bool:
        """Who gave up is started again. Always True."""
        for instance, process in list(self._processes.items()):
            if process.poll() is None:
                continue
            ended = self.gave_up if process.returncode == GAVE_UP_STATUS else self.failures
            ended.append(f"{instance} ended with {process.returncode}")
            self.start(instance)
        return True

    def stop(self) -> list[int]:
        """Gracefully; their exit codes."""
        for process in self._processes.values():
            process.terminate()
        codes = []
        for process in self._processes.values():
            codes.append(process.wait(60))
        self._processes.clear()
        if "Traceback" in (words := self._words.read_text()):
            self.failures.append(words[words.index("Traceback") :])
        return codes

    def close(self) -> None:
        for instance in list(self._processes):
            self.kill(instance)


class Result(NamedTuple):
    sent: int
    effects: list[tuple[str, int]]
    dead: list[int]
    letters: list[Letter]
    gave_up: list[str]
    failures: list[str]


def run_rounds(broker: Broker, mode: Mode, rounds: int, random: Random, ledger: Path) -> Result:
    place = Place(broker.bootstrap_servers, PARTITIONS)
    fleet = Fleet(place, mode, ledger)
    producer = Producer({**COMMON, "bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    ledger.touch()
    sent = 0
    try:
        for number in range(WORKERS):
            fleet.start(f"instance-{number}")
        for _ in range(rounds):
            before = len(_effects(ledger))
            for number in range(sent, sent + MESSAGES_PER_ROUND):
                producer.produce(place.topic, str(number), f"key-{number % KEYS}")
                producer.poll(0)
            sent += MESSAGES_PER_ROUND
            wait_until(partial(_works, fleet, ledger, before), "somebody works")
            time.sleep(random.uniform(0, KILL_SECONDS_MAX))
            _kill(broker, fleet, random)
        producer.flush()
        wait_until(
            lambda: fleet.is_supervised() and _is_settled(place, sent, ledger), "everything is settled", SETTLE_SECONDS_MAX
        )
        codes = fleet.stop()
        fleet.failures += [f"exit code {code} of a graceful stop" for code in codes if code]
    finally:
        fleet.close()
    return _result(place, sent, ledger, fleet)


def _kill(broker: Broker, fleet: Fleet, random: Random) -> None:
    what = random.choice(("worker", "worker", "all workers", "broker", "both"))
    victims = [f"instance-{number}" for number in range(WORKERS)]
    if what in ("worker", "both"):
        victims = [random.choice(victims)]
    if what == "broker":
        victims = []
    for victim in victims:
        fleet.kill(victim)
    if what in ("broker", "both"):
        broker.kill()
        broker.start()
    for victim in victims:
        fleet.start(victim)


def _works(fleet: Fleet, ledger: Path, before: int) -> bool:
    return fleet.is_supervised() and len(_effects(ledger)) > before


def _effects(ledger: Path) -> list[tuple[str, int]]:
    lines = (line.split() for line in ledger.read_text().splitlines())
    return [(key, int(number)) for key, number in lines]


def _is_settled(place: Place, sent: int, ledger: Path) -> bool:
    handled = {number for _, number in _effects(ledger)}
    if any(number not in handled and not is_dead_letter(number) for number in range(sent)):
        return False
    topics = [place.topic, *(place.retries(level) for level in range(RETRIES))]
    return all(_is_committed(place, topic) for topic in topics)


def _is_committed(place: Place, topic: str) -> bool:
    """Up to the last message; markers of transactions may follow."""
    last = Counter(dict.fromkeys(range(PARTITIONS), 0))
    for message in place.read(topic):
        last[message.partition] = message.offset + 1
    committed = place.committed(topic)
    return all(committed[number][0] >= end or not end for number, end in last.items())


def _result(place: Place, sent: int, ledger: Path, fleet: Fleet) -> Result:
    dead = [int(message.value or b"") for message in place.read(place.dead_letters)]
    letters = [
        letter
        for topic in (*(place.retries(level) for level in range(RETRIES)), place.dead_letters)
        for message in place.read(topic)
        if (letter := Letter.from_headers(message.headers_list)) is not None
    ]
    return Result(sent, _effects(ledger), dead, letters, fleet.gave_up, fleet.failures)


def problems(result: Result, mode: Mode) -> list[str]:
    """What the ledger says against the promises."""
    found = list(result.failures)
    handled = {number for _, number in result.effects}
    for number in range(result.sent):
        if is_dead_letter(number):
            if number in handled or number not in result.dead:
                found.append(f"{number} should be a dead letter")
        elif number not in handled:
            found.append(f"{number} was never handled")
        elif number in result.dead:
            found.append(f"{number} is a dead letter and should not be")
    if mode.order == "key":
        found += _out_of_order(result.effects)
    if mode.exactly_once:
        copies = Counter((letter.partition, letter.offset, letter.attempts) for letter in result.letters if letter.attempts)
        waits = _waits(result.letters)
        found += [f"{place} has {count} letters" for place, count in copies.items() if count > 1 + waits[place]]
        found += [f"{number} is {count} dead letters" for number, count in Counter(result.dead).items() if count > 1]
    return found


def _waits(letters: list[Letter]) -> Counter[tuple[int, int, int]]:
    """How often a letter was written again only to wait behind another one of its key: its story is the same to the
    millisecond."""
    stories = Counter((letter.partition, letter.offset, letter.attempts, letter.last_failure_ms) for letter in letters)
    again: Counter[tuple[int, int, int]] = Counter()
    for (partition, offset, attempts, _), count in stories.items():
        again[partition, offset, attempts] += count - 1
    return again


def _out_of_order(effects: list[tuple[str, int]]) -> list[str]:
    """By the first time of each effect: repeats after a crash are allowed."""
    highest: dict[str, int] = {}
    seen: set[int] = set()
    found = []
    for key, number in effects:
        if number in seen:
            continue
        seen.add(number)
        if number < highest.get(key, -1):
            found.append(f"{key}: {number} came after {highest[key]}")
        highest[key] = max(number, highest.get(key, -1))
    return found
