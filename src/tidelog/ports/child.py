"""The program that runs in a child process: ``python -m tidelog.ports.child``.

It reads one line of JSON from standard input, ``{"module", "function", "arguments"}``, runs that function on the real disk and
clock, and prints one line of JSON, ``{"result": ...}`` or ``{"error": ...}``. Only module-level functions of this package run.

A child never outlives its parent. The kernel kills it when the thread that started it ends, where the kernel can; and it exits
when its standard input ends, which covers every system, and the moment before the kernel was asked. It runs at low priority: its
work can wait, the broker's cannot.
"""

import importlib
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

from tidelog.ports import system
from tidelog.ports.clock import RealClock
from tidelog.ports.real_disk import RealDisk

# Windows has no SIGKILL.
_KILL: int = getattr(signal, "SIGKILL", signal.SIGTERM)
PACKAGE = "tidelog."
NICENESS = 10
# The maximum length of an error that is sent back.
ERROR_CHARACTERS_MAX = 4000


def main() -> None:
    # What the function prints must not end up in the middle of the result.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    end_with_parent()
    system.lower_priority(NICENESS)
    request = sys.stdin.buffer.readline()
    threading.Thread(target=_watch_parent, daemon=True).start()
    outcome = _outcome(request)
    output.write(outcome + "\n")
    output.flush()
    # Not a return: the interpreter's shutdown would wait for the thread that reads standard input.
    os._exit(0)


def end_with_parent(number: int = _KILL) -> None:
    """Have the kernel send this process a signal when the thread that started it ends, where a kernel can."""
    system.signal_at_end_of_parent(number)


def _watch_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)


def _outcome(request: bytes) -> str:
    try:
        return json.dumps({"result": run(json.loads(request))})
    except Exception:
        return json.dumps({"error": traceback.format_exc()[-ERROR_CHARACTERS_MAX:].strip()})


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run the function that a request names. Raises ValueError when it names something else."""
    module_name, function_name = request["module"], request["function"]
    if not module_name.startswith(PACKAGE) or not function_name.isidentifier():
        raise ValueError(f"{module_name}.{function_name} is not a module-level function of {PACKAGE.rstrip('.')}")
    function = getattr(importlib.import_module(module_name), function_name)
    if getattr(function, "__module__", None) != module_name:
        raise ValueError(f"{module_name}.{function_name} is not defined there")
    return dict(function(RealDisk(), RealClock(), request["arguments"]))


if __name__ == "__main__":
    main()
