"""docs/tutorial/first-steps.md as written: its commands and its worker are run in order against a new broker."""

import signal
import subprocess
from pathlib import Path

from tests.docs.shell import ADDRESS, ROOT, Shell, blocks
from tidelog.testing import Broker

PAGE = (ROOT / "docs" / "tutorial" / "first-steps.md").read_text()


def run_worker(shell: Shell, until: str) -> None:
    """Run ``tidelog worker run`` in the foreground until it prints a line with ``until``, then press Ctrl-C."""
    (command,) = blocks(PAGE, "")
    words = command.split()
    with subprocess.Popen(
        words, cwd=shell.directory, env=shell.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert any(until in line for line in process.stdout), f"the worker ended before it said {until!r}"
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_the_commands_work_as_written(tmp_path: Path) -> None:
    with Broker(persist=tmp_path / "data") as broker:
        shell = Shell(tmp_path, broker.bootstrap_servers)
        create, read, group, lag, reset, letters, replay = blocks(PAGE, "sh")
        shell.run(create)
        lines = shell.run(read).splitlines()
        assert [line.split()[-1] for line in lines if " anna " in line] == ["book", "pen"]
        assert sorted(shell.run(group).split()) == ["book", "lamp", "pen"], "only the first of the two commands prints them"
        assert "1 message behind" in shell.run(lag)
        assert "Reset " in shell.run(reset)
        (source,) = blocks(PAGE, "python")
        (tmp_path / "shop.py").write_text(source.replace(ADDRESS, broker.bootstrap_servers))
        run_worker(shell, until="dead letter")
        assert "there is no template for lamps" in shell.run(letters)
        repaired = [line for line in source.splitlines() if "lamp" not in line]
        assert len(repaired) == len(source.splitlines()) - 2
        (tmp_path / "shop.py").write_text("\n".join(repaired).replace(ADDRESS, broker.bootstrap_servers))
        assert "Replayed 1 letter" in shell.run(replay)
        run_worker(shell, until="sent an e-mail about the lamp")
