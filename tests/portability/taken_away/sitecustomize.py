"""Takes away what other systems do not have, in every Python process that finds this file on its path: TIDELOG_TEST_WITHOUT names
the calls. Python imports this module by its name, before anything else."""

import os
import sys
from typing import Any

_OF_OS = {
    "fdatasync": ("fdatasync",),
    "gathered": ("pwritev", "preadv"),
    "nowait": ("RWF_NOWAIT",),
    "sendfile": ("sendfile",),
    "fadvise": ("posix_fadvise",),
    "nice": ("nice",),
}
_OF_LIBC = {"syncfs": "syncfs", "prctl": "prctl"}
_MODULES = {
    "uvloop": ("uvloop",),
    "resource": ("resource",),
    "posix": ("fcntl", "resource", "uvloop", "pwd", "grp", "termios", "tty", "pty"),
}

for _name in filter(None, os.environ.get("TIDELOG_TEST_WITHOUT", "").split(",")):
    for _call in _OF_OS.get(_name, ()):
        if hasattr(os, _call):
            delattr(os, _call)
    for _module in _MODULES.get(_name, ()):
        sys.modules[_module] = None  # type: ignore[assignment]  # an import of it fails, as where it does not exist
    if _name in _OF_LIBC:
        import ctypes

        # A library is asked for a call once, as its attribute, and one that is missing is an AttributeError.
        def _missing(self: Any, asked: str, gone: str = _OF_LIBC[_name], before: Any = ctypes.CDLL.__getattr__) -> Any:
            if asked == gone:
                raise AttributeError(asked)
            return before(self, asked)

        setattr(ctypes.CDLL, "__getattr__", _missing)  # noqa: B010 - mypy does not let a method be replaced
    if _name == "linux":
        # No syncfs, no prctl, and no sendfile with Linux's arguments.
        _fields = os.uname_result(("Darwin", *os.uname()[1:]))
        os.uname = lambda fields=_fields: fields  # type: ignore[misc]  # a test double of one line
