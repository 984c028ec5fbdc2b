"""A quorum under faults: in every seed its promises hold at every step, and it comes back when a majority is healed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulation.quorum_checker import QuorumChecker, QuorumViolation
from simulation.quorum_host import (
    Entry,
    Origin,
    QuorumHost,
    SimulatedRaftLog,
    SnapshotStore,
    directory_id,
    endpoint,
    make_voters,
    replica,
)
from simulation.quorum_world import DECISIONS_MIN, FAULTS_MIN
from simulation.run import SeedResult, describe, rare_faults, run_seed
from tests.raft.trace_cluster import LowRandomness
from tidelog.raft.messages import LeaderNews, QuorumFetch, QuorumFetchReply, Vote, VoteReply
from tidelog.raft.quorum import ProposalResult, RaftConfig, RaftPeer, RaftState, Reply, Request
from tidelog.raft.quorum_state import QuorumState
from tidelog.wire.errors import ErrorCode

ROOT = Path(__file__).parents[2]
SEEDS = range(1, 101)
CHUNK = 25


@pytest.fixture
def shared_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "simulated-quorum"
    path.mkdir(exist_ok=True)
    return path


@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_seeds(first: int, shared_path: Path) -> None:
    results = []
    for seed in range(first, first + CHUNK):
        result = run_seed(seed, "quorum")
        assert not result.violations, describe(result)
        assert result.operations >= DECISIONS_MIN
        assert sum(result.faults.values()) >= FAULTS_MIN
        results.append(result._replace(trace=[]))
    unfinished = shared_path / f"{first}.unfinished"
    unfinished.write_text(json.dumps(results))
    unfinished.rename(shared_path / f"{first}.json")
    chunks = list(shared_path.glob("*.json"))
    if len(chunks) == len(SEEDS[::CHUNK]):
        everything = [SeedResult(*fields) for chunk in chunks for fields in json.loads(chunk.read_text())]
        assert len(everything) == len(SEEDS)
        assert rare_faults(everything) == []


def test_a_leader_that_removed_itself_in_vain_leads_again() -> None:
    # The seed found it: the voters that are left lack the record of the removal, and are no majority of the older set.
    assert run_seed(9013, "quorum").violations == []


def test_the_same_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    outputs = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "simulation.run", "--world", "quorum", "--seed", "12", "--trace"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=200)
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) > 500


def test_a_majority_that_elects_nobody_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.quorum_world.QuorumWorld.leader", lambda world: None)
    monkeypatch.setattr("simulation.quorum_world.FAULTS_US_MAX", 1_000_000)
    assert run_seed(1, "quorum").violations[0].kind == "no progress"


def new_host(node_id: int, *entries: Entry) -> QuorumHost:
    log = SimulatedRaftLog(SnapshotStore())
    log.bootstrap(make_voters((1, 2, 3)))
    log.entries = log.durable = entries
    host = QuorumHost(RaftConfig(node_id, directory_id(node_id), endpoints=(endpoint(node_id),)), log, QuorumState())
    host.start(LowRandomness(), 0)
    host.take_messages()
    host.events.clear()
    return host


def pretend(host: QuorumHost, **fields: Any) -> QuorumHost:
    for name, value in fields.items():
        setattr(host.running(), name, value)
    return host


def leader(node_id: int, epoch: int, high_watermark: int, *entries: Entry) -> QuorumHost:
    return pretend(
        new_host(node_id, *entries), state=RaftState.LEADER, quorum_state=QuorumState(epoch), high_watermark=high_watermark
    )


PEER = RaftPeer(1, "n1", 9093)
A, B = Entry(1, "a"), Entry(1, "b")


def sent_vote(checker: QuorumChecker, candidate: int) -> None:
    vote = Vote(3, replica(candidate), replica(1), 0, 0)
    host = new_host(1)
    host.stored = QuorumState(3)
    reply = VoteReply(ErrorCode.NONE, LeaderNews(3), True)
    checker.sent(host, Reply(Origin(candidate, Request(PEER, vote, 1), 0), reply))


def two_leaders(checker: QuorumChecker) -> None:
    checker.look_at(leader(1, 5, 0))
    checker.look_at(leader(2, 5, 0))


def two_votes(checker: QuorumChecker) -> None:
    sent_vote(checker, 2)
    sent_vote(checker, 2)
    sent_vote(checker, 3)


def early_message(checker: QuorumChecker) -> None:
    checker.sent(new_host(1), Request(PEER, Vote(1, replica(1), replica(2), 0, 0), 1))


def early_fetch(checker: QuorumChecker) -> None:
    host = new_host(1, A)
    checker.sent(host, Request(PEER, QuorumFetch(0, replica(1), 1, 0), 1))
    checker.sent(host, Request(PEER, QuorumFetch(0, replica(1), 2, 0), 1))


def lost_entry(checker: QuorumChecker) -> None:
    checker.look_at(leader(1, 1, 2, A, B))
    checker.look_at(leader(2, 2, 0, A))


def changed_entry(checker: QuorumChecker) -> None:
    checker.look_at(leader(1, 1, 2, A, B))
    checker.look_at(pretend(new_host(2, A, A), high_watermark=2))


def older_epoch(checker: QuorumChecker) -> None:
    checker.look_at(leader(1, 2, 1, A, Entry(2, "b")))


def ahead(checker: QuorumChecker) -> None:
    checker.look_at(leader(1, 1, 1, A, B))
    checker.look_at(pretend(new_host(2, A, B), high_watermark=2))


def announced(checker: QuorumChecker) -> None:
    checker.sent(new_host(1), Reply("anybody", QuorumFetchReply(ErrorCode.NONE, LeaderNews(0), high_watermark=7)))


def decision_twice(checker: QuorumChecker) -> None:
    checker.look_at(leader(1, 1, 2, A, A))


def answered_and_lost(checker: QuorumChecker) -> None:
    host = leader(1, 1, 1, A)
    host.results = [ProposalResult("c", 2, None)]
    checker.look_at(host)


def failed_node(checker: QuorumChecker) -> None:
    host = new_host(1)
    host.running().storage_failed("EIO")
    checker.look_at(host)


@pytest.mark.parametrize(
    ("kind", "happen"),
    [
        ("two leaders", two_leaders),
        ("two votes", two_votes),
        ("heard before durable", early_message),
        ("heard before durable", early_fetch),
        ("committed entry lost", lost_entry),
        ("committed entry changed", changed_entry),
        ("older epoch committed by counting", older_epoch),
        ("ahead", ahead),
        ("high watermark", announced),
        ("decision twice", decision_twice),
        ("answered decision lost", answered_and_lost),
        ("node failed", failed_node),
    ],
)
def test_the_checker_finds_each_violation(kind: str, happen: Any) -> None:
    with pytest.raises(QuorumViolation) as raised:
        happen(QuorumChecker())
    assert raised.value.kind == kind
