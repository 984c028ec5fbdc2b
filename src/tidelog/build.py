"""Which of the two builds runs: pure Python, or hot modules that mypyc has compiled from the same source."""

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

# Every compiled build has this module compiled.
_COMPILED_MODULE = "tidelog.wire.frames"


def build_name() -> str:
    spec = find_spec(_COMPILED_MODULE)
    origin = "" if spec is None else spec.origin or ""
    return "compiled" if origin.endswith(tuple(EXTENSION_SUFFIXES)) else "pure Python"
