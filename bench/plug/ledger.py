"""What servers acknowledged: kept outside of them, and compared after each cut with what they still have.

An entry is written when the client hears the acknowledgement. A cut takes the lengths of all lists *before* its picture: what is
in them was acknowledged before, and must be in the picture. Entries that came later belong to a life that did not happen, and are
dropped. An entry that was lost is counted once and then dropped too.
"""

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Entry(NamedTuple):
    place: Hashable
    """Where the server said that it is: a partition and an offset, a sequence number, an id."""
    value: object


@dataclass(slots=True)
class Account:
    """The sum over all cuts for one kind of message."""

    acknowledged: int = 0
    lost: int = 0
    cuts_with_loss: int = 0


# True when the server still has the entry.
Holds = Callable[[Entry], bool]


@dataclass(slots=True)
class Ledger:
    accounts: dict[str, Account] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """What is wrong beyond a loss: a message that was aborted and is there, a failure that no cut explains."""
    _entries: dict[str, list[Entry]] = field(default_factory=dict)
    # How many entries of each kind were there at the last cut and survived it.
    _counted: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acknowledge(self, kind: str, place: Hashable, value: object) -> None:
        with self._lock:
            self._entries.setdefault(kind, []).append(Entry(place, value))

    def lengths(self) -> dict[str, int]:
        with self._lock:
            return {kind: len(entries) for kind, entries in self._entries.items()}

    def new_entries(self) -> int:
        """Acknowledged since the last cut."""
        return sum(self.lengths().values()) - sum(self._counted.values())

    def settle(self, lengths: Mapping[str, int], holds: Mapping[str, Holds]) -> int:
        """Compare with what the server has after the cut that began at ``lengths``. Returns how many entries it has lost."""
        lost_now = 0
        with self._lock:
            for kind, entries in self._entries.items():
                account = self.accounts.setdefault(kind, Account())
                due = entries[: lengths.get(kind, 0)]
                kept = [entry for entry in due if holds[kind](entry)]
                lost = len(due) - len(kept)
                account.acknowledged += len(due) - self._counted.get(kind, 0)
                account.lost += lost
                account.cuts_with_loss += lost > 0
                lost_now += lost
                self._entries[kind] = kept
                self._counted[kind] = len(kept)
        return lost_now

    def problem(self, text: str) -> None:
        with self._lock:
            self.problems.append(text)


def lost_all(ledger: Ledger) -> dict[str, Holds]:
    """For a server that did not start again: nothing of what it acknowledged is to be had from it."""
    return dict.fromkeys(ledger.lengths(), lambda entry: False)  # noqa: ARG005 - whatever it is, it is lost
