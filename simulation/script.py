"""A client that does one thing after the other, written as a generator: it yields calls and pauses, and is sent the answers.

A call waits for the connection and is sent once; its answer is None when the connection was lost in the meantime. A client that
is paused gets its answers later; one that crashed never does.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from simulation.client import ClientConnection
from simulation.scheduler import Scheduler
from tidelog.wire.messages import decode_response, encode_request
from tidelog.wire.protocol import ApiKey

CONNECTION_US = 5_000

Decode = Callable[[memoryview, int], Any]


class Call(NamedTuple):
    api_key: ApiKey
    version: int
    body: bytes
    decode: Decode


class Sleep(NamedTuple):
    duration_us: int


Steps = Generator[Call | Sleep, Any, Any]


def call(api_key: ApiKey, version: int, fields: dict[str, Any]) -> Call:
    def decode(frame: memoryview, position: int) -> Any:
        return decode_response(api_key, version, frame, position)

    return Call(api_key, version, encode_request(api_key, version, fields), decode)


class Script:
    """Runs the steps of one life."""

    def __init__(self, name: str, scheduler: Scheduler, connection: ClientConnection, steps: Steps) -> None:
        self._name = name
        self._scheduler = scheduler
        self._connection = connection
        self._steps = steps
        self._held: list[Any] = []
        self.is_paused = False
        self.is_over = False

    def start(self) -> None:
        self._advance(None)

    def end(self) -> None:
        self.is_over = True

    def pause(self, duration_us: int) -> None:
        self.is_paused = True
        self._scheduler.schedule(duration_us, f"{self._name} goes on", self._resume)

    def _resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        for answer in held:
            self._advance(answer)

    def _advance(self, answer: Any) -> None:
        if self.is_over:
            return
        if self.is_paused:
            self._held.append(answer)
            return
        try:
            step = self._steps.send(answer)
        except StopIteration:
            self.is_over = True
            return
        if isinstance(step, Sleep):
            self._scheduler.schedule(step.duration_us, f"{self._name} has slept", lambda: self._advance(None))
        else:
            self._send(step)

    def _send(self, step: Call) -> None:
        if self.is_over:
            return
        if not self._connection.is_ready:
            self._scheduler.schedule(CONNECTION_US, f"{self._name} waits for its connection", lambda: self._send(step))
            return

        def replied(frame: memoryview | None, position: int) -> None:
            # Decode a copy: the frame belongs to the connection, and the answer may be read later.
            self._advance(None if frame is None else step.decode(memoryview(bytes(frame)), position))

        self._connection.request(step.api_key, step.version, step.body, replied)
