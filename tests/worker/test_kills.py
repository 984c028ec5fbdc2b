"""kill -9 of workers and of the broker beside them: nothing is lost, nothing is stuck, keys keep their order, letters of a
transactional worker are there once."""

from pathlib import Path
from random import Random, SystemRandom

import pytest

from tests.worker.kill_rounds import CONFIGS, Mode, problems, run_rounds
from tidelog.testing import Broker

pytestmark = pytest.mark.tidelog_only

SOAK_ROUNDS = 50
MODES = {
    "key": Mode("key", False),
    "key, exactly once": Mode("key", True),
    "partition": Mode("partition", False),
    "none, exactly once": Mode("none", True),
}


def kill_rounds(mode: Mode, rounds: int, path: Path) -> None:
    seed = SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    with Broker(persist=path / "data", configs=CONFIGS) as broker:
        result = run_rounds(broker, mode, rounds, Random(seed), path / "ledger")
    print(f"{result.sent} sent, {len(result.effects)} effects, {len(result.dead)} dead letters, gave up: {result.gave_up}")
    assert problems(result, mode)[:10] == []


@pytest.mark.parametrize(("name", "rounds"), [("key", 3), ("key, exactly once", 2)])
def test_kills(name: str, rounds: int, tmp_path: Path) -> None:
    kill_rounds(MODES[name], rounds, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("name", MODES)
def test_fifty_kills(name: str, tmp_path: Path) -> None:
    kill_rounds(MODES[name], SOAK_ROUNDS, tmp_path)
