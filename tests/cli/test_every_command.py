"""Walks every command there is: its help, its ``--json``, its exit code, and the absence of tracebacks."""

import ast
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_walk import ELSEWHERE, STEPS
from tidelog.cli import hints
from tidelog.cli import main as cli
from tidelog.cli.errors import ExitCode
from tidelog.cli.look import ReadableGroup, first_line

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "command-line.md"
NOBODY = "127.0.0.1:1"
# What a command needs besides an address, where leaving it out would only show that it is missing.
ARGUMENTS = {
    "topics create": ["orders"],
    "topics describe": ["orders"],
    "topics alter": ["orders", "--partitions", "2"],
    "topics delete": ["orders", "--yes"],
    "topics delete-records": ["orders", "--all", "--yes"],
    "topics hotkeys": ["orders"],
    "produce": ["orders", os.devnull],
    "consume": ["orders"],
    "groups describe": ["billing"],
    "groups offsets": ["billing"],
    "groups reset": ["billing", "--all-topics", "--to-earliest"],
    "groups delete": ["billing", "--yes"],
    "groups desired": ["billing"],
    "queues create": ["jobs"],
    "queues describe": ["jobs"],
    "queues send": ["jobs", "one"],
    "queues receive": ["jobs"],
    "queues purge": ["jobs", "--yes"],
    "queues delete": ["jobs", "--yes"],
    "dlq show": ["orders.email.dlq"],
    "dlq replay": ["orders.email.dlq"],
    "dlq discard": ["orders.email.dlq", "--all", "--yes"],
    "transactions describe": ["payments-1"],
    "transactions describe-producers": ["orders"],
    "transactions abort": ["orders", "--partition", "0", "--start-offset", "1"],
    "configs describe": ["--topic", "orders"],
    "configs alter": ["--topic", "orders", "--set", "retention.ms=1"],
    "reassign": ["--plan"],
    "drain": ["3"],
    "cluster remove": ["4"],
    "quorum add": ["4", "--listener", "CONTROLLER://10.0.0.4:9093"],
    "quorum remove": ["3", "--yes"],
    "quotas set": ["--client-id", "loader", "producer_byte_rate=1"],
    "quotas delete": ["--client-id", "loader"],
}


def walk() -> Iterator[tuple[str, Any]]:
    """Every command with its words."""
    root = cli._root(None)
    with root.make_context("tidelog", []) as context:
        for name in cli.COMMANDS:
            found = root.get_command(context, name)
            assert found is not None
            if isinstance(found, ReadableGroup):
                yield from ((f"{name} {each}", command) for each, command in found.commands.items())
            else:
                yield name, found


COMMANDS = dict(walk())


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_help_has_one_look(columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ["", *cli.COMMANDS, *COMMANDS]:
        code, out, err = run([*name.split(), "--help"], capsys)
        assert (code, err) == (0, ""), name
        usage = f"Usage: tidelog {name}".strip() + " [OPTIONS]"
        assert " ".join(out.split()).startswith(usage), name
        assert not re.search(r"<\w+|\{[A-Z]|\[\[|…|[│╭╰]", out), name
        too_long = [line for line in out.splitlines() if len(line) > min(columns, 100) and len(line.split()) > 2]
        assert too_long == [], name


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option_and_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = run([*name.split(), "--help"], capsys)[1]
    for parameter in COMMANDS[name].params:
        is_shown = parameter.param_type_name == "option" and not parameter.hidden
        for option in parameter.opts if is_shown else ():
            assert re.search(rf"(^|[ ,]){re.escape(option)}([ ,\n]|$)", out), option
    assert name.split()[-1] in out.split("Example: ")[-1] or COMMANDS[name].hidden


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json(name: str) -> None:
    # The options of a pipeline are its own; --json is one of them, see tests/cli/test_pipeline.py.
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert "--json" in options or name == "pipeline run"


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if any("-b" in p.opts for p in command.params)])
def test_without_a_broker_there_is_one_object_or_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name.startswith("profile"):
        pytest.skip("it names a broker and talks to none")
    words = [*name.split(), *ARGUMENTS.get(name, []), "-b", NOBODY]
    code, out, err = run(words, capsys)
    assert (code, out) == (ExitCode.ERROR, "")
    assert re.fullmatch(r"tidelog: [^\n]*127\.0\.0\.1:1\b[^\n]*refused[^\n]*\n", err), err
    code, out, err = run([*words, "--json"], capsys)
    assert (code, out) == (ExitCode.ERROR, "")
    assert json.loads(err) == {"error": json.loads(err)["error"], "exit_code": 1}


def test_hints_of_every_command_that_talks_to_a_broker_repeat_the_address() -> None:
    names = [name for name, command in COMMANDS.items() if any("-b" in each.opts for each in command.params)]
    with hints.remembering():
        hints.remember("-b", "h:1")
        for name in names:
            if not name.startswith("profile"):
                assert hints.completed(f"To see: tidelog {name} --all") == f"To see: tidelog {name} -b h:1 --all"


def test_every_command_does_its_work_once_for_a_script_and_for_a_person() -> None:
    walked = {" ".join(step.split()[:count]) for step in STEPS.splitlines() for count in (1, 2)}
    missing = sorted(set(COMMANDS) - walked - set(ELSEWHERE))
    assert missing == [], "a new command has a line in STEPS of tests/cli/test_walk.py, or is in its ELSEWHERE"
    assert sorted(set(ELSEWHERE) - set(COMMANDS)) == []


def test_what_makes_no_sense_is_two(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        if name == "pipeline run":
            continue
        code, out, err = run([*name.split(), "--no-such-option", "--json"], capsys)
        assert (code, out) == (ExitCode.USAGE, ""), name
        assert "--no-such-option" in json.loads(err)["error"], name


def test_the_summaries_are_those_of_the_modules() -> None:
    root = cli._root(None)
    with root.make_context("tidelog", []) as context:
        for name, summary in cli.COMMANDS.items():
            assert summary == first_line(getattr(root.get_command(context, name), "help", "")), name


def test_the_page_has_every_exit_code_and_command() -> None:
    text = PAGE.read_text()
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)} == {int(code) for code in ExitCode}
    assert [name for name in cli.COMMANDS if f"`tidelog {name}`" not in text] == []


def test_tables_have_one_look() -> None:
    """Titles are written like sentences, everywhere."""
    titles = []
    for path in (ROOT / "src/tidelog/cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "show_table":
                titles += [str(each.value) for each in ast.walk(node.args[1]) if isinstance(each, ast.Constant)]
    assert len(titles) > 40
    assert [title for title in titles if title and not re.match(r"[A-Z][a-z]*\b|MB/s|p\d\d|max", title)] == []


def test_help_is_quick() -> None:
    """In processor time, because the machine of a test is busy; on an idle one this is the time that a person waits."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "tidelog", "--help"], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) <= 0.25


def test_help_loads_no_command() -> None:
    script = "import sys; from tidelog.cli.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr.split()
    assert not {"confluent_kafka", "rich", "tidelog.broker", "tidelog.client", "asyncio"}.intersection(loaded)


def test_a_group_alone_shows_its_help_and_is_two(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["topics"], capsys)
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.startswith("Usage: tidelog topics [OPTIONS] COMMAND")
