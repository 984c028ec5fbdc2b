"""kill -9 at random moments under load: nothing acknowledged is lost, nothing that was read vanishes, order is kept."""

from pathlib import Path
from random import Random, SystemRandom

from tests.faults.rounds import CONFIGS, ROUNDS, run_rounds
from tidelog.testing import Broker


def test_kills_under_load(tmp_path: Path) -> None:
    seed = SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    with Broker(persist=tmp_path / "data", configs=CONFIGS) as broker:
        outcome = run_rounds(broker, ROUNDS, Random(seed), broker.kill)
        print(outcome)
        assert outcome.problems == []
        assert outcome.read >= outcome.acknowledged > ROUNDS * 20
        assert sum(event["event"] == "started" for event in broker.events) == ROUNDS + 1
