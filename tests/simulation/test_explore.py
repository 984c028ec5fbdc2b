"""Every order of events within small bounds keeps the quorum's promises; and the explorer finds a broken one."""

import pytest

from simulation.explore import Bounds, Explorer, main
from simulation.quorum_checker import QuorumViolation
from tidelog.raft.messages import Vote
from tidelog.raft.quorum import RaftNode, Reply, Request

NOTHING = Bounds(elections=1, timeouts=1, entries=0, crashes=0)


@pytest.mark.parametrize(
    ("bounds", "states_min"),
    [
        (NOTHING._replace(entries=1, losses=1), 5_000),
        (NOTHING._replace(crashes=1), 8_000),
        (NOTHING._replace(changes=1), 3_000),
    ],
    ids=["a decision and a lost message", "a crash", "a change of the voters"],
)
def test_every_order_of_events_within_the_bounds(bounds: Bounds, states_min: int) -> None:
    explorer = Explorer(bounds)
    explorer.run()
    assert explorer.states > states_min
    assert explorer.depth > 15


def test_a_vote_that_leaves_before_it_is_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def send_at_once(node: RaftNode, message: Request | Reply) -> None:
        getattr(node, "_messages").append(message)  # noqa: B009 - the planted bug is inside of the core

    monkeypatch.setattr(RaftNode, "_send", send_at_once)
    with pytest.raises(QuorumViolation) as raised:
        Explorer(NOTHING).run()
    assert raised.value.kind == "heard before durable"
    assert "election timer of" in raised.value.text, "the way to the violation is part of the message"


def test_a_second_vote_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(node: RaftNode, request: Vote) -> bool:
        return True

    monkeypatch.setattr(RaftNode, "_grants", always)
    with pytest.raises(QuorumViolation) as raised:
        Explorer(NOTHING._replace(timeouts=2)).run()
    assert raised.value.kind in ("two votes", "two leaders")


def test_it_prints_how_many_states_there_were(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--elections", "1", "--timeouts", "1", "--entries", "0", "--crashes", "0", "--states-max", "100"]) == 0
    assert "states," in capsys.readouterr().out
