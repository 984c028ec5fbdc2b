"""A shell as a reader of a page has it: ``tidelog`` on the path, talking to the broker of the test."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
ADDRESS = "127.0.0.1:9092"
# Commands without an address of their own go to the broker of the test instead of the default one.
WRAPPER = """#!/bin/sh
case "$1 $2" in
  "log "*|"worker "*|"storage "*|"profile "*) exec {python} -m tidelog "$@" ;;
  *) exec {python} -m tidelog "$@" --bootstrap {address} ;;
esac
"""


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page that are in ``language``; an empty one means blocks without any."""
    return [block for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) if kind == language]


class Shell:
    def __init__(self, directory: Path, bootstrap: str) -> None:
        self.directory = directory
        self._bootstrap = bootstrap
        programs = directory / "bin"
        programs.mkdir()
        wrapper = programs / "tidelog"
        wrapper.write_text(WRAPPER.format(python=sys.executable, address=bootstrap))
        wrapper.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}

    def run(self, commands: str, replacements: Mapping[str, str] | None = None) -> str:
        """Run a block of a page and return what it printed; it must succeed."""
        for old, new in {ADDRESS: self._bootstrap, **(replacements or {})}.items():
            commands = commands.replace(old, new)
        words = ["bash", "-e", "-u", "-o", "pipefail", "-c", commands]
        done = subprocess.run(
            words, cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        return done.stdout
