"""A simulated process that belongs to a group: its lifecycle, its connections, and how it talks to its coordinator.

It has two connections, one to its coordinator and one for fetching, as real consumers do. It crashes, returns, leaves, and is
paused: then it receives, does and sends nothing, and continues afterwards as if no time had passed.

After a crash it begins another life; answers for an earlier life are ignored.
"""

from collections.abc import Callable
from typing import Any

from simulation.client import ClientConnection, Environment
from simulation.history import History
from simulation.randomness import SimulatedRandomness
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request
from tidelog.wire.protocol import ApiKey

HEARTBEAT_US = 120_000
RETRY_US = (5_000, 40_000)
LEAVE_US = 50_000
GROUP_TYPE = 0

# The coordinator is not available now, and has done nothing.
UNAVAILABLE = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE}
# The coordinator went away during the request, and may have executed it.
INTERRUPTED = {ErrorCode.NOT_COORDINATOR}

OnAnswer = Callable[[DecodedMessage | None], None]


class Link:
    """The owner of a connection that only needs to know when it can be used."""

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self._on_ready = on_ready

    def ready(self) -> None:
        self._on_ready()

    def lost(self) -> None:
        pass  # Each request in flight has been told.


class GroupClient:
    def __init__(self, name: str, group: str, environment: Environment, randomness: SimulatedRandomness) -> None:
        self.name = name
        self.group = group
        self.is_running = False
        self.is_paused = False
        self.is_away = False
        """Whether the member has gone away for good."""
        self.base: History = environment.history
        self.scheduler = environment.scheduler
        self.life = 0
        self._environment = environment
        self._randomness = randomness
        self._held: list[Callable[[], None]] = []
        self.coordinator = self.fetcher = self._connection("unused", lambda: None)

    # -- life ----------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.life += 1
        self.is_running = True
        self.is_paused = False
        self._held = []
        life = self.life
        self.coordinator = self._connection("coordinator", lambda: self.when_awake(life, self._find_coordinator))
        self.fetcher = self._connection("fetcher", lambda: self.when_awake(life, self.fetch))
        for connection in (self.coordinator, self.fetcher):
            connection.connect()
            connection.watch()
        self.begin()
        self._tick()

    def crash(self) -> None:
        """Crash without telling anybody."""
        self.scheduler.record(f"{self.name} is gone")
        self.is_running = False
        self.life += 1
        self.lose_everything()
        self.coordinator.close()
        self.fetcher.close()

    def leave(self) -> None:
        """Leave in order, as far as possible."""
        if self.coordinator.is_ready:
            self.say_goodbye()
        self.lose_everything()
        # Nobody waits for the remaining answers.
        self.life += 1
        life = self.life

        def end() -> None:
            if self.life == life:
                self.crash()

        self.scheduler.schedule(LEAVE_US, f"{self.name} ends", end)

    def pause(self, duration_us: int) -> None:
        self.is_paused = True
        life = self.life

        def resume() -> None:
            if self.life == life:
                self._resume()

        self.scheduler.schedule(duration_us, f"{self.name} goes on", resume)

    def _resume(self) -> None:
        self.is_paused = False
        if self.coordinator.is_ready:
            self.wake()
        held, self._held = self._held, []
        for action in held:
            action()

    def _connection(self, kind: str, on_ready: Callable[[], None]) -> ClientConnection:
        randomness = self._randomness.fork(f"{kind} {self.life}")
        return ClientConnection(self.name, self._environment, randomness, Link(on_ready))

    def when_awake(self, life: int, action: Callable[[], None]) -> None:
        if self.life != life:
            return
        if self.is_paused:
            self._held.append(lambda: self.when_awake(life, action))
        else:
            action()

    def later(self, delay_us: int, what: str, action: Callable[[], None]) -> None:
        life = self.life
        self.scheduler.schedule(delay_us, f"{self.name} {what}", lambda: self.when_awake(life, action))

    def soon(self, what: str, action: Callable[[], None]) -> None:
        self.later(self._randomness.integer(*RETRY_US), what, action)

    # -- what a member adds --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a new life, which knows nothing about the previous one."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Called when the coordinator can be reached."""
        raise NotImplementedError

    def wake(self) -> None:
        """Called when a pause ends and there is a connection to the coordinator."""
        raise NotImplementedError

    def heartbeat(self) -> None:
        raise NotImplementedError

    def fetch(self) -> None:
        raise NotImplementedError

    def say_goodbye(self) -> None:
        raise NotImplementedError

    def lose_everything(self) -> None:
        """Drop everything that the member owned."""
        raise NotImplementedError

    # -- the coordinator -----------------------------------------------------------------------------------------------------

    def call(self, api_key: ApiKey, version: int, fields: dict[str, Any], on_answer: OnAnswer) -> None:
        """``on_answer`` gets None when the connection is lost, or at once when there is no connection."""
        life = self.life

        def replied(frame: memoryview | None, position: int) -> None:
            answer = None if frame is None else decode_response(api_key, version, frame, position)
            self.when_awake(life, lambda: on_answer(answer))

        if self.coordinator.is_ready:
            self.coordinator.request(api_key, version, encode_request(api_key, version, fields), replied)
        else:
            self.soon("has no coordinator", lambda: on_answer(None))

    def unexpected(self, api: str, code: int) -> None:
        self.base.problem("unexpected error", f"{self.name}: {api}: {ErrorCode(code)!r}")

    @property
    def now_us(self) -> int:
        return self.scheduler.now_us

    def draw(self, bounds: tuple[int, int]) -> int:
        return self._randomness.integer(*bounds)

    def chance(self, likelihood: float) -> bool:
        return self._randomness.fraction() < likelihood

    def _find_coordinator(self) -> None:
        """Find the coordinator. Every connection begins with this, and the very first one creates the topic."""
        fields = {"key_type": GROUP_TYPE, "coordinator_keys": [self.group]}

        def answered(answer: DecodedMessage | None) -> None:
            if answer is None:
                return  # The next connection asks.
            (found,) = answer.coordinators
            if found.error_code == ErrorCode.NONE:
                self.go_on()
            elif found.error_code in UNAVAILABLE:
                self.soon("looks for its coordinator", self._ask_again)
            else:
                self.unexpected("FindCoordinator", found.error_code)

        self.call(ApiKey.FIND_COORDINATOR, 4, fields, answered)

    def _ask_again(self) -> None:
        if self.coordinator.is_ready:
            self._find_coordinator()

    def _tick(self) -> None:
        if self.coordinator.is_ready:
            self.heartbeat()
        self.later(HEARTBEAT_US, "beats", self._tick)
