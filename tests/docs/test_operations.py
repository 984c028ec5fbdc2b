"""docs/OPERATIONS.md as written: its commands are run in order against a broker with the settings of ``ops/``."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.shell import ROOT, Shell, blocks
from tidelog.config.file import text_of
from tidelog.testing import Broker
from tidelog.testing.environment import BrokerEnvironment

PAGE = (ROOT / "docs" / "OPERATIONS.md").read_text()
METRICS_ADDRESS = "127.0.0.1:9644"


def test_the_commands_work_as_written(tmp_path: Path) -> None:
    """One test for all: later commands need what earlier ones made."""
    metrics = BrokerEnvironment(None, {})
    settings = {
        **tomllib.loads((ROOT / "ops" / "tidelog.toml").read_text()),
        "tidelog.metrics.listener": metrics.bootstrap_servers,
    }
    with Broker(persist=tmp_path / "data", configs=settings) as broker:
        shell = Shell(tmp_path, broker.bootstrap_servers)
        for block in blocks(PAGE, "sh"):
            shell.run(block, {METRICS_ADDRESS: metrics.bootstrap_servers})
    metrics.close()


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
