"""``python -m bench``: the storage engine and the broker, one table, ratios against the raw disk in the same run.

Targets are printed and judged, never enforced: a busy machine falls short without any fault in the code.
"""

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from bench import (
    append,
    broker,
    commit,
    compaction,
    groups,
    interference,
    partitions,
    queues,
    raw_requests,
    read,
    records,
    recovery,
    recovery_point,
    toolkit,
    toolkit_worker,
    toolkit_worker_memory,
    transactions,
    validation,
)
from bench.measure import Row
from bench.table import format_rows, to_json
from bench.workspace import NotEnoughRoom, Workspace, workspace

BENCHMARKS: dict[str, Callable[[Workspace], list[Row]]] = {
    "append": append.run,
    "commit": commit.run,
    "read": read.run,
    "partitions": partitions.run,
    "recovery": recovery.run,
    "recovery-point": recovery_point.run,
    "compaction": compaction.run,
    "records": records.run,
    "validation": validation.run,
    "broker-start": broker.start,
    "broker-requests": broker.requests,
    "broker-messages": broker.messages,
    "broker-fetches": raw_requests.fetches,
    "group-rebalances": groups.rebalances,
    "group-commits": groups.commits,
    "group-heartbeats": raw_requests.heartbeats,
    "group-loading": groups.loading,
    "queue-engine": queues.engine,
    "transaction-cost": transactions.cost,
    "transaction-rate": transactions.rate,
    "idempotence": transactions.idempotence,
    "producer-ids": transactions.producer_ids,
    "idle-consumers": interference.idle_consumers,
    "cold-history": interference.cold_history,
    "compaction-latency": interference.compaction,
    "toolkit-producer": toolkit.producer,
    "toolkit-consumer": toolkit.consumer,
    "toolkit-memory": toolkit.memory,
    "toolkit-worker": toolkit_worker.messages,
    "toolkit-worker-waiting": toolkit_worker.waiting,
    "toolkit-worker-memory": toolkit_worker_memory.run,
}
DEFAULT_DIRECTORY = Path("build/bench")


def main() -> int:
    arguments = _parse()
    rows: list[Row] = []
    start = perf_counter()
    try:
        with workspace(arguments.directory, arguments.quick, arguments.minutes) as place:
            _say(f"{_machine()}; files in {arguments.directory}, {shutil.disk_usage(place.path).free / 2**30:.0f} GiB free")
            for name in arguments.only or BENCHMARKS:
                began = perf_counter()
                rows += BENCHMARKS[name](place)
                _say(f"  {name}: {perf_counter() - began:.0f} s")
    except NotEnoughRoom as error:
        _say(str(error))
        return 1
    if arguments.quick:
        rows = [replace(row, target=None) for row in rows]
    if arguments.json:
        print(to_json(rows))
        return 0
    print("\n".join(format_rows(rows)))
    met, judged = sum(row.verdict == "ok" for row in rows), sum(row.target is not None for row in rows)
    print(
        f"\nMedians of rounds that alternate; ± is half the distance between the quartiles. Load of the machine at the end: "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores. {perf_counter() - start:.0f} s. {met} of {judged} targets met."
    )
    if arguments.quick:
        print("--quick: sizes are a small fraction of the real ones and the figures mean nothing, so no target is judged.")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure the storage engine against the raw disk, and the broker."
    )
    parser.add_argument("--only", metavar="NAME", action="append", choices=BENCHMARKS, help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument("--directory", type=Path, default=DEFAULT_DIRECTORY, help="where to write; about 5 GB at the peak")
    parser.add_argument("--minutes", type=float, default=1.0, help="of what runs long: toolkit-worker-memory (default: 1)")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    return parser.parse_args()


def _machine() -> str:
    return f"Python {platform.python_version()}, {platform.system()} {platform.release()}, {os.cpu_count()} cores"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
