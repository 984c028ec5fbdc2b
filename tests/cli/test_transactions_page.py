"""What the page about transactions shows works as it stands there, in its order, address aside."""

import re
import subprocess
import sys
from pathlib import Path

from tests.cli.command import Command

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "reference" / "transactions.md").read_text()
BLOCKS = [(kind, block) for kind, block in re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL) if not block.startswith("$")]
ADDRESS = "127.0.0.1:9092"


def test_the_commands_and_the_program(fresh_command: Command) -> None:
    assert [kind for kind, _ in BLOCKS] == ["", "python", "", ""]
    said = {}
    for kind, block in BLOCKS:
        if kind == "python":
            program = block.replace(ADDRESS, fresh_command.bootstrap)
            finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
            assert finished.returncode == 0, finished.stderr
            continue
        for line in block.splitlines():
            said[line] = fresh_command(*line.split()[1:]).lines
    assert any("payments-1" in line for line in said["tidelog transactions list"])
    assert any("payments-1" in line for line in said["tidelog transactions describe payments-1"])
    (consume,) = (line for line in said if "consume" in line)
    assert sorted(said[consume])[0].endswith("-42 EUR")
    assert said["tidelog transactions hanging"][-1].startswith("There is no hanging transaction in ")


def test_every_option_on_the_page_exists() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src/tidelog/cli").glob("transactions*.py"))
    options = set(re.findall(r"`?(--[a-z][a-z-]+)", PAGE)) - {"--help", "--json", "--bootstrap", "--partitions", "--count"}
    assert len(options) > 8
    assert [option for option in sorted(options) if f'"{option}"' not in source] == []


def test_every_setting_on_the_page_exists() -> None:
    config = "".join(path.read_text() for path in (ROOT / "src/tidelog/config").glob("*.py"))
    # Those of clients, and of the cluster.
    theirs = {"transaction.timeout.ms", "enable.idempotence", "transactional.id", "isolation.level", "transaction.version"}
    names = set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)[=`]", PAGE)) - theirs
    assert len(names) >= 4
    assert [name for name in sorted(names) if f'"{name}"' not in config] == []
