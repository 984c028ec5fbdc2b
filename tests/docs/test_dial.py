"""The page about the dial as written: its commands run in order, and show what the page says they show."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.shell import ADDRESS, ROOT, Shell, blocks
from tidelog.testing import Broker

PAGE = (ROOT / "docs" / "guides" / "the-dial.md").read_text()


def test_the_commands_and_the_program(tmp_path: Path) -> None:
    commands = blocks(PAGE, "sh")
    assert len(commands) == 5
    (program,) = (block for block in blocks(PAGE, "python") if "low_value_topics" in block)
    with Broker() as broker:
        shell = Shell(tmp_path, broker.bootstrap_servers)
        said = {block: shell.run(block) for block in commands if "examples/" not in block}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program.replace(ADDRESS, broker.bootstrap_servers)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "True True True\n"), done.stderr
    (refused,) = (out for block, out in said.items() if "max.message.bytes" in block)
    created, sent, *rest = refused.splitlines()
    assert (created, sent, rest) == ("Created clicks with 1 partition.", "1 message to clicks", ["refused"])
    assert sum(out.count("Fetch requests") for out in said.values()) == 4


def test_the_example_loses_what_the_page_says() -> None:
    """Three brokers of its own, twice: one message with acks=1, and one with acks=all."""
    (expected,) = (block for block in blocks(PAGE, "") if block.startswith("acks=1"))
    words = [sys.executable, "-W", "error", str(ROOT / "examples" / "acks.py")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_the_defaults_are_those_of_the_classes() -> None:
    from tidelog.client.consumer_settings import FETCH_WAIT_SECONDS
    from tidelog.client.producer import Producer

    defaults = Producer.__init__.__kwdefaults__
    assert defaults is not None
    assert (defaults["acks"], defaults["linger_ms"], defaults["max_block_ms"]) == ("all", 5, 60_000)
    assert json.loads(re.findall(r"up to ([\d,]+) bytes \(`batch_size`\)", PAGE)[0].replace(",", "")) == defaults["batch_size"]
    assert f"{defaults['buffer_bytes'] >> 20} MB" in PAGE
    assert FETCH_WAIT_SECONDS == 0.5
