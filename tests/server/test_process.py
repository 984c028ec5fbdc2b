"""Putting a broker together: what is refused before anything is touched, and what is derived."""

import resource
from pathlib import Path

import pytest

from tidelog.config.broker import METRICS_LISTENER
from tidelog.config.types import InvalidSetting
from tidelog.log.checkpoints import MetaProperties, write_meta_properties
from tidelog.ports.randomness import RealRandomness
from tidelog.ports.real_disk import RealDisk
from tidelog.server.process import OPEN_FILES_DERIVED_MAX, derive_open_files_max, find_cluster_id, run_broker


class PlannedRandomness(RealRandomness):
    def __init__(self, *tokens: bytes) -> None:
        super().__init__()
        self._tokens = list(tokens)

    def token(self, length: int) -> bytes:
        return self._tokens.pop(0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listeners": "10.0.0.1:9092"}, r"^listeners=10\.0\.0\.1:9092: everyone who reaches .* add --insecure$"),
        ({METRICS_LISTENER: "0.0.0.0:0"}, r"^tidelog\.metrics\.listener=0\.0\.0\.0:0: everyone who reaches .* add --insecure$"),
        ({METRICS_LISTENER: "127.0.0.1"}, r"^tidelog\.metrics\.listener=127\.0\.0\.1: the port is missing"),
        ({METRICS_LISTENER: "SSL://127.0.0.1:1"}, r"^tidelog\.metrics\.listener=SSL"),
        ({"log.retention.mss": "1"}, r"did you mean log\.retention\.ms\?$"),
        ({"log.cleaner.max.compaction.lag.ms": "1", "log.cleaner.min.compaction.lag.ms": "2"}, r"compaction\.lag\.ms"),
    ],
)
def test_what_is_refused(settings: dict[str, str], message: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with pytest.raises(InvalidSetting, match=message):
        run_broker({**settings, "log.dirs": str(data)}, report=lambda *_: None, on_serving=lambda _: None)
    assert not data.exists()


def test_a_cluster_id_is_made_once(tmp_path: Path) -> None:
    disk = RealDisk()
    made = find_cluster_id(disk, PlannedRandomness(b"\x01" * 16), str(tmp_path))
    assert made == "AQEBAQEBAQEBAQEBAQEBAQ"
    write_meta_properties(disk, str(tmp_path / "meta.properties"), MetaProperties("theirs", 1, None))
    assert find_cluster_id(disk, PlannedRandomness(), str(tmp_path)) == "theirs"


def test_no_cluster_id_looks_like_an_option(tmp_path: Path) -> None:
    made = find_cluster_id(RealDisk(), PlannedRandomness(b"\xf8" * 16, b"\x02" * 16), str(tmp_path))
    assert made == "AgICAgICAgICAgICAgICAg"


@pytest.mark.parametrize(
    ("limit", "connections_max", "expected"),
    [
        (20_128, 10_000, 10_000),
        (1024, 10_000, 448),
        (100, 10_000, 16),
        (1_000_000, 10, OPEN_FILES_DERIVED_MAX),
        (resource.RLIM_INFINITY, 10, OPEN_FILES_DERIVED_MAX),
    ],
)
def test_open_files_fit_beside_the_connections(
    limit: int, connections_max: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert derive_open_files_max({"max.connections": connections_max}) == expected
