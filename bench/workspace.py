"""Where the benchmarks write, and the data directories that they open there, on the real disk, clock and threads."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.log.data_directory import DataDirectory
from tidelog.log.partition_log import PartitionLog
from tidelog.log.settings import DirectoryOptions, LogSettings
from tidelog.ports.clock import RealClock
from tidelog.ports.randomness import RealRandomness
from tidelog.ports.real_disk import RealDisk
from tidelog.ports.real_executor import ThreadExecutor

# What the largest benchmark leaves on the disk at its peak, with room to spare.
FREE_BYTES_MIN = 5 << 30
FREE_BYTES_MIN_QUICK = 1 << 29
WAIT_SECONDS_MAX = 120.0
TOPIC_ID = bytes(range(16))


class NotEnoughRoom(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Workspace:
    path: Path
    is_quick: bool
    minutes: float = 1.0

    @property
    def long_seconds(self) -> float:
        """Of what goes on for a while, to see whether something grows."""
        return 1.0 if self.is_quick else self.minutes * 60

    def rounds(self, count: int) -> int:
        return 1 if self.is_quick else count

    def scaled(self, amount: int, at_least: int = 1) -> int:
        """``amount``, or the small part of it that shows in a few seconds that the benchmark runs at all."""
        return max(amount // 64, at_least) if self.is_quick else amount

    @contextmanager
    def directory(self, name: str) -> Iterator[Path]:
        path = self.path / name
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path)


@contextmanager
def workspace(directory: Path, is_quick: bool, minutes: float = 1.0) -> Iterator[Workspace]:
    """A directory of our own below ``directory``; gone afterwards."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = FREE_BYTES_MIN_QUICK if is_quick else FREE_BYTES_MIN
    free = shutil.disk_usage(directory).free
    if free < wanted:
        raise NotEnoughRoom(
            f"{directory} has {free / 2**30:.1f} GiB free and the benchmarks need {wanted / 2**30:.1f}: "
            "choose another place with --directory, or take --quick"
        )
    path = Path(tempfile.mkdtemp(prefix="tidelog-bench-", dir=directory))
    try:
        yield Workspace(path, is_quick, minutes)
    finally:
        shutil.rmtree(path, ignore_errors=True)


@dataclass(slots=True)
class Broker:
    """A data directory on real ports, and the little that drives it."""

    data: DataDirectory
    executor: ThreadExecutor
    problems: list[str] = field(default_factory=list)

    def create(self, topic: str, partition: int, settings: LogSettings) -> PartitionLog:
        return self.data.create(topic, partition, TOPIC_ID, settings)

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            if not self.executor.run_completions(WAIT_SECONDS_MAX):
                raise TimeoutError(f"nothing came back from the disk in {WAIT_SECONDS_MAX} s")

    def commit(self) -> None:
        """All that was appended is durable when this returns."""
        self.data.kick()
        self.wait_until(lambda: self.data.commit.is_idle)

    def stop_executor(self) -> None:
        """Everything that was begun ends."""
        self.commit()
        self.data.marks.flush()
        self.wait_until(lambda: self.data.is_idle)
        self.executor.close(wait=True)

    def close(self) -> None:
        self.stop_executor()
        self.data.close()


def open_broker(path: Path, settings: LogSettings, options: DirectoryOptions | None = None) -> Broker:
    executor = ThreadExecutor()
    problems: list[str] = []
    data = DataDirectory(
        os.fspath(path),
        disk=RealDisk(),
        clock=RealClock(),
        randomness=RealRandomness(),
        executor=executor,
        cluster_id="bench",
        node_id=1,
        settings_for=lambda topic: settings,  # noqa: ARG005 - every topic is alike here
        report=lambda event, facts: problems.append(f"{event} {facts}"),
        options=options,
    )
    return Broker(data, executor, problems)


@contextmanager
def running_broker(path: Path, settings: LogSettings, options: DirectoryOptions | None = None) -> Iterator[Broker]:
    broker = open_broker(path, settings, options)
    try:
        yield broker
    finally:
        broker.close()
