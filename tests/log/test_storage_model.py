"""The data directory against a plain model, by rules that Hypothesis puts in any order; and the soak, which goes on for hours.

The rules are the actions of storage_world.py. After every rule each log that runs must show what the model says; after every
reopening (storage_reopening.py) all that was promised, and nothing else.
"""

import errno
import os
import random
import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from simulation.disk import FaultyOperation, Keep
from tests.log.storage_check import check_log, require
from tests.log.storage_settings import KEYS
from tests.log.storage_workload import CrashPoints
from tests.log.storage_world import World

keys = st.sampled_from(KEYS)
producers = st.sampled_from((1, 2))
transactional_producers = st.sampled_from((11, 12))
parts = st.floats(0, 1)
SOAK_POINTS = 1_500


class DataDirectoryMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1 << 32))
    def start(self, seed: int) -> None:
        self.world = World(seed)
        self.world.open()
        self.is_full = False
        for key in KEYS:
            self.world.create(key)

    # -- appending -----------------------------------------------------------------------------------------------------------

    @rule(key=keys, counts=st.lists(st.integers(1, 3), min_size=1, max_size=3), number=st.integers(0, 3), wait=st.booleans())
    def append(self, key: tuple[str, int], counts: list[int], number: int, wait: bool) -> None:
        self.world.append(key, counts, number, wait)

    @rule(key=keys, counts=st.lists(st.integers(1, 3), min_size=1, max_size=3), wait=st.booleans())
    def append_as_follower(self, key: tuple[str, int], counts: list[int], wait: bool) -> None:
        self.world.append(key, counts, 1, wait, as_follower=True)

    @rule(key=keys, producer_id=producers, count=st.integers(1, 4), wait=st.booleans(), bump=st.booleans())
    def append_idempotent(self, key: tuple[str, int], producer_id: int, count: int, wait: bool, bump: bool) -> None:
        self.world.append_idempotent(key, producer_id, count, wait, bump=bump)

    @rule(key=keys, producer_id=transactional_producers, count=st.integers(1, 3), wait=st.booleans())
    def append_transactional(self, key: tuple[str, int], producer_id: int, count: int, wait: bool) -> None:
        self.world.append_idempotent(key, producer_id, count, wait, transactional=True)

    @rule(key=keys, producer_id=transactional_producers, commit=st.booleans(), wait=st.booleans())
    def end_transaction(self, key: tuple[str, int], producer_id: int, commit: bool, wait: bool) -> None:
        self.world.end_transaction(key, producer_id, commit, wait)

    @rule(key=keys, producer_id=producers)
    def retry(self, key: tuple[str, int], producer_id: int) -> None:
        self.world.retry(key, producer_id)

    # -- offsets, segments, partitions ---------------------------------------------------------------------------------------

    @rule(key=keys)
    def advance_high_watermark(self, key: tuple[str, int]) -> None:
        self.world.advance_high_watermark(key)

    @rule(key=keys, part=parts)
    def delete_records(self, key: tuple[str, int], part: float) -> None:
        self.world.delete_records(key, part)

    @rule(key=keys, part=parts)
    def truncate(self, key: tuple[str, int], part: float) -> None:
        self.world.truncate(key, part)

    @rule(key=keys)
    def roll(self, key: tuple[str, int]) -> None:
        self.world.roll(key)

    @rule(key=keys)
    def move_recovery_point(self, key: tuple[str, int]) -> None:
        self.world.move_recovery_point(key)

    @rule(key=keys)
    def create(self, key: tuple[str, int]) -> None:
        self.world.create(key)

    @rule(key=keys)
    def delete(self, key: tuple[str, int]) -> None:
        self.world.delete(key)

    # -- time ----------------------------------------------------------------------------------------------------------------

    @rule()
    def kick(self) -> None:
        self.world.kick()

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        self.world.step(count)

    @rule(passed_ms=st.sampled_from((1, 300, 700, 2_500, 70_000)))
    def tick(self, passed_ms: int) -> None:
        self.world.tick(passed_ms)

    @precondition(lambda self: not self.is_full)
    @rule()
    def settle(self) -> None:
        self.world.settle()

    # -- stops, crashes and faults -------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.is_full)
    @rule()
    def restart(self) -> None:
        self.world.disk.faults.clear()
        self.world.close()
        self.world.reopen()

    @rule(keep=st.sampled_from(("some", "none", "all")))
    def crash(self, keep: Keep) -> None:
        world = self.world
        world.crash(keep)
        world.disk.set_free_bytes(None)
        self.is_full = False
        world.reopen()

    @rule(free_bytes=st.integers(0, 2_000))
    def fill_disk(self, free_bytes: int) -> None:
        self.is_full = True
        self.world.disk.set_free_bytes(free_bytes)

    @rule()
    def free_disk(self) -> None:
        self.is_full = False
        self.world.disk.set_free_bytes(None)

    @rule(key=keys, operation=st.sampled_from(("write", "sync")))
    def break_log(self, key: tuple[str, int], operation: FaultyOperation) -> None:
        """The next write or sync of this partition's log files fails: it goes offline, and a restart brings it back."""
        name = f"/{key[0]}-{key[1]}/"
        self.world.disk.faults.fail(operation, lambda path: name in path and path.endswith(".log"), errno.EIO, times=1)

    @rule()
    def break_journal(self) -> None:
        self.world.disk.faults.fail("sync", lambda path: "durable-marks" in path, errno.EIO, times=1)

    @invariant()
    def what_runs_shows_what_it_was_given(self) -> None:
        if not hasattr(self, "world"):
            return
        for log, model in self.world.online():
            if not model.is_truncating:
                require(log.log_end_offset == model.end_offset, f"{log.name} ends at {log.log_end_offset}: {model.end_offset}")
                check_log(model, log)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.crash("none")


QUICK = settings(
    max_examples=40, stateful_step_count=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def test_the_data_directory_keeps_what_the_model_says() -> None:
    run_state_machine_as_test(DataDirectoryMachine, settings=QUICK)


@pytest.mark.soak
def test_soak() -> None:
    """New seeds until the time is up. A failure prints its own seed."""
    end = time.monotonic() + 60 * float(os.environ.get("TIDELOG_SOAK_MINUTES", "1"))
    points = 0
    while time.monotonic() < end:
        points += CrashPoints(random.SystemRandom().getrandbits(32)).run(SOAK_POINTS).points
        free = settings(QUICK, max_examples=20, derandomize=False, database=None, print_blob=True)
        run_state_machine_as_test(DataDirectoryMachine, settings=free)
        print(f"{points} crash points", flush=True)
