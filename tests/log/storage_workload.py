"""A seeded script of everything that happens to a data directory, and a crash at every disk operation of it.

The script draws its actions from the seed alone. Before each mutating or syncing disk operation, whether it is an append's, a
commit's on the executor, compaction's in the child or recovery's own, the disk is copied as a crash would leave it, and the
copy is opened and checked; the script itself goes on undisturbed. So one run has as many crash points as disk operations.

What is drawn at a crash point follows from the seed and the number of the operation, so that one point can be looked at alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

from simulation.disk import Crashed, Keep, SimulatedDisk
from simulation.randomness import SimulatedRandomness
from tests.log.storage_check import ModelError
from tests.log.storage_image import check_directory, image_world, live_on
from tests.log.storage_settings import KEYS
from tests.log.storage_world import World

# Of the crash points, how many are taken further: each costs as much as several plain ones.
LIVE_ON_LIKELIHOOD = 0.06
CRASH_IN_RECOVERY_LIKELIHOOD = 0.03
CRASHES_PER_RECOVERY_MAX = 6
PRODUCERS = (1, 2)
TRANSACTIONAL_PRODUCERS = (11, 12)


class Script:
    """Draws actions on a world."""

    def __init__(self, world: World, randomness: SimulatedRandomness) -> None:
        self.world = world
        self.randomness = randomness
        world.open()
        for key in KEYS:
            world.create(key)
        usual: list[tuple[int, Callable[[], None]]] = [
            (16, self.append),
            (12, self.append_idempotent),
            (10, self.append_transactional),
            (5, self.end_transaction),
            (3, self.retry),
            (8, world.kick),
            (14, self.step),
            (8, self.tick),
            (8, self.advance_high_watermark),
            (3, self.delete_records),
            (4, self.truncate),
            (2, self.roll),
            (3, self.move_recovery_point),
            (1, self.create_or_delete),
            (1, self.disk_full),
            (1, self.restart),
            (1, self.crash),
        ]
        # Each seed has its own taste, for actions and for partitions: rare things come together more often than by even draws.
        taste = (1, 2, 2, 8)
        self.actions = [(weight * taste[randomness.integer(0, 3)], action) for weight, action in usual]
        self.weight = sum(weight for weight, _ in self.actions)
        self.keys = [key for key in KEYS for _ in range(taste[randomness.integer(0, 3)])]

    def run_one(self) -> None:
        draw = self.randomness.integer(0, self.weight - 1)
        for weight, action in self.actions:
            if draw < weight:
                action()
                return
            draw -= weight

    def key(self) -> tuple[str, int]:
        return self.keys[self.randomness.integer(0, len(self.keys) - 1)]

    def chance(self, likelihood: float) -> bool:
        return self.randomness.fraction() < likelihood

    def append(self) -> None:
        counts = [self.randomness.integer(1, 3) for _ in range(self.randomness.integer(1, 3))]
        number = self.randomness.integer(0, 3)
        key = self.key()
        self.world.create(key)
        self.world.append(key, counts, number, wait=self.chance(0.6), as_follower=self.chance(0.2))

    def append_idempotent(self) -> None:
        producer_id = PRODUCERS[self.randomness.integer(0, 1)]
        count = self.randomness.integer(1, 4)
        self.world.append_idempotent(self.key(), producer_id, count, wait=self.chance(0.6), bump=self.chance(0.1))

    def append_transactional(self) -> None:
        producer_id = TRANSACTIONAL_PRODUCERS[self.randomness.integer(0, 1)]
        count = self.randomness.integer(1, 3)
        self.world.append_idempotent(self.key(), producer_id, count, wait=self.chance(0.5), transactional=True)

    def end_transaction(self) -> None:
        producer_id = TRANSACTIONAL_PRODUCERS[self.randomness.integer(0, 1)]
        self.world.end_transaction(self.key(), producer_id, commit=self.chance(0.5), wait=self.chance(0.7))

    def retry(self) -> None:
        self.world.retry(self.key(), self.randomness.integer(1, 2))

    def step(self) -> None:
        self.world.step(self.randomness.integer(1, 8))

    def tick(self) -> None:
        self.world.tick(self.randomness.integer(1, 900) if self.chance(0.9) else 30_000)

    def advance_high_watermark(self) -> None:
        self.world.advance_high_watermark(self.key())

    def delete_records(self) -> None:
        self.world.delete_records(self.key(), self.randomness.fraction())

    def truncate(self) -> None:
        self.world.truncate(self.key(), 1.0 if self.chance(0.1) else self.randomness.fraction())

    def roll(self) -> None:
        self.world.roll(self.key())

    def move_recovery_point(self) -> None:
        self.world.move_recovery_point(self.key())

    def create_or_delete(self) -> None:
        key = self.key()
        if key in self.world.models:
            self.world.delete(key)
        self.world.create(key)

    def disk_full(self) -> None:
        """For some appends; what does not fit is refused, and nothing else is hurt."""
        world = self.world
        world.settle()
        world.disk.set_free_bytes(self.randomness.integer(0, 600))
        for _ in range(3):
            self.append()
        world.disk.set_free_bytes(None)
        world.settle()

    def restart(self) -> None:
        self.world.close()
        self.world.reopen()

    def crash(self) -> None:
        keep: tuple[Keep, ...] = ("some", "some", "none", "all")
        self.world.crash(keep[self.randomness.integer(0, 3)])
        self.world.reopen()


@dataclass
class CrashCount:
    points: int = 0
    points_in_recovery: int = 0
    lives: int = 0


class CrashPointError(ModelError):
    """A promise was broken at one crash point; the message carries how to see it again."""


class CrashPoints:
    """Runs a script from a seed until so many crash points were checked."""

    def __init__(self, seed: int, only_point: int | None = None) -> None:
        self.seed = seed
        self.only_point = only_point
        self.world = World(seed)
        self.count = CrashCount()
        self.points_min = 0
        self.world.disk.on_operation = self._before_operation

    def run(self, points_min: int) -> CrashCount:
        self.points_min = points_min
        script = Script(self.world, SimulatedRandomness(f"{self.seed}/script"))
        try:
            while self.count.points < points_min:
                script.run_one()
            self.world.settle()
        except Crashed as crash:
            raise (crash.__cause__ or crash) from None
        except Exception as error:
            raise CrashPointError(f"{error!r}\n{self._replay(self.count.points, 'while the script itself ran')}") from error
        return self.count

    def _before_operation(self, operation: str, path: str) -> None:
        self.count.points += 1
        point = self.count.points
        if self.only_point not in (None, point):
            return
        randomness = SimulatedRandomness(f"{self.seed}/{point}")
        keep = _draw_keep(randomness)
        try:
            self._check_point(point, randomness, keep)
        except Exception as error:
            where = f"crash point {point}, before {operation} of {path}, keep={keep!r}"
            failure = CrashPointError(f"{error!r}\n{self._replay(point, where)}")
            failure.__cause__ = error
            # The hook runs inside the storage engine, which survives any Exception: only a Crashed gets out of it.
            raise Crashed from failure

    def _check_point(self, point: int, randomness: SimulatedRandomness, keep: Keep) -> None:
        world = self.world
        image = world.disk.crash_image(randomness, keep)
        other = image_world(world, image, f"{self.seed}/{point}/image")
        crashes_in_recovery = randomness.fraction() < CRASH_IN_RECOVERY_LIKELIHOOD
        if crashes_in_recovery:
            self._crash_in_recovery(other, image, randomness)
        other.open()
        image.on_operation = None
        if randomness.fraction() < LIVE_ON_LIKELIHOOD:
            self.count.lives += 1
            other.adopt()
            live_on(other)
        else:
            check_directory(other)

    def _crash_in_recovery(self, other: World, image: SimulatedDisk, randomness: SimulatedRandomness) -> None:
        """A second crash while the first is being recovered from, at some of its operations."""
        left = CRASHES_PER_RECOVERY_MAX

        def before_operation(operation: str, path: str) -> None:
            nonlocal left
            if left and randomness.fraction() < 0.2:
                left -= 1
                self.count.points_in_recovery += 1
                second = image.crash_image(randomness, _draw_keep(randomness))
                world = image_world(other, second, f"{other.seed}/{left}")
                world.open()
                check_directory(world)

        image.on_operation = before_operation

    def _replay(self, point: int, where: str) -> str:
        point_name = f"TIDELOG_SEED={self.seed} TIDELOG_CRASH_POINT={point} TIDELOG_CRASH_POINTS={self.points_min}"
        return f"{where}; see it again: {point_name} .venv/bin/python -m pytest tests/log/test_crash_points.py"


def _draw_keep(randomness: SimulatedRandomness) -> Keep:
    draw = randomness.fraction()
    return "some" if draw < 0.7 else "none" if draw < 0.85 else "all"
