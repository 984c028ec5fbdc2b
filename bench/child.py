"""Work that needs an interpreter of its own: to be killed, or to have its memory measured. ``python -m bench.child`` runs one.

The task comes as JSON in the argument, the answer goes out as JSON on the last line. A task ends by ``os._exit``, so that only
what it did on purpose is on the disk: to the data directory it looks like a kill.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.batches import SMALL_BATCH_BYTES, batch_of, different_batches, joined, one_record_batch
from bench.workspace import open_broker
from tidelog.log import names
from tidelog.log.append_check import AppendOrigin
from tidelog.log.settings import DirectoryOptions, LogSettings

# New partitions hold their files open until they are synced; this many at a time.
CREATE_AT_ONCE = 1000
NEVER = 1 << 62


def run_task(task: str, path: Path, **arguments: Any) -> dict[str, float]:
    """In a child process; returns what the task answered."""
    request = json.dumps({"task": task, "path": os.fspath(path), "arguments": arguments})
    done = subprocess.run([sys.executable, "-m", "bench.child", request], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the child task {task} failed: {done.stderr.strip()}")
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def fill(path: Path, batch_bytes: int, total_bytes: int) -> dict[str, float]:
    """One partition full of batches, durable, and then killed; 0 ``batch_bytes`` means batches of one small record."""
    settings = LogSettings(segment_bytes=1 << 30)
    broker = open_broker(path, settings, DirectoryOptions(recovery_point_interval_bytes=NEVER))
    log = broker.create("orders", 0, settings)
    batches = different_batches(batch_bytes) if batch_bytes else [one_record_batch(seed) for seed in range(64)]
    data = joined(batches, 1 << 20)
    while log.size < total_bytes:
        log.append_as_leader(data, 0, AppendOrigin.COORDINATOR)
    broker.commit()
    broker.stop_executor()
    return {"bytes": log.size, "offsets": log.log_end_offset}


def recover(path: Path) -> dict[str, float]:
    """Open what a kill left, checking all of it. Leaves it as a kill would, so that it can be done again."""
    (path / names.RECOVERY_POINT_CHECKPOINT).unlink(missing_ok=True)
    start = perf_counter()
    broker = open_broker(path, LogSettings(segment_bytes=1 << 30))
    seconds = perf_counter() - start
    (log,) = broker.data.logs.values()
    return {"seconds": seconds, "offsets": log.log_end_offset}


def create_partitions(path: Path, count: int) -> dict[str, float]:
    """``count`` partitions with a batch each, stopped cleanly."""
    settings = LogSettings()
    batch = batch_of(SMALL_BATCH_BYTES)
    broker = open_broker(path, settings)
    for number in range(count):
        broker.create("orders", number, settings).append_as_leader(batch, 0)
        if not (number + 1) % CREATE_AT_ONCE:
            broker.commit()
    broker.commit()
    broker.stop_executor()
    start = perf_counter()
    broker.data.close()
    return {"close_seconds": perf_counter() - start}


def open_partitions(path: Path) -> dict[str, float]:
    """Open after a clean stop, look at the memory, stop again without having done anything."""
    gc.collect()
    before = resident_bytes()
    start = perf_counter()
    broker = open_broker(path, LogSettings())
    open_seconds = perf_counter() - start
    gc.collect()
    after = resident_bytes()
    assert not broker.problems, broker.problems
    broker.stop_executor()
    start = perf_counter()
    broker.data.close()
    return {"open_seconds": open_seconds, "close_seconds": perf_counter() - start, "bytes": after - before}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


TASKS: dict[str, Callable[..., dict[str, float]]] = {
    "fill": fill,
    "recover": recover,
    "create_partitions": create_partitions,
    "open_partitions": open_partitions,
}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(TASKS[asked["task"]](Path(asked["path"]), **asked["arguments"])), flush=True)
    os._exit(0)
