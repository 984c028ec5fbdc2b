"""Builds a wheel whose hot modules are compiled by mypyc, when ``TIDELOG_COMPILED`` is set. Otherwise the wheel is pure Python.

Both come from the same source: ``[tool.tidelog] compiled_modules`` in ``pyproject.toml`` lists what is compiled, and the compiled
wheel has the source of these modules beside their machine code. Python prefers the latter.

Run as a program, this says whether the machine can compile, in one line.
"""

import os
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
BUILD = ROOT / "build" / "mypyc"
# The library that all compiled modules share is named after it.
GROUP = "tidelog"


class CannotCompile(Exception):
    pass


class CompiledModules(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not os.environ.get("TIDELOG_COMPILED"):
            return
        check_compiler()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for library in compile_modules():
            build_data["force_include"][str(library)] = str(library.relative_to(BUILD / "lib"))


def check_compiler() -> None:
    """Raise CannotCompile unless there is a C compiler, and what it needs of Python."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise CannotCompile(f"no C compiler: {compiler} is not on the PATH (on Debian and Ubuntu: apt install gcc)")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise CannotCompile(f"no headers of Python: {header} is missing (on Debian and Ubuntu: apt install python3-dev)")


def compile_modules() -> list[Path]:
    """Compile the modules; returns the libraries, which lie below ``build/mypyc/lib`` as they will in the wheel."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    modules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["tidelog"]["compiled_modules"]
    sources = [f"src/{module.replace('.', '/')}.py" for module in modules]
    shutil.rmtree(BUILD, ignore_errors=True)
    # Level 3 takes twice as long to compile, and gains nothing that can be measured.
    extensions = mypycify(
        ["--config-file=pyproject.toml", *sources],
        opt_level="2",
        debug_level="0",
        target_dir=str(BUILD / "c"),
        group_name=GROUP,
    )
    distribution = Distribution({"name": "tidelog", "ext_modules": extensions})
    command = distribution.get_command_obj("build_ext")
    command.build_lib = str(BUILD / "lib")
    command.build_temp = str(BUILD / "objects")
    command.ensure_finalized()
    command.run()
    return sorted((BUILD / "lib").rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"))


if __name__ == "__main__":
    try:
        check_compiler()
    except CannotCompile as error:
        sys.exit(f"cannot compile Tidelog: {error}")
