"""Every order of events of one replicated partition, in the small. ``make soak`` and the command line walk further."""

import pytest

from simulation.explore_replication import ReplicationBounds, explore, main


@pytest.mark.parametrize(
    ("bounds", "states_max"),
    [
        (ReplicationBounds(appends=1, leader_changes=1, crashes=0, changes=0), 10_000),
        (ReplicationBounds(appends=1, leader_changes=0, crashes=1, changes=0), 10_000),
        (ReplicationBounds(appends=1, leader_changes=1, crashes=0, changes=1, losses=1), 4_000),
        (ReplicationBounds(appends=2, leader_changes=2, crashes=1, changes=1, losses=1), 4_000),
    ],
)
def test_nothing_acknowledged_is_lost_in_any_order_of_events(bounds: ReplicationBounds, states_max: int) -> None:
    walk = explore(bounds, states_max)
    assert walk.violation is None, (walk.violation, walk.way)
    assert walk.states > 3_000


def test_a_violation_prints_the_way_to_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A leader that counts only itself acknowledges what nobody else has."""
    monkeypatch.setattr("tidelog.replication.in_sync_replicas.InSyncReplicas.lowest_durable_end", lambda self, own_end: own_end)
    assert main(["--appends", "1", "--leader-changes", "1", "--crashes", "0", "--changes", "0"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["append", "sync", "fence"]
    assert lines[-1] == "broker 2 leads without [1], acknowledged"
