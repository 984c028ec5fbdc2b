"""Telling the operator which groups are about to lose records, or have lost some, without filling the log.

A group is named at once when it is first seen to be in danger (``group_will_lose_records``), and while it stays so after ten
minutes, twenty, forty, up to once a day: one that nobody reads with any more would otherwise be named for as long as its offsets
are kept. A group that the log start has passed (``group_has_lost_records``) is named once, and again only if that happens after
it was well.
"""

from collections.abc import Callable, Mapping

from tidelog.groups.lag import GroupPartitionLag

REPEAT_MS_MIN = 10 * 60_000
REPEAT_MS_MAX = 24 * 60 * 60_000
# In one walk; the others come with the next one.
REPORTS_MAX = 20

Report = Callable[[str, dict[str, object]], None]
FiguresByGroup = Mapping[str, list[GroupPartitionLag]]


class LagWarnings:
    __slots__ = ("_lost", "_repeats", "_report", "reported")

    def __init__(self, report: Report) -> None:
        self._report = report
        # By group: when it may be named again, and how long it is waited for after that.
        self._repeats: dict[str, tuple[int, int]] = {}
        self._lost: dict[str, None] = {}
        self.reported = 0

    def walked(self, losing: FiguresByGroup, lost: FiguresByGroup, monotonic_ms: int) -> None:
        """A walk has ended: which groups it found in danger, and which behind the log start."""
        left = REPORTS_MAX
        repeats: dict[str, tuple[int, int]] = {}
        for group_id, figures in losing.items():
            due_ms, wait_ms = self._repeats.get(group_id, (monotonic_ms, REPEAT_MS_MIN))
            if due_ms <= monotonic_ms and left:
                left -= 1
                self._say("group_will_lose_records", group_id, min(figures, key=_deletion_seconds), len(figures))
                due_ms, wait_ms = monotonic_ms + wait_ms, min(2 * wait_ms, REPEAT_MS_MAX)
            repeats[group_id] = due_ms, wait_ms
        self._repeats = repeats
        still_lost: dict[str, None] = {}
        for group_id, figures in lost.items():
            if group_id not in self._lost:
                if not left:
                    continue
                left -= 1
                self._say("group_has_lost_records", group_id, max(figures, key=_lost_messages), len(figures))
            still_lost[group_id] = None
        self._lost = still_lost

    def _say(self, event: str, group_id: str, worst: GroupPartitionLag, partition_count: int) -> None:
        self.reported += 1
        facts: dict[str, object] = {
            "group": group_id,
            "partitions": partition_count,
            "worst": f"{worst.topic}-{worst.partition}",
            "committed_offset": worst.committed_offset,
            "log_start_offset": worst.log_start_offset,
            "lag_messages": worst.lag_messages,
            "lag_seconds": worst.lag_seconds,
        }
        if event == "group_will_lose_records":
            facts["deletion_seconds"] = worst.deletion_seconds
        else:
            facts["lost_messages"] = worst.lost_messages
        self._report(event, facts)


def _deletion_seconds(figures: GroupPartitionLag) -> float:
    return figures.deletion_seconds or 0.0


def _lost_messages(figures: GroupPartitionLag) -> int:
    return figures.lost_messages
