"""Liveness: by the last beat, not when a handler hangs, and a file for those outside."""

from pathlib import Path

from tidelog.worker.liveness import Liveness


def test_it_lives_while_it_beats_and_nothing_hangs(tmp_path: Path) -> None:
    file = tmp_path / "alive"
    liveness = Liveness(2.0, file)
    assert not liveness.is_alive(0)
    assert not file.exists()
    liveness.beat(1_000, 0)
    assert liveness.is_alive(2_999)
    assert not liveness.is_alive(3_000)
    file.unlink()
    liveness.beat(1_500, 0)
    assert not file.exists(), "once a second is enough"
    liveness.beat(5_000, 2_000)
    assert not liveness.is_alive(5_000), "a handler hangs"
    assert not file.exists()
    liveness.beat(5_001, 1_999)
    assert liveness.is_alive(5_001)
    assert file.exists()
    liveness.end()
    assert not liveness.is_alive(5_001)
