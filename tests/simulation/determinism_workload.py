"""A small workload on all simulated ports; prints the hash of its trace and how many disk operations it took.

Two brokers send each other messages and append what they get to files, which they sync through the executor; links are cut and
partitioned, and from time to time one of them crashes and goes on from a crash image.
"""

import sys
import zlib

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.names import walk
from simulation.network import SimulatedNetwork
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tidelog.ports.executor import Completion
from tidelog.ports.network import Connection

ROUNDS = 200
NAMES = ("alpha", "beta")
PORT = 9092


class Broker:
    def __init__(self, name: str, scheduler: Scheduler, network: SimulatedNetwork, randomness: SimulatedRandomness) -> None:
        self.name = name
        self.scheduler = scheduler
        self.network = network
        self.randomness = randomness.fork(name)
        self.clock = SimulatedClock(scheduler)
        self.disk = SimulatedDisk(self.clock)
        self.executor = SimulatedExecutor(scheduler, self.randomness.fork("executor"), self.disk, self.clock)
        self.disk.on_operation = lambda operation, path: scheduler.record(f"{name} {operation} {path}")
        self.network.host(name).listen(name, PORT, self)
        # A set of words on purpose: its order changes with the hash seed, and nothing here may follow it.
        self.topics = {f"topic-{letter}" for letter in "abcdefgh"}

    def opened(self, connection: Connection) -> None:
        self.scheduler.record(f"{self.name} opened {connection.peer}")

    def closed(self, connection: Connection, reason: str) -> None:
        self.scheduler.record(f"{self.name} closed {reason}")

    def received(self, connection: Connection, data: bytes) -> None:
        topic = sorted(self.topics)[self.randomness.integer(0, len(self.topics) - 1)]
        file = self.disk.open(f"/{topic}.log", "create")
        file.write(file.size(), [data])
        self.executor.submit(file.sync, self.synced)
        if self.randomness.fraction() < 0.3:
            self.executor.submit(lambda: self.disk.sync_directory("/"), self.synced)

    def synced(self, completion: Completion) -> None:
        self.scheduler.record(f"{self.name} synced {completion.error}")

    def crash(self) -> None:
        self.network.crash(self.name)
        self.executor.crash()
        self.disk.crash(self.randomness)
        for path, inode in walk(self.disk.root):
            self.scheduler.record(f"{self.name} found {path} {len(inode.data)} {zlib.crc32(inode.data):08x}")
        self.network.host(self.name).listen(self.name, PORT, self)


def main() -> None:
    randomness = SimulatedRandomness(int(sys.argv[1]))
    scheduler = Scheduler()
    network = SimulatedNetwork(scheduler, randomness.fork("network"))
    brokers = [Broker(name, scheduler, network, randomness) for name in NAMES]
    for _ in range(ROUNDS):
        sender = brokers[randomness.integer(0, 1)]
        receiver = brokers[randomness.integer(0, 1)]
        network.host(sender.name).connect(receiver.name, PORT, sender).send([randomness.token(randomness.integer(1, 9_000))])
        fault = randomness.integer(0, 19)
        if fault == 0:
            receiver.crash()
        elif fault == 1:
            network.cut(*NAMES)
        elif fault == 2:
            network.partition(*NAMES, one_way=randomness.fraction() < 0.5)
        elif fault == 3:
            network.heal_all()
        elif fault == 4:
            receiver.clock.jump(randomness.integer(-5_000, 5_000))
        scheduler.run_for(randomness.integer(0, 5_000))
    network.heal_all()
    scheduler.run_all()
    print(scheduler.trace_hash(), sum(broker.disk.operation_count for broker in brokers))


if __name__ == "__main__":
    main()
