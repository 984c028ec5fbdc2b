"""``from tidelog import Producer, ...``: every name loads, none is loaded before, and type checkers see the same ones."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tidelog

STUB = Path(tidelog.__file__).with_suffix(".pyi")
# Read from the source: to a type checker the stub is all there is.
MODULES: dict[str, str] = vars(tidelog)["_MODULES"]


@pytest.mark.parametrize("name", MODULES)
def test_a_name_loads(name: str) -> None:
    assert getattr(tidelog, name).__name__ == name


def test_other_names_are_told() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Cluster'"):
        tidelog.Cluster  # type: ignore[attr-defined]  # noqa: B018 - that is what is tested


def test_the_public_classes_are_shown_and_a_star_imports_them() -> None:
    shown = {name for name in dir(tidelog) if not name.startswith("_")}
    assert shown == {*MODULES, "client", "deadletters", "spark", "testing", "worker"}
    code = "from tidelog import *; print(Producer.__name__, Retry.__name__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "Producer Retry\n"


def test_type_checkers_see_the_same_names() -> None:
    imports = [node for node in ast.walk(ast.parse(STUB.read_text())) if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: (node.module or "").removeprefix("tidelog.") for node in imports for alias in node.names}
    assert seen == MODULES


@pytest.mark.parametrize("imported", ["tidelog", "tidelog.client.producer", "tidelog.cli.main"])
def test_an_interpreter_without_its_lock_is_refused(imported: str) -> None:
    code = f"import sys; sys._is_gil_enabled = lambda: False; import {imported}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: Tidelog does not run without the global interpreter lock")
    assert sys.executable in last


def test_nothing_is_loaded_by_the_package_itself() -> None:
    code = "import sys, tidelog; print([name for name in sys.modules if 'kafka' in name or name.startswith('tidelog.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
