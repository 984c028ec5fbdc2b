"""The base of every simulated world: a broker on simulated ports, a network, an administrator, and the faults.

A world adds clients, and says when its phases end. A phase that does not end is a failure of its own (``NoProgress``).
"""

from collections.abc import Callable, Mapping

from simulation.admin import Admin
from simulation.checker import Violation, check
from simulation.client import Environment
from simulation.disk import Crashed, Keep
from simulation.history import History, TopicLife
from simulation.nemesis import Nemesis, count_faults
from simulation.network import SimulatedNetwork
from simulation.node import SimulatedBroker
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import EVENTS_MAX, Scheduler

# This is far beyond what any run needs: a run that gets here makes no progress.
PHASE_US_MAX = 60_000_000

# These are some batches, or less than is written during a sync.
RETENTION_BYTES = ("12000", "1500")

# Name, partitions, settings, and whether retention deletes from it.
TopicPlan = tuple[str, int, dict[str, str], bool]


class NoProgress(Exception):
    """A phase did not end."""


class Stage:
    """A world sets ``nemesis`` and ``hosts`` when it has its clients."""

    nemesis: Nemesis

    def __init__(self, seed: int, topic_plans: tuple[TopicPlan, ...], settings: Mapping[str, str]) -> None:
        self.seed = seed
        self.topic_plans = topic_plans
        self.randomness = SimulatedRandomness(seed)
        self.scheduler = Scheduler()
        self.history = History()
        self.network = SimulatedNetwork(self.scheduler, self.randomness.fork("network"))
        draw = self.randomness.fork("settings").integer
        unchecked = {"segment.bytes": draw(1_500, 30_000), "tidelog.recovery.point.interval.bytes": draw(1_000, 60_000)}
        all_settings = {**settings, "tidelog.group.commit.syncfs.files.min": str((1, 4, 100)[draw(0, 2)])}
        self._retention = {"retention.bytes": RETENTION_BYTES[draw(0, len(RETENTION_BYTES) - 1)]}
        self.node = SimulatedBroker(
            self.scheduler, self.network, self.randomness.fork("broker"), all_settings, unchecked, self._on_report
        )
        self.environment = Environment(self.scheduler, self.network, self.history)
        self.admin = Admin(self.environment, self.randomness.fork("admin"))
        self.topics: dict[str, TopicLife] = {}
        self.hosts: list[str] = []

    # -- what a world adds ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises NoProgress when a phase does not end; any other problem is in the history."""
        raise NotImplementedError

    @property
    def operations(self) -> int:
        """The number of acknowledged operations of the kind that this world is about."""
        return self.history.acked

    def check(self) -> list[Violation]:
        """Return everything that is wrong with what happened."""
        return check(self.history)

    # -- for clients and the nemesis -----------------------------------------------------------------------------------------

    def client_hosts(self) -> list[str]:
        return self.hosts

    def live_topics(self) -> list[TopicLife]:
        return list(self.topics.values())

    @property
    def fault_count(self) -> int:
        return count_faults(self.nemesis.counts)

    # -- phases --------------------------------------------------------------------------------------------------------------

    def set_up(self) -> None:
        self.node.start()
        self.admin.start()
        for name, partitions, configs, has_retention in self.topic_plans:
            retention = self._retention if has_retention else {}
            self.admin.create(name, partitions, configs | retention, self.note_created, has_retention)
        self.run_until("setup", lambda: self.admin.is_idle and len(self.topics) == len(self.topic_plans))

    def heal_broker(self) -> None:
        """End all faults, mostly with one more power cut; afterwards the broker serves."""
        if self.nemesis.has_disk_failed:
            # What a failed disk took offline, perhaps the metadata, returns only with a new process.
            self.node.kill()
            self.node.start_after(0)
        self.run_until("healing", lambda: self.node.is_serving and self.admin.is_idle)
        ending = self.randomness.fork("ending").integer(0, 2)
        if ending:
            self.cut_power("some" if ending == 1 else "none")
            self.node.start_after(0)
        self.run_until("restart", lambda: self.node.is_serving)

    def run_until(self, phase: str, condition: Callable[[], bool], duration_us_max: int = PHASE_US_MAX) -> None:
        scheduler = self.scheduler
        scheduler.record(f"until {phase}")
        deadline_us = scheduler.now_us + duration_us_max
        for _ in range(EVENTS_MAX):
            if condition():
                return
            if scheduler.now_us > deadline_us:
                raise NoProgress(f"{phase} did not end within {duration_us_max / 1_000_000:g} s")
            try:
                has_more = scheduler.step()
            except Crashed:
                self.nemesis.died_in_an_operation()
            else:
                if not has_more:
                    raise NoProgress(f"{phase} did not end, and nothing is left to happen")
        raise NoProgress(f"{phase} did not end within {EVENTS_MAX} events")

    # -- what the nemesis does with more than one part -----------------------------------------------------------------------

    def cut_power(self, keep: Keep) -> None:
        self.history.lost_unsynced()
        self.node.cut_power(keep)

    def recreate_topic(self) -> bool:
        """Recreate a topic. Returns whether there is one that may be deleted."""
        return False

    # -- what is heard -------------------------------------------------------------------------------------------------------

    def note_created(self, life: TopicLife) -> None:
        self.topics[life.name] = life

    def _on_report(self, event: str, facts: dict[str, object]) -> None:
        self.scheduler.record(f"report {event} {facts}")
        may_fail = self.nemesis.is_disk_faulty or self.nemesis.has_disk_failed
        if event == "unexpected_error":
            self.history.problem("unexpected error in the broker", f"{facts}")
        elif event == "start_failed" and not may_fail:
            self.history.problem("start failed", f"{facts['error']}")
        elif event == "starting":
            self.nemesis.has_disk_failed = False
        elif event == "started" and facts["offline"] and not may_fail:
            self.history.problem("offline after a start", f"{facts['offline']}")
        elif event == "log_offline" and not may_fail:
            self.history.problem("log went offline", f"{facts}")
