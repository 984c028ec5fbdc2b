"""Makes the names in a data directory durable on the executor, one sync at a time.

A sync covers every rename before it. Whoever asks while one is under way waits for the next, together with all others who do: a
topic with a thousand partitions is deleted with a few syncs, and the commits behind them do not wait for a thousand.
"""

from collections.abc import Callable

from tidelog.ports.disk import Disk
from tidelog.ports.executor import Completion, Executor

OnSynced = Callable[[BaseException | None], None]


class DirectorySync:
    __slots__ = ("_disk", "_executor", "_in_flight", "_path", "_waiting")

    def __init__(self, disk: Disk, executor: Executor, path: str) -> None:
        self._disk = disk
        self._executor = executor
        self._path = path
        self._in_flight = False
        self._waiting: list[OnSynced] = []

    @property
    def is_idle(self) -> bool:
        return not self._in_flight

    def request(self, on_synced: OnSynced) -> None:
        self._waiting.append(on_synced)
        if not self._in_flight:
            self._start()

    def _start(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._in_flight = True
        disk, path = self._disk, self._path
        self._executor.submit(lambda: disk.sync_directory(path), lambda completion: self._finish(waiting, completion))

    def _finish(self, waiting: list[OnSynced], completion: Completion) -> None:
        self._in_flight = False
        for on_synced in waiting:
            on_synced(completion.error)
        if self._waiting and not self._in_flight:
            self._start()
