"""docs/OPERATIONS.md as written: its commands are run in order against a broker with the settings of ``ops/``."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.config.file import text_of
from tidelog.testing import Broker
from tidelog.testing.environment import BrokerEnvironment

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "OPERATIONS.md").read_text()
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
ADDRESS, METRICS_ADDRESS = "127.0.0.1:9092", "127.0.0.1:9644"
# Asks the broker of the test instead of the one at the default address.
WRAPPER = """#!/bin/sh
case "$1" in
  log) exec {python} -m tidelog "$@" ;;
  *) exec {python} -m tidelog "$@" --bootstrap {address} ;;
esac
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A directory with ``data``, and the environment of somebody at its shell."""
    metrics = BrokerEnvironment(None, {})
    settings = {
        **tomllib.loads((ROOT / "ops" / "tidelog.toml").read_text()),
        "tidelog.metrics.listener": metrics.bootstrap_servers,
    }
    with Broker(persist=tmp_path / "data", configs=settings) as broker:
        programs = tmp_path / "bin"
        programs.mkdir()
        wrapper = programs / "tidelog"
        wrapper.write_text(WRAPPER.format(python=sys.executable, address=broker.bootstrap_servers))
        wrapper.chmod(0o755)
        addresses = {"BROKER": broker.bootstrap_servers, "METRICS": metrics.bootstrap_servers}
        yield tmp_path, {**os.environ, **addresses, "PATH": f"{programs}:{os.environ['PATH']}"}
    metrics.close()


def test_the_commands_work_as_written(place: tuple[Path, dict[str, str]]) -> None:
    """One test for all: later commands need what earlier ones made."""
    path, environment = place
    for block in COMMANDS:
        command = block.replace(ADDRESS, environment["BROKER"]).replace(METRICS_ADDRESS, environment["METRICS"])
        shell = ["bash", "-e", "-u", "-o", "pipefail", "-c", command]
        done = subprocess.run(shell, cwd=path, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_the_settings_file_has_only_known_settings() -> None:
    for name, value in tomllib.loads((ROOT / "ops" / "tidelog.toml").read_text()).items():
        assert text_of(name, value)


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    text = (ROOT / "ops" / "tidelog.service").read_text()
    command = re.search(r"^ExecStart=/opt/tidelog/bin/(tidelog .*)$", text, re.MULTILINE)
    assert command is not None
    options = set(re.findall(r"--[a-z-]+", command[1]))
    help_text = subprocess.run(
        [sys.executable, "-m", "tidelog", "start", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "200"},
    ).stdout
    assert [option for option in options if option not in help_text] == []
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd is not installed here, so it cannot judge the unit")
    unit = tmp_path / "tidelog.service"
    # The program that the unit names is not installed here, and neither is its user.
    unit.write_text(text.replace("/opt/tidelog/bin/tidelog", sys.executable))
    done = subprocess.run([verify, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "tidelog.service" in line] == []
