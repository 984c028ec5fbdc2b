"""What the compiled build rests on: the rules that its modules keep, and a machine that cannot compile gets one line."""

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.release.check import ROOT

MODULES: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["tidelog"]["compiled_modules"]


def source_of(module: str) -> Path:
    return ROOT / "src" / f"{module.replace('.', '/')}.py"


def inner_functions(tree: ast.AST, is_inside: bool = False) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and is_inside:
            yield f"{getattr(node, 'name', '')}, line {getattr(node, 'lineno', 0)}"
        yield from inner_functions(node, is_inside or is_function)


@pytest.mark.parametrize("module", MODULES)
def test_no_function_within_a_function(module: str) -> None:
    """Compiled, it would leave a reference cycle for each call."""
    assert list(inner_functions(ast.parse(source_of(module).read_text()))) == []


def test_only_compiled_modules_extend_compiled_classes() -> None:
    extended = []
    for path in (ROOT / "src").rglob("*.py"):
        if path in map(source_of, MODULES):
            continue
        tree = ast.parse(path.read_text())
        compiled = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in MODULES
            for alias in node.names
        }
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        extended += [f"{path.name}: {node.name}" for node in classes for base in node.bases if ast.unparse(base) in compiled]
    assert extended == []


@pytest.mark.parametrize("arguments", [["hatch_build.py"], ["-c", "import hatch_build; hatch_build.check_compiler()"]])
def test_without_a_compiler(arguments: list[str]) -> None:
    environment = {**os.environ, "CC": "no-such-compiler -pthread"}
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "no C compiler: no-such-compiler is not on the PATH" in last
    if arguments == ["hatch_build.py"]:
        assert done.stderr.splitlines() == [last]
