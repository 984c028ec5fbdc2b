"""What clients saw of a broker that kept crashing, and whether it adds up.

Every value is sent once by the application, so it names itself: producer, partition, number. The log is right when

- what was acknowledged is at the offset that was acknowledged;
- what a reader saw at an offset is there at the end;
- each partition's offsets have no hole, and hold only values that were sent to that partition;
- the first copies of one producer's values stand in the order of sending. Without idempotence a retry may store a value again:
  such duplicates are counted.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Value(NamedTuple):
    producer: int
    partition: int
    number: int

    def encode(self, padding: int) -> bytes:
        return f"{self.producer} {self.partition} {self.number} ".encode().ljust(padding, b".")

    @classmethod
    def decode(cls, data: bytes) -> "Value":
        producer, partition, number, _ = data.split(b" ", 3)
        return cls(int(producer), int(partition), int(number))


class Place(NamedTuple):
    partition: int
    offset: int


@dataclass(slots=True)
class History:
    lock: threading.Lock = field(default_factory=threading.Lock)
    sent: set[Value] = field(default_factory=set)
    acknowledged: dict[Value, Place] = field(default_factory=dict)
    rounds: dict[Value, int] = field(default_factory=dict)
    """In which round a value was acknowledged: where to look when it is lost."""
    read: dict[Place, Value] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    round: int = 0

    def on_sent(self, value: Value) -> None:
        with self.lock:
            self.sent.add(value)

    def on_acknowledged(self, value: Value, place: Place) -> None:
        with self.lock:
            if value in self.acknowledged:
                self.problems.append(f"{value} was acknowledged twice, at {self.acknowledged[value]} and {place}")
            self.acknowledged[value] = place
            self.rounds[value] = self.round

    def on_read(self, place: Place, value: Value) -> None:
        with self.lock:
            before = self.read.setdefault(place, value)
        if before != value:
            self.problem(f"{place} held {before} and later {value}")

    def problem(self, text: str) -> None:
        with self.lock:
            self.problems.append(f"round {self.round}: {text}")

    def check(self, final: dict[Place, Value], partitions: int) -> int:
        """Against all that is in the log at the end; returns how many duplicates there are. Problems go to ``problems``."""
        for value, place in self.acknowledged.items():
            if final.get(place) != value:
                self.problems.append(f"lost: {value}, acknowledged at {place} in round {self.rounds[value]}: {final.get(place)}")
        for place, value in self.read.items():
            if final.get(place) != value:
                self.problems.append(f"vanished: {value}, read at {place}: {final.get(place)}")
        duplicates = 0
        for partition in range(partitions):
            places = sorted(place for place in final if place.partition == partition)
            if [place.offset for place in places] != list(range(len(places))):
                self.problems.append(f"partition {partition} has holes among its {len(places)} offsets")
            duplicates += self._check_order(partition, [final[place] for place in places])
        return duplicates

    def _check_order(self, partition: int, values: Iterable[Value]) -> int:
        newest: dict[int, int] = {}
        seen: set[Value] = set()
        duplicates = 0
        for value in values:
            if value not in self.sent or value.partition != partition:
                self.problems.append(f"nobody sent {value} to partition {partition}")
            elif value in seen:
                duplicates += 1
            elif value.number < newest.get(value.producer, -1):
                self.problems.append(f"out of order: {value} after {newest[value.producer]}")
            else:
                newest[value.producer] = value.number
            seen.add(value)
        return duplicates
