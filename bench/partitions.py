"""Many partitions: opening them after a clean stop, stopping again, and the memory that each takes while nothing happens."""

from bench.child import run_task
from bench.measure import Figure, Row, Target
from bench.workspace import Workspace

ROUNDS = 3
MEMORY_KILOBYTES_MAX = 10.0


def run(workspace: Workspace) -> list[Row]:
    rows = []
    for count, open_seconds_max in ((1_000, 1.0), (10_000, 10.0)):
        count = workspace.scaled(count, 10)
        with workspace.directory("partitions") as path:
            created = run_task("create_partitions", path, count=count)
            answers = [run_task("open_partitions", path) for _ in range(workspace.rounds(ROUNDS))]
        opened = Figure.of([answer["open_seconds"] for answer in answers])
        closed = Figure.of([answer["close_seconds"] for answer in answers])
        rows.append(Row(f"open {count} partitions after a clean stop", opened, "s", target=Target("<=", open_seconds_max)))
        rows.append(Row(f"close {count} partitions that were only opened", closed, "s"))
        rows.append(Row(f"close {count} partitions that were written", Figure(created["close_seconds"], 0.0), "s"))
    # Of the larger number: what an interpreter takes at first in one piece then counts for less.
    memory = Figure.of([answer["bytes"] / count / 1024 for answer in answers])
    rows.append(Row("memory per idle partition", memory, "KB", target=Target("<=", MEMORY_KILOBYTES_MAX)))
    return rows
