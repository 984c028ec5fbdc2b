"""The pages about groups and transactions as written: their commands are run in order, and their options and settings exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.shell import ADDRESS, ROOT, Shell, blocks
from tidelog.testing import Broker

GROUPS = (ROOT / "docs" / "reference" / "groups.md").read_text()
TRANSACTIONS = (ROOT / "docs" / "reference" / "transactions.md").read_text()
SOURCE = "".join(path.read_text() for path in (ROOT / "src/tidelog/cli").glob("*.py"))


def test_the_commands_about_groups(tmp_path: Path) -> None:
    lines = [line for block in blocks(GROUPS, "") for line in block.splitlines() if block[0] not in "${"]
    assert len(lines) > 8
    with Broker() as broker:
        shell = Shell(tmp_path, broker.bootstrap_servers)
        said = {line: shell.run(line) for line in lines}
    assert said["tidelog groups describe billing"].startswith("billing: Empty, ")
    assert (tmp_path / "billing.csv").read_text() == "".join(f"orders,{partition},0\n" for partition in range(4))
    assert said["tidelog groups delete billing --yes"] == "Deleted billing.\n"


def test_the_commands_and_the_program_about_transactions(tmp_path: Path) -> None:
    found = [(kind, block) for kind, block in re.findall(r"```(\w*)\n(.*?)```", TRANSACTIONS, re.DOTALL) if block[0] != "$"]
    assert [kind for kind, _ in found] == ["", "python", "", ""]
    said = {}
    with Broker() as broker:
        shell = Shell(tmp_path, broker.bootstrap_servers)
        for kind, block in found:
            if kind == "python":
                subprocess.run([sys.executable, "-c", block.replace(ADDRESS, broker.bootstrap_servers)], timeout=60, check=True)
                continue
            said.update({line: shell.run(line) for line in block.splitlines()})
    assert "payments-1" in said["tidelog transactions list"]
    assert "payments-1" in said["tidelog transactions describe payments-1"]
    (consume,) = (line for line in said if "consume" in line)
    assert sorted(said[consume].splitlines())[0].endswith("-42 EUR")
    assert said["tidelog transactions hanging"].startswith("There is no hanging transaction in ")


@pytest.mark.parametrize(("page", "count_min"), [(GROUPS, 20), (TRANSACTIONS, 8)], ids=["groups", "transactions"])
def test_every_option_exists(page: str, count_min: int) -> None:
    options = set(re.findall(r"`?(--[a-z][a-z-]+)", page))
    assert len(options) > count_min
    assert [option for option in sorted(options) if f'"{option}"' not in SOURCE and option != "--help"] == []


def test_every_setting_of_transactions_exists() -> None:
    config = "".join(path.read_text() for path in (ROOT / "src/tidelog/config").glob("*.py"))
    # The settings of clients, and of the cluster.
    theirs = {"transaction.timeout.ms", "enable.idempotence", "transactional.id", "isolation.level", "transaction.version"}
    names = set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)[=`]", TRANSACTIONS)) - theirs
    assert len(names) >= 4
    assert [name for name in sorted(names) if f'"{name}"' not in config] == []
