"""``tidelog log`` as a user calls it: on real directories, ours and Kafka's, sound and damaged, and with bad input."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.compatibility.kafka_fixtures import CLEAN, FIXTURE_NAMES, unpack
from tests.log.inspection.damage import crashed_store, stopped_store
from tests.log.inspection.test_repair import everything
from tidelog.cli.log import app
from tidelog.cli.main import main
from tidelog.ports.real_disk import RealDisk


def put_on_disk(content: dict[str, bytes], directory: Path) -> Path:
    """A simulated data directory, made real."""
    (directory / "orders-0").mkdir(parents=True)
    for path, data in content.items():
        (directory / path.removeprefix("/data/")).write_bytes(data)
    return directory


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    return put_on_disk(everything(stopped_store().disk), tmp_path / "data")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A bit is flipped below the durable mark, and the broker has crashed: it would not open orders-0."""
    data = put_on_disk(everything(crashed_store().disk), tmp_path / "data")
    flip(data / "orders-0" / "00000000000000000009.log", 150)
    return data


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


Output = pytest.CaptureFixture[str]


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_kafkas_directories_are_sound(name: str, tmp_path: Path, capsys: Output) -> None:
    data = unpack(name, tmp_path)
    assert main(["log", "verify", "--json", str(data)]) == 0
    found = json_lines(capsys.readouterr().out)
    assert found[-1] == {"kind": "result", "is_sound": True, "damage_count": 0, "note_count": 0}
    assert {"transactions-0", "compacted-0", "retained-0"} <= {line["name"] for line in found if line["kind"] == "partition"}


def test_kafkas_directories_are_dumped(tmp_path: Path, capsys: Output) -> None:
    data = unpack(CLEAN, tmp_path)
    for path in sorted(data.rglob("*")):
        if path.name in ("bootstrap.checkpoint", ".kafka_cleanshutdown") or path.suffix == ".checkpoint":
            continue
        assert main(["log", "dump", str(path), "--records"]) == 0, path
    out = capsys.readouterr().out
    assert "control COMMIT, CRC valid" in out
    assert "CRC INVALID" not in out
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        assert f", {codec}, " in out


def test_verify_shows_a_table_and_a_verdict(stopped: Path, capsys: Output) -> None:
    assert main(["log", "verify", str(stopped)]) == 0
    out = capsys.readouterr().out
    assert "orders-0" in out
    assert out.endswith(f"{stopped}: sound. Nothing was locked or written.\n")


def test_the_table_fits_a_terminal(stopped: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["log", "verify", str(stopped)]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "orders-0" in line)
    assert row.split() == ["orders-0", "4", "2.3", "KiB", "29", "0", "29", "29", "sound"]


def test_verify_finds_damage_and_says_what_it_means(damaged: Path, capsys: Output) -> None:
    assert main(["log", "verify", str(damaged)]) == 3
    out = capsys.readouterr().out
    path = damaged / "orders-0" / "00000000000000000009.log"
    assert f"damage: {path} at byte 78, offset 10: a batch's CRC does not match its bytes. Corruption: everything below" in out
    assert "damaged (1)" in out


def test_verify_can_be_quiet(damaged: Path, capsys: Output) -> None:
    assert main(["log", "verify", "--quiet", str(damaged)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("damage: ")
    assert "1 damaged place found" in lines[-1]
    assert [line for line in lines if line.startswith("note")] == []
    # Undone; a crash has left notes, which are no damage.
    flip(damaged / "orders-0" / "00000000000000000009.log", 150)
    assert main(["log", "verify", str(damaged)]) == 0
    assert "note: " in capsys.readouterr().out
    for more in ([], ["--json"]):
        assert main(["log", "verify", "--quiet", str(damaged), *more]) == 0
        assert capsys.readouterr() == ("", "")


def test_verify_of_one_segment_and_of_small_files(stopped: Path, capsys: Output) -> None:
    orders = stopped / "orders-0"
    flip(orders / "00000000000000000009.log", 150)
    assert main(["log", "verify", str(orders / "00000000000000000000.log")]) == 0
    assert main(["log", "verify", str(orders / "00000000000000000009.index")]) == 3
    assert main(["log", "verify", str(orders / "leader-epoch-checkpoint")]) == 0
    assert main(["log", "verify", str(stopped / "durable-marks")]) == 0
    (orders / "leader-epoch-checkpoint").write_bytes(b"1\n")
    assert main(["log", "verify", str(orders / "leader-epoch-checkpoint")]) == 3
    assert "line 1" in capsys.readouterr().out


def test_verify_works_beside_a_lock(stopped: Path) -> None:
    lock = RealDisk().lock(str(stopped / ".lock"))
    assert main(["log", "verify", str(stopped)]) == 0
    lock.release()


def test_dump_as_text_and_json(stopped: Path, capsys: Output) -> None:
    assert main(["log", "dump", str(stopped / "orders-0"), "--offset", "3", "--limit", "1", "--records"]) == 0
    text = capsys.readouterr().out
    assert "offsets 3..4, 2 records, at 300, " in text
    assert "producer 7 epoch 0 sequences 0..1, uncompressed, CreateTime 20" in text
    assert "transactional, CRC valid" in text
    assert "  offset 4, " in text
    assert "key 'key', value 'v'" in text
    assert main(["log", "dump", str(stopped / "orders-0"), "--offset", "3", "--limit", "1", "--json"]) == 0
    _, item = json_lines(capsys.readouterr().out)
    assert (item["kind"], item["base_offset"], item["producer_id"]) == ("batch", 3, 7)


def test_dump_bounds_long_values(stopped: Path, capsys: Output) -> None:
    arguments = ["log", "dump", str(stopped / "orders-0"), "--limit", "1", "--records", "--width", "8"]
    assert main(arguments) == 0
    assert "value 'vvvvvvvv'... (" in capsys.readouterr().out


def test_dump_of_damage(damaged: Path, capsys: Output) -> None:
    assert main(["log", "dump", str(damaged / "orders-0")]) == 0
    assert "CRC INVALID" in capsys.readouterr().out
    with (damaged / "orders-0" / "00000000000000000000.log").open("ab") as file:
        file.write(b"torn")
    assert main(["log", "dump", str(damaged / "orders-0")]) == 3
    assert "DAMAGE: " in capsys.readouterr().out


def test_repair_shows_then_does(damaged: Path, capsys: Output) -> None:
    orders = damaged / "orders-0"
    before = sorted(path.name for path in orders.iterdir())
    assert main(["log", "repair", str(orders)]) == 3
    shown = capsys.readouterr().out
    assert "A repair loses for good: 19 offsets, 10 to 28." in shown
    assert "It removes 2 segments, 1056 bytes" in shown
    assert "or cut it with --yes" in shown
    assert sorted(path.name for path in orders.iterdir()) == before
    assert main(["log", "repair", str(orders), "--yes"]) == 0
    assert "orders-0: repaired. It now ends at offset 10, and the next start opens it." in capsys.readouterr().out
    assert [path.name for path in orders.iterdir() if "at-78" in path.name and path.name.endswith("-damaged")]
    assert main(["log", "verify", str(damaged)]) == 0
    assert main(["log", "repair", str(damaged)]) == 0
    assert "nothing to repair" in capsys.readouterr().out


def test_repair_rebuilds_indexes(stopped: Path, capsys: Output) -> None:
    flip(stopped / "orders-0" / "00000000000000000000.txnindex", 9)
    assert main(["log", "verify", str(stopped)]) == 3
    assert main(["log", "repair", str(stopped / "orders-0"), "--rebuild-indexes"]) == 0
    assert "would be rebuilt" in capsys.readouterr().out
    assert main(["log", "repair", str(stopped / "orders-0"), "--rebuild-indexes", "--yes"]) == 0
    assert "indexes rebuilt, 4 segments up to offset 29" in capsys.readouterr().out
    assert main(["log", "verify", str(stopped)]) == 0


def test_a_damaged_log_comes_before_its_indexes(damaged: Path, capsys: Output) -> None:
    assert main(["log", "repair", str(damaged), "--rebuild-indexes"]) == 3
    assert "the log itself is damaged" in capsys.readouterr().out
    assert main(["log", "repair", str(damaged), "--rebuild-indexes", "--yes"]) == 1
    assert "repair the log before its indexes" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["dump", "verify", "repair"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "there is no such file or directory"),
        ("empty", "is not a data directory"),
        ("unknown.txt", "is not a file of a log"),
    ],
)
def test_a_path_that_is_nothing_known_is_one_line(command: str, name: str, message: str, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "unknown.txt").write_text("x")
    assert main(["log", command, str(tmp_path / name)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def bad_repairs(data: Path) -> Iterator[tuple[Path, str]]:
    yield data / "orders-0" / "00000000000000000000.log", "give the directory of its partition"
    copy = data.parent / "orders-0"
    (data / "orders-0").rename(copy)
    yield copy, "is not in a data directory"


def test_repair_of_what_cannot_be_repaired_is_one_line(stopped: Path, capsys: Output) -> None:
    for path, message in bad_repairs(stopped):
        assert main(["log", "repair", str(path)]) == 1
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_repair_refuses_a_directory_in_use(damaged: Path, capsys: Output) -> None:
    lock = RealDisk().lock(str(damaged / ".lock"))
    assert main(["log", "repair", str(damaged), "--yes"]) == 1
    lock.release()
    assert capsys.readouterr().err == f"tidelog: {damaged} is used by a running broker: stop it before repairing\n"


def test_a_corrupt_checkpoint_is_one_line(damaged: Path, capsys: Output) -> None:
    path = damaged / "log-start-offset-checkpoint"
    path.write_bytes(b"0\nmany\n")
    assert main(["log", "dump", str(path)]) == 1
    assert main(["log", "repair", str(damaged)]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert all("line 2" in error for error in errors)


def test_empty_states_say_what_comes_next(stopped: Path, capsys: Output) -> None:
    empty = stopped.parent / "fresh"
    empty.mkdir()
    (empty / "meta.properties").write_bytes((stopped / "meta.properties").read_bytes())
    for command in ("dump", "verify", "repair"):
        assert main(["log", command, str(empty)]) == 0
    out = capsys.readouterr().out
    assert "There are no partitions yet. Creating a topic creates its directories here." in out
    assert "has no partitions, so there is nothing to repair" in out
    assert main(["log", "dump", str(stopped / "orders-0"), "--offset", "999"]) == 0
    assert "contains nothing at or above offset 999" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["dump", "verify", "repair"])
def test_help_has_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example: tidelog log {command}" in result.output


def test_the_installed_command(damaged: Path) -> None:
    command = Path(sys.executable).with_name("tidelog")
    finished = subprocess.run([command, "log", "verify", damaged], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 3
    assert "at byte 78" in finished.stdout
    assert finished.stderr == ""


def test_a_reader_that_has_seen_enough(stopped: Path) -> None:
    """As ``| head`` does: the pipe is closed before all is written."""
    command = Path(sys.executable).with_name("tidelog")
    with subprocess.Popen(
        [command, "log", "dump", stopped / "orders-0", "--records"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 0
