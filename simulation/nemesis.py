"""Decides what goes wrong in a run, and when: a table of fault kinds, drawn from the seed.

Each seed enables a part of the kinds, so that some runs see many faults of few kinds. A fault that lasts heals by itself; a disk
that failed needs a new process, which an operator starts a while later. ``heal`` ends everything that is still going on.

A fault counts when it strikes: a failing disk when somebody got the error, and a machine that was to die at some operation when
it died.
"""

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from simulation.disk import Crashed, FaultyOperation
from simulation.executor import COMPLETION_DELAY_US, RUN_DELAY_US
from simulation.network import LINK_DELAY_US
from simulation.node import HOST

if TYPE_CHECKING:
    from simulation.stage import Stage

FAULT_INTERVAL_US = (5_000, 110_000)
DOWN_US = (1_000, 100_000)
LASTS_US = (20_000, 300_000)
# The clients' clocks do not jump; beyond an hour the broker would refuse their timestamps.
CLOCK_DIFFERENCE_MS_MAX = 50 * 60 * 1000
ENABLED_LIKELIHOOD = 0.6
# Far enough to reach the middle of a commit, a roll, a checkpoint or a start.
OPERATIONS_BEFORE_CUT_MAX = 60
# Parts of the names of files that fail together.
FAILING_PATHS = (".log", "orders-0", "orders", "events", "durable-marks", "checkpoint", "__cluster_metadata-0", "")
POWER_CUT_AFTER_STOP_LIKELIHOOD = 0.3
KILLED_BY_FAILED_SYNC_LIKELIHOOD = 0.3


class Nemesis:
    interval_us = FAULT_INTERVAL_US

    def __init__(
        self,
        world: "Stage",
        faults: "Mapping[str, Callable[..., bool]] | None" = None,
        paths: Sequence[str] = (),
    ) -> None:
        """``faults`` are those that this world knows, ``paths`` its files that may fail."""
        self.world = world
        self.randomness = world.randomness.fork("nemesis")
        self.counts: dict[str, int] = {}
        self.is_disk_faulty = False
        # Under the process that runs now: it may hear of it when the disk is mended already.
        self.has_disk_failed = False
        self._is_over = False
        self._clock_difference_ms = 0
        self._faults = FAULTS if faults is None else faults
        self._paths = (*FAILING_PATHS, *paths)
        names = [name for name in self._faults if self.randomness.fraction() < ENABLED_LIKELIHOOD]
        self.enabled = names or list(self._faults)

    def draw(self, bounds: tuple[int, int]) -> int:
        return self.randomness.integer(*bounds)

    def choose(self, options: Sequence[str]) -> str:
        return options[self.randomness.integer(0, len(options) - 1)]

    def start(self) -> None:
        self.world.scheduler.schedule(self.draw(self.interval_us), "nemesis", self._strike)

    def _strike(self) -> None:
        if self._is_over:
            return
        name = self.choose(self.enabled)
        try:
            if self._faults[name](self):
                self.count(name)
        finally:
            # Also when the machine dies in what the broker does about it.
            self.start()

    def count(self, name: str) -> None:
        """Count a fault that struck."""
        self.counts[name] = self.counts.get(name, 0) + 1
        self.world.scheduler.record(f"fault {name}")

    def later(self, label: str, action: Callable[[], None]) -> None:
        """Heal after a while, unless the run has ended before."""
        self.world.scheduler.schedule(self.draw(LASTS_US), f"nemesis {label}", lambda: None if self._is_over else action())

    def heal(self) -> None:
        """Allow no more faults, and end those that are going on."""
        self._is_over = True
        world = self.world
        world.network.heal_all()
        for client in world.client_hosts():
            world.network.set_delay(client, HOST, LINK_DELAY_US)
            world.network.set_delay(HOST, client, LINK_DELAY_US)
        self.make_disk_fast()
        self.mend_disk()
        world.node.disk.on_operation = None

    # -- processes -----------------------------------------------------------------------------------------------------------

    def kill(self) -> bool:
        if self.world.node.is_down:
            return False
        self.world.node.kill()
        self._start_again()
        return True

    def cut_power(self) -> bool:
        if self.world.node.is_down:
            return False
        self.world.cut_power("some" if self.randomness.fraction() < 0.7 else "none")
        self._start_again()
        return True

    def cut_power_in_an_operation(self) -> bool:
        """Let the machine die at one of the next operations on the disk, in whatever the broker is doing then."""
        node = self.world.node
        if node.is_down or node.disk.on_operation is not None:
            return False
        remaining = self.randomness.integer(1, OPERATIONS_BEFORE_CUT_MAX)

        def count_down(operation: str, path: str) -> None:
            nonlocal remaining
            remaining -= 1
            if remaining <= 0:
                raise Crashed(f"{operation} {path}")

        node.disk.on_operation = count_down
        return False

    def died_in_an_operation(self) -> None:
        """Called when ``Crashed`` came out of the scheduler."""
        self.count("power cut in an operation")
        self.world.node.disk.on_operation = None
        self.world.cut_power("some")
        self._start_again()

    def restart_in_order(self) -> bool:
        node = self.world.node
        if not node.is_serving:
            return False

        def stopped(error: Exception | None) -> None:
            is_whole = error is None and not self.is_disk_faulty and not self.has_disk_failed
            if is_whole and self.randomness.fraction() < POWER_CUT_AFTER_STOP_LIKELIHOOD:
                # A clean stop makes everything durable, so no loss is noted.
                node.cut_power("none")
            self._start_again()

        node.stop(stopped)
        return True

    def _start_again(self) -> None:
        self.world.node.start_after(self.draw(DOWN_US))

    # -- disk ----------------------------------------------------------------------------------------------------------------

    def slow_disk(self) -> bool:
        slowest_us = self.randomness.integer(10_000, 400_000)
        self.world.node.executor.run_delay_us = (slowest_us // 2, slowest_us)
        self.later("disk fast again", self.make_disk_fast)
        return True

    def late_completions(self) -> bool:
        """Let work end in another order than it ran."""
        self.world.node.executor.completion_delay_us = (0, self.randomness.integer(5_000, 150_000))
        self.later("completions in time again", self.make_disk_fast)
        return True

    def make_disk_fast(self) -> None:
        executor = self.world.node.executor
        executor.run_delay_us, executor.completion_delay_us = RUN_DELAY_US, COMPLETION_DELAY_US

    def failing_sync(self) -> bool:
        """Let syncs fail. The logs of these files are offline until the broker is restarted."""
        return self._fail("sync")

    def failing_write(self) -> bool:
        return self._fail("write")

    def failing_read(self) -> bool:
        return self._fail("read")

    def failing_names(self) -> bool:
        """Let creating, renaming and removing files fail."""
        return self._fail("names")

    def _fail(self, operation: FaultyOperation) -> bool:
        """Return EIO on some files, a few times, until an operator starts the broker on a disk that works."""
        world = self.world
        if self.is_disk_faulty or world.node.is_down:
            return False
        part = self.choose(self._paths)
        self.is_disk_faulty = True
        is_counted = False
        is_deadly = operation == "sync" and self.randomness.fraction() < KILLED_BY_FAILED_SYNC_LIKELIHOOD

        def matches(path: str) -> bool:
            nonlocal is_counted
            if part not in path:
                return False
            self.has_disk_failed = True
            if operation == "sync":
                world.history.lost_unsynced()
            if not is_counted:
                is_counted = True
                self.count(f"failing {operation}")
                if is_deadly:
                    world.scheduler.schedule(0, "nemesis kills before the error is heard", self._kill_unheard)
            return True

        world.node.disk.faults.fail(operation, matches, errno.EIO, times=self.randomness.integer(1, 4))

        def replace_process() -> None:
            world.history.lost_unsynced()
            world.node.disk.faults.rules.clear()
            world.node.kill()
            self.is_disk_faulty = False
            self._start_again()

        self.later("operator starts the broker again", replace_process)
        return False

    def _kill_unheard(self) -> None:
        if not self._is_over:
            self.kill()

    def full_disk(self) -> bool:
        if self.is_disk_faulty:
            return False
        self.is_disk_faulty = True
        self.world.node.disk.set_free_bytes(self.randomness.integer(0, 20_000))
        self.world.node.disk.faults.on_full = lambda: self.count("full disk")

        def make_room() -> None:
            self.is_disk_faulty = False
            self.world.node.disk.set_free_bytes(None)
            self.world.node.disk.faults.on_full = None

        self.later("room on the disk again", make_room)
        return False

    def mend_disk(self) -> None:
        self.is_disk_faulty = False
        self.world.node.disk.faults.clear()
        self.world.node.disk.set_free_bytes(None)

    # -- network -------------------------------------------------------------------------------------------------------------

    def cut_connection(self) -> bool:
        return self.world.network.cut(self.choose(self.world.client_hosts()), HOST)

    def partition(self) -> bool:
        return self._partition(one_way=False)

    def partition_one_way(self) -> bool:
        return self._partition(one_way=True)

    def _partition(self, one_way: bool) -> bool:
        client = self.choose(self.world.client_hosts())
        ends = (client, HOST) if self.randomness.integer(0, 1) else (HOST, client)
        self.world.network.partition(*ends, one_way=one_way)
        self.later("partition over", lambda: self.world.network.heal(client, HOST))
        return True

    def slow_network(self) -> bool:
        client = self.choose(self.world.client_hosts())
        ends = (client, HOST) if self.randomness.integer(0, 1) else (HOST, client)
        self.world.network.set_delay(*ends, (1_000, self.randomness.integer(5_000, 100_000)))
        self.later("network fast again", lambda: self.world.network.set_delay(*ends, LINK_DELAY_US))
        return True

    # -- time and administrators ---------------------------------------------------------------------------------------------

    def jump_clock(self) -> bool:
        target_ms = self.randomness.integer(-CLOCK_DIFFERENCE_MS_MAX, CLOCK_DIFFERENCE_MS_MAX)
        self.world.node.clock.jump(target_ms - self._clock_difference_ms)
        self._clock_difference_ms = target_ms
        return True

    def recreate_topic(self) -> bool:
        return self.world.recreate_topic()

    def change_configs(self) -> bool:
        if not self.world.admin.is_idle:
            return False
        topic = self.choose(("orders", "events"))
        name, value = CONFIG_CHANGES[self.randomness.integer(0, len(CONFIG_CHANGES) - 1)]
        self.world.admin.alter(topic, {name: value}, lambda: self.count("config change"))
        return False


CONFIG_CHANGES = (
    ("segment.ms", "20"),
    ("segment.ms", "100000"),
    ("segment.index.bytes", "48"),
    ("segment.index.bytes", "1000"),
    ("index.interval.bytes", "0"),
    ("index.interval.bytes", "2000"),
    ("message.timestamp.type", "LogAppendTime"),
    ("message.timestamp.type", "CreateTime"),
    ("compression.type", "producer"),
    ("file.delete.delay.ms", "0"),
)

# The faults by name. A fault returns whether it struck at once: not every one can at any time, and some strike later.
FAULTS: dict[str, Callable[[Nemesis], bool]] = {
    "kill": Nemesis.kill,
    "power cut": Nemesis.cut_power,
    "power cut in an operation": Nemesis.cut_power_in_an_operation,
    "restart in order": Nemesis.restart_in_order,
    "slow disk": Nemesis.slow_disk,
    "late completions": Nemesis.late_completions,
    "failing sync": Nemesis.failing_sync,
    "failing write": Nemesis.failing_write,
    "failing read": Nemesis.failing_read,
    "failing names": Nemesis.failing_names,
    "full disk": Nemesis.full_disk,
    "cut connection": Nemesis.cut_connection,
    "partition": Nemesis.partition,
    "partition one way": Nemesis.partition_one_way,
    "slow network": Nemesis.slow_network,
    "clock jump": Nemesis.jump_clock,
    "topic made again": Nemesis.recreate_topic,
    "config change": Nemesis.change_configs,
}

# These give the broker work, and other faults a chance to strike in the middle of it, but are not faults themselves.
_NO_FAULTS = frozenset({"config change"})


def count_faults(counts: Mapping[str, int]) -> int:
    return sum(count for name, count in counts.items() if name not in _NO_FAULTS)
