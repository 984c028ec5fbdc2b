"""The commands on the page about groups work as they stand there, one after the other, address aside."""

import re
import subprocess
import sys
from pathlib import Path

from tests.cli.command import Command

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "reference" / "groups.md").read_text()
LINES = [line for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines() if block[0] not in "${"]


def test_the_commands(fresh_command: Command, tmp_path: Path) -> None:
    assert len(LINES) > 8
    said = {}
    for line in LINES:
        words = re.sub(r"\btidelog ([^|>]*)", rf"{sys.executable} -m tidelog \1 --bootstrap {fresh_command.bootstrap} ", line)
        finished = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert finished.returncode == 0, (line, finished.stderr)
        said[line] = finished.stdout
    assert said["tidelog groups describe billing"].startswith("billing: Empty, ")
    assert (tmp_path / "billing.csv").read_text() == "".join(f"orders,{partition},0\n" for partition in range(4))
    assert said["tidelog groups delete billing"] == "Deleted billing.\n"


def test_every_option_on_the_page_exists() -> None:
    source = "".join(path.read_text() for path in (Path(__file__).resolve().parents[2] / "src/tidelog/cli").glob("*.py"))
    options = set(re.findall(r"`?(--[a-z][a-z-]+)", PAGE))
    assert len(options) > 20
    assert [option for option in sorted(options) if f'"{option}"' not in source and option != "--help"] == []
