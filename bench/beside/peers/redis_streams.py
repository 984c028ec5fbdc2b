"""Redis Streams: XADD in pipelines, XREADGROUP and XACK. ``appendfsync`` decides what an answer is worth."""

from pathlib import Path
from time import perf_counter
from typing import Any

from bench.beside.peers.peer import VALUE, Process, free_port, program

STREAM, GROUP = "bench", "bench"
PIPELINE = 1000


class RedisStreams:
    def __init__(self, directory: Path, appendfsync: str) -> None:
        self.name = f"Redis Streams, appendfsync {appendfsync}"
        self.durability = "fsynced" if appendfsync == "always" else "memory; on disk within a second"
        self._program = program("redis-server", "redis-server")
        self._directory = directory
        self._appendfsync = appendfsync
        self._process: Process | None = None
        self._client: Any = None

    def mebibytes(self) -> float:
        return 0.0 if self._process is None else self._process.mebibytes()

    def start(self) -> None:
        from redis import Redis

        port = free_port()
        settings = ["--port", str(port), "--save", "", "--appendonly", "yes", "--appendfsync", self._appendfsync]
        self._process = Process([self._program, *settings, "--dir", str(self._directory)], port, self._directory)
        self._client = Redis(port=port)
        self._client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)

    def publish(self, count: int) -> float:
        began = perf_counter()
        for first in range(0, count, PIPELINE):
            pipeline = self._client.pipeline(transaction=False)
            for _ in range(min(PIPELINE, count - first)):
                pipeline.xadd(STREAM, {"v": VALUE})
            pipeline.execute()
        return perf_counter() - began

    def publish_one_by_one(self, count: int) -> list[float]:
        milliseconds = []
        for _ in range(count):
            began = perf_counter()
            self._client.xadd(STREAM, {"v": VALUE})
            milliseconds.append((perf_counter() - began) * 1000)
        return milliseconds

    def read(self, count: int) -> float:
        began, left = perf_counter(), count
        while left > 0:
            ((_, entries),) = self._client.xreadgroup(GROUP, "reader", {STREAM: ">"}, count=min(PIPELINE, left))
            self._client.xack(STREAM, GROUP, *(entry for entry, _ in entries))
            left -= len(entries)
        return perf_counter() - began

    def settle_one_by_one(self, count: int) -> list[float]:
        milliseconds = []
        entry = self._next_entry()
        for _ in range(count):
            began = perf_counter()
            self._client.xack(STREAM, GROUP, entry)
            entry = self._next_entry()
            milliseconds.append((perf_counter() - began) * 1000)
        return milliseconds

    def _next_entry(self) -> Any:
        ((_, ((entry, _),)),) = self._client.xreadgroup(GROUP, "reader", {STREAM: ">"}, count=1)
        return entry

    def kill(self) -> None:
        if self._process is not None:
            self._client.close()
            self._process.kill()
