"""Decides what goes wrong in a simulated cluster, and when: a table of fault kinds, drawn from the seed.

A majority of the nodes is left alone at any time: with three nodes one fault of a node is under way at a time. Links between
nodes, and between operators and nodes, may fail at any time.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from simulation.executor import RUN_DELAY_US
from simulation.randomness import SimulatedRandomness

if TYPE_CHECKING:
    from simulation.cluster_world import ClusterWorld
    from simulation.node import SimulatedBroker

INTERVAL_US = (100_000, 900_000)
DOWN_US = (50_000, 4_500_000)
SLOW_US = (5_000, 60_000)


class ClusterNemesis:
    def __init__(
        self,
        world: "ClusterWorld",
        randomness: SimulatedRandomness,
        faults: "Mapping[str, Callable[[ClusterNemesis], bool]] | None" = None,
    ) -> None:
        """``faults`` are those that this world knows."""
        self.world = world
        self.randomness = randomness
        self.counts: dict[str, int] = {}
        self.is_over = False
        self._faults = CLUSTER_FAULTS if faults is None else faults
        self._struck: SimulatedBroker | None = None

    def start(self) -> None:
        self.world.scheduler.schedule(self.randomness.integer(*INTERVAL_US), "nemesis", self._strike)

    def _strike(self) -> None:
        if self.is_over:
            return
        self.start()
        names = list(self._faults)
        name = names[self.randomness.integer(0, len(names) - 1)]
        if self._faults[name](self):
            self.counts[name] = self.counts.get(name, 0) + 1
            self.world.scheduler.record(f"nemesis {name}")

    def heal(self) -> None:
        """End all faults; every node runs again."""
        self.is_over = True
        self.world.network.heal_all()
        for source in self.hosts:
            for destination in self.hosts:
                self.world.network.set_delay(source, destination, self.world.network.delay_us)
        for node in self.world.nodes.values():
            if node.is_paused:
                node.resume()
            node.executor.run_delay_us = RUN_DELAY_US
            if node.is_down:
                node.start_after(0)

    @property
    def hosts(self) -> list[str]:
        return [node.host for node in self.world.nodes.values()]

    def draw_node(self) -> "SimulatedBroker | None":
        """A node that nothing is wrong with, if nothing is wrong with the others."""
        nodes = list(self.world.nodes.values())
        if self._struck is not None or not all(node.is_serving for node in nodes):
            return None
        return nodes[self.randomness.integer(0, len(nodes) - 1)]

    @property
    def is_calm(self) -> bool:
        """Whether no fault of a node is under way."""
        return self._struck is None

    def begin(self, node: "SimulatedBroker") -> None:
        """A fault of a node begins, and ends by itself."""
        self._struck = node

    def end(self) -> None:
        self._struck = None

    def strike_for_a_while(self, node: "SimulatedBroker", end: Callable[[], None]) -> None:
        self._struck = node

        def over() -> None:
            if not self.is_over:
                self._struck = None
                end()

        self.world.scheduler.schedule(self.randomness.integer(*DOWN_US), f"{node.host} is whole again", over)

    def draw_link(self) -> tuple[str, str]:
        first = self.randomness.integer(0, len(self.hosts) - 1)
        second = (first + self.randomness.integer(1, len(self.hosts) - 1)) % len(self.hosts)
        return self.hosts[first], self.hosts[second]


def _kill(nemesis: ClusterNemesis) -> bool:
    node = nemesis.draw_node()
    if node is None:
        return False
    node.kill()
    nemesis.strike_for_a_while(node, lambda: node.start_after(0))
    return True


def _cut_power(nemesis: ClusterNemesis) -> bool:
    node = nemesis.draw_node()
    if node is None:
        return False
    node.cut_power("some" if nemesis.randomness.integer(0, 1) else "none")
    nemesis.strike_for_a_while(node, lambda: node.start_after(0))
    return True


def _stop(nemesis: ClusterNemesis) -> bool:
    node = nemesis.draw_node()
    if node is None:
        return False

    def stopped(error: Exception | None) -> None:
        if error is not None:
            nemesis.world.history.problem("stop failed", f"{node.host}: {error!r}")
        node.start_after(nemesis.randomness.integer(0, 500_000))

    node.stop(stopped)
    return True


def _pause(nemesis: ClusterNemesis) -> bool:
    node = nemesis.draw_node()
    if node is None:
        return False
    network = nemesis.world.network
    others = [*nemesis.hosts, *nemesis.world.client_hosts]
    for other in others:
        network.partition(node.host, other)
    node.pause()

    def go_on() -> None:
        node.resume()
        for other in others:
            network.heal(node.host, other)

    nemesis.strike_for_a_while(node, go_on)
    return True


def _isolate(nemesis: ClusterNemesis) -> bool:
    """Cut a node off from the other nodes, in one direction or both. Its clients still reach it."""
    node = nemesis.draw_node()
    if node is None:
        return False
    network, one_way = nemesis.world.network, nemesis.randomness.integer(0, 2)
    for other in nemesis.hosts:
        if other != node.host:
            source, destination = (node.host, other) if one_way != 1 else (other, node.host)
            network.partition(source, destination, one_way=one_way != 0)

    def heal() -> None:
        for other in nemesis.hosts:
            network.heal(node.host, other)

    nemesis.strike_for_a_while(node, heal)
    return True


def _cut(nemesis: ClusterNemesis) -> bool:
    return nemesis.world.network.cut(*nemesis.draw_link())


def _delay(nemesis: ClusterNemesis) -> bool:
    source, destination = nemesis.draw_link()
    network = nemesis.world.network
    network.set_delay(source, destination, SLOW_US)
    nemesis.world.scheduler.schedule(
        nemesis.randomness.integer(*DOWN_US),
        "the link is quick again",
        lambda: network.set_delay(source, destination, network.delay_us),
    )
    return True


def _disconnect_operator(nemesis: ClusterNemesis) -> bool:
    operators = nemesis.world.operators
    index = nemesis.randomness.integer(0, len(operators) - 1)
    return nemesis.world.network.cut(operators[index].host, nemesis.hosts[index])


CLUSTER_FAULTS: Mapping[str, Callable[[ClusterNemesis], bool]] = {
    "kill": _kill,
    "power cut": _cut_power,
    "stop": _stop,
    "pause": _pause,
    "isolate": _isolate,
    "cut": _cut,
    "delay": _delay,
    "disconnect operator": _disconnect_operator,
}
