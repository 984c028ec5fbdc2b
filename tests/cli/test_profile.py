"""Which cluster a command talks to, and that hints repeat it."""

from pathlib import Path

import pytest

from tests.cli.command import Command, new_topic_name
from tidelog.cli import hints
from tidelog.cli.main import main


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "own" / "profiles.toml"
    monkeypatch.setenv("TIDELOG_PROFILES", str(path))
    monkeypatch.delenv("TIDELOG_BOOTSTRAP", raising=False)
    return path


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    main(words)
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_the_order_of_what_names_a_cluster(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic_name()
    address = command.bootstrap
    assert main(["profile", "add", "here", "-b", address]) == 0
    assert main(["profile", "add", "nowhere", "-b", "127.0.0.1:2", "--use"]) == 0
    assert "at 127.0.0.1:2: " in said(["topics", "list"], capsys)
    assert topic in said(["--profile", "here", "topics", "create", topic], capsys)
    monkeypatch.setenv("TIDELOG_PROFILE", "here")
    assert topic in said(["topics", "list"], capsys)
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", "127.0.0.1:3")
    assert "at 127.0.0.1:3: " in said(["topics", "list"], capsys)
    assert topic in said(["topics", "list", "-b", address], capsys)


def test_hints_repeat_the_cluster(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    address = command.bootstrap
    topic = new_topic_name()
    missing = said(["consume", topic, "-b", address, "-X", "client.id=me", "-X", "sasl.password=x"], capsys)
    assert missing.endswith(f"tidelog topics list -b {address} -X client.id=me -X sasl.password=...\n")
    # This one comes from the library below.
    assert f"tidelog dlq list -b {address}" in said(["dlq", "replay", f"{topic}.email.dlq", "-b", address], capsys)
    assert main(["profile", "add", "here", "-b", address]) == 0
    hint = said(["--profile", "here", "groups", "describe", topic], capsys)
    assert hint.endswith("tidelog --profile here groups list\n")


def test_a_hint_works_as_it_is_printed(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    hint = said(["consume", new_topic_name(), "-b", command.bootstrap], capsys).rpartition(": tidelog ")[2]
    assert main(hint.split()) == 0


def test_only_commands_in_hints_change() -> None:
    with hints.remembering():
        hints.remember("-b", "a:1")
        assert hints.completed("tidelog start") == "tidelog start"
        assert hints.completed("(try: tidelog topics --help)") == "(try: tidelog topics --help)"
        assert hints.completed("A: tidelog dlq list x. B: tidelog consume y") == (
            "A: tidelog dlq list -b a:1 x. B: tidelog consume -b a:1 y"
        )
    assert hints.completed("tidelog dlq list") == "tidelog dlq list"


def test_secrets_are_kept_by_reference(
    profiles: Path, command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["profile", "add", "secure", "-b", command.bootstrap, "--use", "-X"]
    assert "a profile keeps no secrets" in said([*words, "sasl.password=hunter2"], capsys)
    assert not profiles.exists()
    assert main([*words, "sasl.password=env:SHOP_PASSWORD"]) == 0
    assert "SHOP_PASSWORD, which is not set" in said(["topics", "list"], capsys)
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    assert main(["topics", "list"]) == 0
    assert "hunter2" not in said(["profile", "list", "--json"], capsys) + profiles.read_text()
    secret = profiles.with_name("secret")
    assert main([*words, f"sasl.password=file:{secret}"]) == 0
    assert "No such file" in said(["topics", "list"], capsys)
    secret.write_text("hunter2\n")
    assert main(["topics", "list"]) == 0


def test_use_remove_and_what_is_not_there(profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "There are no profiles yet" in said(["profile", "list"], capsys)
    assert "there is no profile x" in said(["profile", "use", "x"], capsys)
    assert "cannot be a profile's name" in said(["profile", "add", "a b", "-b", "a:1"], capsys)
    assert main(["profile", "add", "x", "-b", "a:1", "--use"]) == 0
    assert main(["profile", "use", "--none"]) == 0
    assert main(["profile", "use", "x"]) == 0
    assert main(["profile", "remove", "x"]) == 0
    assert "There are no profiles yet" in said(["profile", "list"], capsys)
    profiles.write_text("current = ")
    assert said(["profile", "list"], capsys).startswith(f"tidelog: {profiles} cannot be read: ")
    profiles.write_text("[profiles.x]\nproperties = {}")
    assert "a table with bootstrap" in said(["topics", "list"], capsys)
