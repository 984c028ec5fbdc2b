"""The calls that not every operating system has, each with a portable version beside it.

What is here is decided once, at import, by asking whether the call exists; nothing else in the package asks which system it runs
on. The portable versions keep every promise and give up speed only:

| call | where it is missing | what happens instead |
|---|---|---|
| ``fdatasync`` | macOS, Windows | ``F_FULLFSYNC`` on macOS, whose ``fsync`` does not reach the disk; else ``fsync`` |
| ``syncfs`` | all but Linux | refused, and the caller syncs file by file |
| ``pwritev``, ``preadv`` | Windows, older macOS | one ``pwrite`` for each buffer, ``pread`` and a copy |
| ``RWF_NOWAIT`` | all but Linux | a range counts as cached, as on a file system that cannot tell |
| ``sendfile`` | Windows; other arguments on macOS | read and write |
| ``posix_fadvise`` | macOS, Windows | no advice |
| ``prctl`` | all but Linux | a child notices the end of its parent by its standard input |
| uvloop | Windows, or not installed | asyncio's own loop |
| ``flock`` | Windows | ``msvcrt.locking`` |
| ``resource``, ``/proc`` | Windows; macOS | no limit is known, and no such metric |
"""

import asyncio
import errno
import importlib
import os
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any

IS_LINUX = hasattr(os, "uname") and os.uname().sysname == "Linux"
COPY_BYTES = 256 * 1024


def _optional(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_fcntl: Any = _optional("fcntl")
_resource: Any = _optional("resource")
_uvloop: Any = _optional("uvloop")

O_CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)
O_DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
# Windows translates line ends unless it is told that a file is binary.
O_BINARY: int = getattr(os, "O_BINARY", 0)


# -- durability ------------------------------------------------------------------------------------------------------------------


def _choose_sync() -> Callable[[int], object]:
    full = getattr(_fcntl, "F_FULLFSYNC", None)
    if full is not None:
        return lambda descriptor: _fcntl.fcntl(descriptor, full)
    return getattr(os, "fdatasync", os.fsync)


sync_data = _choose_sync()
"""Wait until the bytes of a file are on the disk itself."""


def sync_file_system(descriptor: int) -> None:
    """``syncfs``: everything that was written to the file system is on disk. OSError with ENOSYS where there is no such call, or
    where its success would prove nothing: Linux reports write-back errors through it since 5.8."""
    call = _find_syncfs()
    if call is None:
        raise OSError(errno.ENOSYS, "there is no syncfs here that reports write-back errors")
    call(descriptor)


@cache
def _find_syncfs() -> Callable[[int], None] | None:
    if not IS_LINUX or not _is_since((5, 8), os.uname().release):
        return None
    import ctypes

    function = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if function is None:
        return None

    def call(descriptor: int) -> None:
        if function(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    return call


def _is_since(version: tuple[int, int], release: str) -> bool:
    major, minor = release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)) or 0)) >= version


# -- reading and writing ---------------------------------------------------------------------------------------------------------


def _write_one_by_one(descriptor: int, buffers: Sequence[Any], position: int) -> int:
    """``pwritev`` from ``pwrite``: stops at the first short write, as a gathered write may."""
    total = 0
    for buffer in buffers:
        count = os.pwrite(descriptor, buffer, position + total)
        total += count
        if count < len(buffer):
            break
    return total


def _read_and_copy(descriptor: int, buffers: Sequence[Any], position: int) -> int:
    """``preadv`` from ``pread``."""
    total = 0
    for buffer in buffers:
        data = os.pread(descriptor, len(buffer), position + total)
        memoryview(buffer)[: len(data)] = data
        total += len(data)
        if len(data) < len(buffer):
            break
    return total


def _copy_to_socket(out: int, descriptor: int, position: int, count: int) -> int:
    """``sendfile`` by way of this process's memory. Returns 0 at the end of the file."""
    data = os.pread(descriptor, min(count, COPY_BYTES), position)
    return os.write(out, data) if data else 0


write_gathered: Callable[[int, Sequence[Any], int], int] = getattr(os, "pwritev", _write_one_by_one)
read_into: Callable[[int, Sequence[Any], int], int] = getattr(os, "preadv", _read_and_copy)
# The arguments of other systems' calls differ, and the copy is fast enough for a developer's machine.
send_file: Callable[[int, int, int, int], int] = getattr(os, "sendfile", _copy_to_socket) if IS_LINUX else _copy_to_socket


def _read_without_knowing(_descriptor: int, _buffers: Sequence[Any], _position: int) -> int:
    raise OSError(errno.EOPNOTSUPP, "this system does not say what is in the page cache")


def _choose_read_cached() -> Callable[[int, Sequence[Any], int], int]:
    flag = getattr(os, "RWF_NOWAIT", None)
    preadv = getattr(os, "preadv", None)
    if flag is None or preadv is None:
        return _read_without_knowing
    return lambda descriptor, buffers, position: preadv(descriptor, buffers, position, flag)


read_cached_into = _choose_read_cached()
"""Read what is in the page cache. BlockingIOError if it is not; OSError with EOPNOTSUPP if nobody knows."""


PROBE_STEP_BYTES = 128 * 1024
_probe_buffers = [bytearray(1)]


def is_cached(descriptor: int, position: int, length: int) -> bool:
    """Whether a range is in the page cache, as far as a few probes tell: the kernel reads ahead at least ``PROBE_STEP_BYTES``,
    and evicts in order. A range counts as cached where nobody knows."""
    probe = read_cached_into
    buffers = _probe_buffers
    try:
        probe(descriptor, buffers, position)
        if length > 1:
            for offset in range(PROBE_STEP_BYTES, length, PROBE_STEP_BYTES):
                probe(descriptor, buffers, position + offset)
            probe(descriptor, buffers, position + length - 1)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
    return True


def will_need(descriptor: int, position: int, length: int) -> None:
    """Have the disk read ahead, where that can be asked for."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None:
        advise(descriptor, position, length, os.POSIX_FADV_WILLNEED)


def drop_cached(descriptor: int) -> None:
    """Forget the cached pages of a file, where that can be asked for."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None:
        advise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


# -- processes -------------------------------------------------------------------------------------------------------------------


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, which is about twice as fast, where it is installed."""
    loop: asyncio.AbstractEventLoop = asyncio.new_event_loop() if _uvloop is None else _uvloop.new_event_loop()
    return loop


def lock_exclusively(descriptor: int) -> None:
    """Lock a file for as long as it is open. OSError if somebody else has it."""
    if _fcntl is not None:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        return
    msvcrt: Any = importlib.import_module("msvcrt")
    msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)


# Linux's number for "send me a signal when my parent dies".
_PR_SET_PDEATHSIG = 1


def signal_at_end_of_parent(number: int) -> bool:
    """Have the kernel send this process a signal when the thread that started it ends. Returns False where no kernel does."""
    if not IS_LINUX:
        return False
    import ctypes

    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if prctl is None:
        return False
    if prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return True


def lower_priority(niceness: int) -> None:
    nice = getattr(os, "nice", None)
    if nice is not None:
        nice(niceness)


def disk_bytes(path: str) -> tuple[int, int]:
    """The size of the file system, and how much of it is free."""
    usage = shutil.disk_usage(path)
    return usage.total, usage.free


def descriptor_limit() -> int | None:
    """How many files this process may open; None if there is no limit that could be known."""
    if _resource is None:
        return None
    soft: int = _resource.getrlimit(_resource.RLIMIT_NOFILE)[0]
    return None if soft == _resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Raise the limit as far as the system allows."""
    if _resource is None:
        return
    soft, hard = _resource.getrlimit(_resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            _resource.setrlimit(_resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            # macOS calls its limit infinite and refuses to set it.
            return


def page_bytes() -> int | None:
    """The size of a page of memory, where memory is counted in pages."""
    return None if _resource is None else int(_resource.getpagesize())
