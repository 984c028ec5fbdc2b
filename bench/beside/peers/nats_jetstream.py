"""NATS JetStream with file storage. It syncs every two minutes; Debian's version (2.9) cannot sync before it answers."""

import asyncio
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.beside.peers.peer import VALUE, Process, free_port, program

STREAM = SUBJECT = CONSUMER = "bench"
PENDING = 1000
FETCH = 1000
FETCH_SECONDS_MAX = 30


class NatsJetStream:
    def __init__(self, directory: Path) -> None:
        self.name = "NATS JetStream"
        self.durability = "page cache; synced every two minutes"
        self._program = program("nats-server", "nats-server")
        self._directory = directory
        self._process: Process | None = None
        self._loop = asyncio.new_event_loop()
        self._client: Any = None
        self._stream: Any = None

    def mebibytes(self) -> float:
        return 0.0 if self._process is None else self._process.mebibytes()

    def start(self) -> None:
        port = free_port()
        settings = self._directory / "nats.conf"
        settings.write_text(f'port: {port}\nhost: "127.0.0.1"\njetstream {{\n store_dir: "{self._directory}/store"\n}}\n')
        self._process = Process([self._program, "-c", str(settings)], port, self._directory)
        self._loop.run_until_complete(self._connect(port))

    async def _connect(self, port: int) -> None:
        import nats

        self._client = await nats.connect(f"nats://127.0.0.1:{port}")
        self._stream = self._client.jetstream(publish_async_max_pending=PENDING)
        await self._stream.add_stream(name=STREAM, subjects=[SUBJECT])

    def publish(self, count: int) -> float:
        async def run() -> float:
            began = perf_counter()
            futures = [await self._stream.publish_async(SUBJECT, VALUE) for _ in range(count)]
            await asyncio.gather(*futures)
            return perf_counter() - began

        return self._loop.run_until_complete(run())

    def publish_one_by_one(self, count: int) -> list[float]:
        async def run() -> list[float]:
            milliseconds = []
            for _ in range(count):
                began = perf_counter()
                await self._stream.publish(SUBJECT, VALUE)
                milliseconds.append((perf_counter() - began) * 1000)
            return milliseconds

        return self._loop.run_until_complete(run())

    def read(self, count: int) -> float:
        async def run() -> float:
            began, left = perf_counter(), count
            subscription = await self._stream.pull_subscribe(SUBJECT, durable=CONSUMER)
            while left > 0:
                messages = await subscription.fetch(min(FETCH, left), timeout=FETCH_SECONDS_MAX)
                for message in messages:
                    await message.ack()
                left -= len(messages)
            await self._client.flush()
            return perf_counter() - began

        return self._loop.run_until_complete(run())

    def settle_one_by_one(self, count: int) -> list[float]:
        async def run() -> list[float]:
            milliseconds = []
            subscription = await self._stream.pull_subscribe(SUBJECT, durable=CONSUMER)
            (message,) = await subscription.fetch(1, timeout=FETCH_SECONDS_MAX)
            for _ in range(count):
                began = perf_counter()
                await message.ack_sync()
                (message,) = await subscription.fetch(1, timeout=FETCH_SECONDS_MAX)
                milliseconds.append((perf_counter() - began) * 1000)
            return milliseconds

        return self._loop.run_until_complete(run())

    def kill(self) -> None:
        if self._process is not None:
            self._loop.run_until_complete(self._client.close())
            self._process.kill()
        self._loop.close()
