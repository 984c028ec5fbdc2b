"""Power cuts at random moments under load: as for kill -9, but only what was synced is still there. And the harness can fail."""

import os
import shutil
import time
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest
from confluent_kafka import KafkaException

from tests.faults.faulty_broker import FaultyBroker
from tests.faults.faulty_disk import DiskFaults
from tests.faults.history import History
from tests.faults.load import PARTITIONS, TOPIC, ProducerWorker, read_all, wait_until
from tests.faults.power_cut import CutReport, PowerCutPlace, cut
from tests.faults.rounds import CONFIGS, ROUNDS, VALUE_BYTES, Outcome, create_topic, run_rounds

# File by file, and syncfs wherever two files are dirty: neither may hide what the other forgets.
SYNCFS_FILES_MIN = {"file by file": 1_000_000, "syncfs": 2}


def run_power_cuts(base: Path, rounds: int, syncfs_files_min: int) -> tuple[Outcome, CutReport]:
    seed = SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    random = Random(seed)
    place = PowerCutPlace(base)
    place.prepare()
    total = CutReport()
    configs = {**CONFIGS, "tidelog.group.commit.syncfs.files.min": syncfs_files_min}
    with FaultyBroker(place.data, configs, power_cut=place) as broker:

        def crash() -> None:
            broker.kill()
            report = cut(place, random)
            total.bytes_lost += report.bytes_lost
            total.names_undone += report.names_undone
            total.files_torn += report.files_torn

        outcome = run_rounds(broker, rounds, random, crash)
        broker.kill()
    print(outcome, total)
    return outcome, total


@pytest.mark.parametrize("way", SYNCFS_FILES_MIN)
def test_power_cuts_under_load(tmp_path: Path, way: str) -> None:
    outcome, total = run_power_cuts(tmp_path / "disk", ROUNDS // 2, SYNCFS_FILES_MIN[way])
    assert outcome.problems == []
    assert outcome.read >= outcome.acknowledged > ROUNDS // 2 * 20
    assert total.bytes_lost > 0, "the cuts took nothing"


@pytest.mark.parametrize("what", ["nothing", "forgotten_file", "forgotten_directory"])
def test_a_broker_that_forgets_a_sync_is_found(tmp_path: Path, what: str) -> None:
    """Either records are gone, or the broker itself misses what its marks promise and takes the partition offline."""
    place = PowerCutPlace(tmp_path / "disk")
    place.prepare()
    forgotten: dict[str, Any] = {what: f"/{TOPIC}-"} if what != "nothing" else {}
    faults = DiskFaults(**forgotten, switches=str(tmp_path))
    with FaultyBroker(place.data, CONFIGS, faults, place) as broker:
        create_topic(broker)
        history = History()
        producer = ProducerWorker(0, broker.bootstrap_servers, history, VALUE_BYTES)
        producer.start()
        wait_until(lambda: len(history.acknowledged) >= 100, "acknowledgements")
        producer.finish()
        broker.kill()
        cut(place, Random(1))
        broker.start()
        try:
            history.check(read_all(broker.bootstrap_servers), PARTITIONS)
        except KafkaException as error:
            history.problem(f"lost: {error}")
        broker.kill()
    assert bool(history.problems) == (what != "nothing"), history.problems[:5]


@pytest.mark.soak
def test_power_cuts_for_long(tmp_path: Path) -> None:
    end = time.monotonic() + 60 * float(os.environ.get("TIDELOG_SOAK_MINUTES", "1"))
    number = 0
    while time.monotonic() < end:
        for way, syncfs_files_min in SYNCFS_FILES_MIN.items():
            number += 1
            outcome, _ = run_power_cuts(tmp_path / f"disk-{number}", ROUNDS, syncfs_files_min)
            assert outcome.problems == [], way
            shutil.rmtree(tmp_path / f"disk-{number}")
