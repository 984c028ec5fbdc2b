"""Tidelog: one durable log, every way to queue.

    from tidelog import Producer, Consumer, Table, Queue, Admin, Worker, Backoff

The classes are loaded on use: a broker that starts does not wait for a client to load. Their types are in ``__init__.pyi``.
"""

import sys
from importlib import import_module

# Its own threads rely on the lock, and so do the libraries below it. Asked of the interpreter and not of its build, because one
# that was built without the lock may run with it.
if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "Tidelog does not run without the global interpreter lock, and this is a free-threaded build of Python "
        f"({sys.executable}): use an ordinary build"
    )

# The one place of the version; the build reads it from here. Not asked of the installed package: that takes 15 ms.
__version__ = "0.1.0"

_MODULES = {
    "Admin": "client.admin",
    "AsyncAdmin": "client.asyncio_admin",
    "AsyncConsumer": "client.asyncio_consumer",
    "AsyncProducer": "client.asyncio_producer",
    "AsyncQueue": "client.asyncio_queue",
    "AsyncTable": "client.asyncio_table",
    "Backoff": "worker.failures",
    "Consumer": "client.consumer",
    "Producer": "client.producer",
    "Queue": "client.queue",
    "Reject": "worker.failures",
    "Retry": "worker.failures",
    "Table": "client.table",
    "TidelogError": "client.errors",
    "Worker": "worker.worker",
}


__all__ = list(_MODULES)


# The packages that users import from; the others are the broker's.
_PACKAGES = ("client", "deadletters", "spark", "testing", "worker")


def __dir__() -> list[str]:
    return sorted({*_MODULES, *_PACKAGES, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
