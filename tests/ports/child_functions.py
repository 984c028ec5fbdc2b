"""Functions for child processes in tests.

Only functions of the package run in a child, so this file is put into the child's module table under the package's name
before the child's own main runs; ``COMMAND`` starts that.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

from tidelog.ports import child
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk

MODULE = "tidelog.child_functions"
COMMAND = (sys.executable, __file__)


def copy_file(disk: Disk, clock: Clock, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    data = disk.open(arguments["source"], "read").read(0, 1 << 20)
    target = disk.open(arguments["target"], "create")
    target.write(0, [data])
    target.sync()
    return {"bytes": len(data), "clock": clock.now_ms() > 0}


def fail(disk: Disk, clock: Clock, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    raise LookupError(arguments["words"])


def die(disk: Disk, clock: Clock, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """End without a result, after more words than anyone wants to keep."""
    sys.stderr.write("noise " * 100_000 + "last words")
    sys.stderr.flush()
    os._exit(7)


def print_much(disk: Disk, clock: Clock, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Print to standard output, which must not get into the result."""
    for _ in range(1_000):
        print("chatter" * 20)
    return {"niceness": os.nice(0), "echo": arguments["echo"]}


def hang(disk: Disk, clock: Clock, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Say who one is, then never end."""
    disk.open(arguments["path"], "create").write(0, [str(os.getpid()).encode()])
    while True:
        os.read(os.pipe()[0], 1)


for _function in (copy_file, fail, die, print_much, hang):
    _function.__module__ = MODULE

if __name__ == "__main__":
    sys.modules[MODULE] = sys.modules["__main__"]
    child.main()
