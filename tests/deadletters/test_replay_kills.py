"""Replays that are killed at random points, the broker beside them, and two at once: each letter arrives exactly once.

TIDELOG_KILL_ROUNDS kills that many replays instead of a few.
"""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.deadletters.letters import Letters, read_all, values
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.admin import PartitionBounds
from tidelog.client.errors import Fenced
from tidelog.deadletters import DeadLetters
from tidelog.deadletters.cluster import DeadLetterCluster
from tidelog.deadletters.ledger import Ledger
from tidelog.deadletters.replay import Progress
from tidelog.testing import Broker

ROUNDS = int(os.environ.get("TIDELOG_KILL_ROUNDS", "6"))
ROOT = Path(__file__).parents[2]
LETTERS = 200
LETTERS_PER_TRANSACTION = 4
# From a child's first word on; a replay of so many letters takes longer.
KILL_AFTER_SECONDS_MAX = 0.8
END_SECONDS_MAX = 120.0
ATTEMPTS_MAX = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("TIDELOG_SEED", time.time_ns() % 1_000_000))


def start(bootstrap: str, topic: str) -> "subprocess.Popen[str]":
    words = [sys.executable, "-m", "tests.deadletters.replaying", bootstrap, topic, str(LETTERS_PER_TRANSACTION)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def end(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, words = process.communicate(timeout=END_SECONDS_MAX)
    return process.returncode, words


def check(letters: Letters) -> None:
    assert Counter(values(read_all(letters.bootstrap, letters.retry))) == Counter(range(letters.count))
    assert DeadLetters(letters.bootstrap).depth(letters.topic)[0].letters == 0


def finish(letters: Letters) -> None:
    """Run it again until it is done; what it says when it is not is an error of ours."""
    for _ in range(ATTEMPTS_MAX):
        code, words = end(start(letters.bootstrap, letters.topic))
        if code == 0:
            return
        assert "Traceback" not in words, words
    raise AssertionError(f"not done after {ATTEMPTS_MAX} runs: {words}")


@pytest.mark.tidelog_only
def test_replays_killed_at_random_points(broker: Broker, seed: int) -> None:
    random = Random(seed)
    letters = Letters(broker.bootstrap_servers)
    letters.write_many(LETTERS)
    killed = 0
    while killed < ROUNDS:
        process = start(letters.bootstrap, letters.topic)
        try:
            process.wait(random.uniform(0, KILL_AFTER_SECONDS_MAX))
        except subprocess.TimeoutExpired:
            killed += 1
        else:
            # It was faster: there must be something left to be killed at.
            letters.write_many(LETTERS)
        process.kill()
        end(process)
    finish(letters)
    check(letters)


@pytest.mark.tidelog_only
def test_the_broker_is_killed_beside_the_replay(broker: Broker, seed: int) -> None:
    random = Random(seed)
    letters = Letters(broker.bootstrap_servers)
    for number in range(max(2, ROUNDS // 3)):
        letters.write_many(LETTERS)
        process = start(letters.bootstrap, letters.topic)
        time.sleep(random.uniform(0, KILL_AFTER_SECONDS_MAX))
        broker.kill()
        if number % 2:
            process.kill()
        broker.start()
        code, words = end(process)
        assert code in (0, 1, -9), words
        assert "Traceback" not in words, words
    finish(letters)
    check(letters)


def test_of_two_replays_at_once_one_takes_over(kafka: ToolkitBroker, letters: Letters) -> None:
    letters.write_many(60)
    under_way, result = threading.Event(), []

    def tell(progress: Progress) -> None:
        if progress.letters:
            under_way.set()

    def replay_slowly() -> None:
        try:
            DeadLetters(kafka.bootstrap).replay(letters.topic, rate=5, progress=tell)
        except Fenced as error:
            result.append(error)

    slow = threading.Thread(target=replay_slowly)
    slow.start()
    assert under_way.wait(60)
    done = DeadLetters(kafka.bootstrap).replay(letters.topic)
    slow.join(60)
    (error,) = result
    assert f"another replay or discard of {letters.topic} was started while this one ran and took over" in str(error)
    assert done.letters + done.done_before == 60
    assert done.done_before > 0
    check(letters)


def test_a_discard_fences_a_replay_too(kafka: ToolkitBroker, letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay has read the ledger; then somebody discards everything. It must send none of it."""
    letters.write_many(10)
    ready, go_on = threading.Event(), threading.Event()
    result: list[BaseException] = []

    read_ledger = DeadLetterCluster.read_ledger

    def read_and_wait(cluster: DeadLetterCluster, topic: str, bounds: dict[int, PartitionBounds]) -> Ledger:
        ledger = read_ledger(cluster, topic, bounds)
        if threading.current_thread() is slow:
            ready.set()
            assert go_on.wait(60)
        return ledger

    def replay() -> None:
        try:
            DeadLetters(kafka.bootstrap).replay(letters.topic)
        except Fenced as error:
            result.append(error)

    monkeypatch.setattr(DeadLetterCluster, "read_ledger", read_and_wait)
    slow = threading.Thread(target=replay)
    slow.start()
    assert ready.wait(60)
    assert DeadLetters(kafka.bootstrap).discard(letters.topic).letters == 10
    go_on.set()
    slow.join(60)
    assert [type(error) for error in result] == [Fenced]
    assert read_all(kafka.bootstrap, letters.retry) == []
