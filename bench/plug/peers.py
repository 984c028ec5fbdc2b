"""NATS JetStream and Redis Streams under power cuts, each from its Debian package, each with its own client."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from bench.beside.peers.peer import Process, free_port, program
from bench.plug.ledger import Holds, Ledger

KIND = "messages"
NAME = "cuts"
IN_FLIGHT_MAX = 200
PAUSE_SECONDS = 0.01
SERVE_SECONDS_MAX = 60.0
FETCH = 1000
PADDING = bytes(200)


class NatsUnderCuts:
    name = "NATS JetStream"
    promise = "page cache; synced every two minutes"

    def __init__(self) -> None:
        self._program = program("nats-server", "nats-server")
        self._numbers = count()
        self._process: Process | None = None
        self._port = 0
        self._command: list[str] = []
        self._directory = Path()
        self._is_stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def prepare(self, path: Path) -> None:
        self._directory, self._port = path / "nats", free_port()
        self._directory.mkdir(exist_ok=True)
        settings = self._directory / "nats.conf"
        settings.write_text(f'port: {self._port}\nhost: "127.0.0.1"\njetstream {{\n store_dir: "{self._directory}/store"\n}}\n')
        self._command = [self._program, "-c", str(settings)]

    def start(self) -> None:
        self._process = Process(self._command, self._port, self._directory)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def install(self) -> None:
        """The stream is created with its first message."""

    def wait_until_it_serves(self) -> None:
        async def probe() -> None:
            client = await self._connect()
            deadline = monotonic() + SERVE_SECONDS_MAX
            while True:
                try:
                    stream = client.jetstream(timeout=2)
                    await stream.add_stream(name=NAME, subjects=[NAME])  # Nothing changes if it exists.
                    await stream.publish(NAME, b"probe")
                    break
                except Exception:
                    if monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.02)
            await client.close()

        asyncio.run(probe())

    async def _connect(self) -> Any:
        import nats

        async def ignore(error: Exception) -> None:  # noqa: ARG001 - the server dies on purpose
            return

        return await nats.connect(f"nats://127.0.0.1:{self._port}", allow_reconnect=False, error_cb=ignore)

    def begin_load(self, ledger: Ledger) -> None:
        self._is_stopping.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._publish(ledger)), daemon=True)
        self._thread.start()

    def end_load(self) -> None:
        self._is_stopping.set()
        if self._thread is not None:
            self._thread.join()

    async def _publish(self, ledger: Ledger) -> None:
        client = await self._connect()
        stream = client.jetstream(timeout=2, publish_async_max_pending=IN_FLIGHT_MAX)

        async def publish_one() -> None:
            value = b"%d " % next(self._numbers) + PADDING
            answer = await stream.publish(NAME, value)
            ledger.acknowledge(KIND, answer.seq, value)

        while not self._is_stopping.is_set():
            answers = await asyncio.gather(*(publish_one() for _ in range(IN_FLIGHT_MAX // 4)), return_exceptions=True)
            if any(isinstance(answer, BaseException) for answer in answers):
                break  # The server is gone: an answer that never came is no acknowledgement.
            await asyncio.sleep(PAUSE_SECONDS)
        await client.close()

    def holdings(self, ledger: Ledger) -> Mapping[str, Holds]:  # noqa: ARG002 - it has nothing to complain about
        found = asyncio.run(self._read())
        return {KIND: lambda entry: found.get(entry.place) == entry.value}

    async def _read(self) -> dict[int, bytes]:
        client = await self._connect()
        stream = client.jetstream(timeout=5)
        last = (await stream.stream_info(NAME)).state.last_seq
        subscription = await stream.pull_subscribe(NAME)
        found: dict[int, bytes] = {}
        highest = 0
        while highest < last:
            try:
                messages = await subscription.fetch(FETCH, timeout=5)
            except TimeoutError:
                break
            for message in messages:
                highest = message.metadata.sequence.stream
                found[highest] = message.data
                await message.ack()
        await client.close()
        return found


class RedisUnderCuts:
    def __init__(self, name: str, promise: str, *settings: str) -> None:
        self.name = name
        self.promise = promise
        self._program = program("redis-server", "redis-server")
        self._settings = settings
        self._numbers = count()
        self._process: Process | None = None
        self._port = 0
        self._directory = Path()
        self._is_stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def prepare(self, path: Path) -> None:
        self._directory, self._port = path / "redis", free_port()
        self._directory.mkdir(exist_ok=True)

    def start(self) -> None:
        command = [self._program, "--port", str(self._port), "--dir", str(self._directory), *self._settings]
        self._process = Process(command, self._port, self._directory)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _client(self) -> Any:
        from redis import Redis

        return Redis(port=self._port, socket_timeout=10)

    def install(self) -> None:
        """The stream is created with its first message."""

    def wait_until_it_serves(self) -> None:
        from redis.exceptions import RedisError

        with self._client() as client:
            deadline = monotonic() + SERVE_SECONDS_MAX
            while True:
                try:
                    client.xadd("probe", {"v": b"probe"})
                    return
                except RedisError:
                    if monotonic() > deadline:
                        raise
                    sleep(0.005)

    def begin_load(self, ledger: Ledger) -> None:
        self._is_stopping.clear()
        self._thread = threading.Thread(target=self._publish, args=(ledger,), daemon=True)
        self._thread.start()

    def end_load(self) -> None:
        self._is_stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _publish(self, ledger: Ledger) -> None:
        from redis.exceptions import RedisError

        with self._client() as client:
            while not self._is_stopping.is_set():
                values = [b"%d " % next(self._numbers) + PADDING for _ in range(IN_FLIGHT_MAX // 4)]
                pipeline = client.pipeline(transaction=False)
                for value in values:
                    pipeline.xadd(NAME, {"v": value})
                try:
                    ids = pipeline.execute()
                except RedisError:
                    return  # The server is gone: an answer that never came is no acknowledgement.
                for place, value in zip(ids, values, strict=True):
                    ledger.acknowledge(KIND, place, value)
                self._is_stopping.wait(PAUSE_SECONDS)

    def holdings(self, ledger: Ledger) -> Mapping[str, Holds]:  # noqa: ARG002 - it has nothing to complain about
        with self._client() as client:
            found = {place: fields[b"v"] for place, fields in client.xrange(NAME)}
        return {KIND: lambda entry: found.get(entry.place) == entry.value}


PEERS: Mapping[str, Callable[[], NatsUnderCuts | RedisUnderCuts]] = {
    "nats": NatsUnderCuts,
    "redis": lambda: RedisUnderCuts("Redis Streams", "memory; a snapshot after a minute at the earliest"),
    "redis-aof": lambda: RedisUnderCuts(
        "Redis Streams, appendonly yes", "page cache; synced every second", "--appendonly", "yes"
    ),
}
