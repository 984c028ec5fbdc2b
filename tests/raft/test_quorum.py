"""What the traces cannot say: inputs that a host gets wrong, bounds, and a sweep over every order of disk and network."""

import random
from collections.abc import Iterator

import pytest

from simulation.quorum_checker import QuorumChecker
from simulation.quorum_host import (
    Origin,
    QuorumHost,
    SimulatedRaftLog,
    SnapshotStore,
    directory_id,
    endpoint,
    make_voters,
    replica,
)
from tests.raft.trace_cluster import LowRandomness
from tidelog.raft import quorum
from tidelog.raft.errors import CorruptMetadataLog, NotQuorumLeader, QuorumError, TooManyProposals
from tidelog.raft.messages import (
    AddVoter,
    FetchSnapshot,
    LeaderNews,
    QuorumFetch,
    QuorumFetchReply,
    RemoveVoter,
    SnapshotId,
    Vote,
    VoteReply,
)
from tidelog.raft.quorum import QuorumTimer, RaftConfig, RaftState, Request, RequestFailure
from tidelog.raft.quorum_state import QuorumState
from tidelog.raft.voters import KRaftVersion, VoterHistory, VotersRecord
from tidelog.wire.errors import ErrorCode


def new_host(node_id: int = 1, voter_ids: tuple[int, ...] = (1, 2, 3), retry_backoff_ms: int = 20) -> QuorumHost:
    log = SimulatedRaftLog(SnapshotStore())
    log.bootstrap(make_voters(voter_ids))
    config = RaftConfig(node_id, directory_id(node_id), "cluster", (endpoint(node_id),), retry_backoff_ms=retry_backoff_ms)
    host = QuorumHost(config, log, QuorumState())
    host.start(LowRandomness(), 0)
    return host


def lone_leader() -> QuorumHost:
    host = new_host(voter_ids=(1,))
    host.finish_disk_work()
    assert host.running().is_leading
    return host


def test_a_lone_voter_leads_after_one_store_and_one_sync() -> None:
    host = new_host(voter_ids=(1,))
    assert host.storing == QuorumState(1, 1, 1, directory_id(1))
    assert host.log.end_offset == 0, "nothing may be written in an epoch that is not stored"
    host.finish_store()
    assert (host.log.end_offset, host.running().is_leading) == (3, False)
    host.finish_sync()
    assert host.running().is_leading


def test_a_node_without_leadership_takes_no_proposal() -> None:
    with pytest.raises(NotQuorumLeader):
        new_host().running().propose("x", "x")


def test_only_so_many_proposals_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum, "PROPOSALS_MAX", 3)
    host = lone_leader()
    for value in "abc":
        host.running().propose(value, value)
    end_offset = host.log.end_offset
    with pytest.raises(TooManyProposals):
        host.running().propose("d", "d")
    assert host.log.end_offset == end_offset
    host.collect()
    host.finish_disk_work()
    assert [result.token for result in host.results] == ["a", "b", "c"]


def test_only_so_many_observers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum, "OBSERVERS_MAX", 3)
    host = lone_leader()
    node = host.running()
    for number in range(2, 9):
        node.tick(number)
        node.step(QuorumFetch(1, replica(number), 0, 0), number)
    assert [each.key.node_id for each in node.replicas] == [6, 7, 8]


def test_one_fetch_per_replica_is_parked_and_every_one_is_answered() -> None:
    host = lone_leader()
    node = host.running()
    fetch = QuorumFetch(1, replica(2), 3, 1, max_wait_ms=500)
    node.step(fetch, "first")
    assert node.next_deadline_ms is not None
    assert host.take_messages() == []
    node.step(fetch, "second")
    host.collect()
    (reply,) = host.take_messages()
    assert reply[0] == "first"
    node.tick(501)
    host.collect()
    (reply,) = host.take_messages()
    assert reply[0] == "second"


def test_a_leader_resigns_when_the_fetch_time_out_has_passed_since_a_majority_last_fetched() -> None:
    host = new_host(voter_ids=(1, 2, 3, 4, 5))
    node = host.running()
    node.expire(QuorumTimer.ELECTION)
    host.collect()
    for _ in ("pre-votes", "votes"):
        requests = [message for message in host.take_messages() if isinstance(message, Request)]
        for sent in requests[:2]:
            node.receive(sent, VoteReply(ErrorCode.NONE, LeaderNews(node.epoch), True))
        host.collect()
        host.finish_disk_work()
    assert node.state is RaftState.LEADER
    for now_ms, voter in ((10, 2), (1_900, 3)):
        node.tick(now_ms)
        node.step(QuorumFetch(node.epoch, replica(voter), 0, 0), voter)
    states = []
    for now_ms in (2_009, 2_010):
        node.tick(now_ms)
        states.append(node.state)
    # Voter 2 has not fetched for 2,000 ms, and two of five are no majority.
    assert states == [RaftState.LEADER, RaftState.RESIGNED]


def test_a_voter_that_fetches_a_snapshot_is_still_heard_of_when_the_voters_change() -> None:
    host = new_host()
    node = host.running()
    node.expire(QuorumTimer.ELECTION)
    host.collect()
    for _ in ("pre-vote", "vote"):
        requests = [message for message in host.take_messages() if isinstance(message, Request)]
        node.receive(requests[0], VoteReply(ErrorCode.NONE, LeaderNews(node.epoch), True))
        host.collect()
        host.finish_disk_work()
    node.tick(10)
    node.step(QuorumFetch(node.epoch, replica(2), host.log.end_offset, node.epoch), "log")
    host.collect()
    host.finish_disk_work()
    assert node.is_leading
    node.tick(1_900)
    node.step(FetchSnapshot(node.epoch, replica(2), SnapshotId(0, 0), 0, 1, "cluster"), "snapshot")
    node.step(QuorumFetch(node.epoch, replica(4), host.log.end_offset, node.epoch), "observer")
    node.step(AddVoter(replica(4), (endpoint(4),), 5_000, "cluster"), "admin")
    assert node.voters.ids == (1, 2, 3, 4)
    node.tick(2_100)
    assert node.state is RaftState.LEADER


def test_an_append_that_fails_is_not_in_the_log_and_leads_to_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    host = lone_leader()

    def fail(*_: object) -> int:
        raise QuorumError("the disk is full")

    monkeypatch.setattr(SimulatedRaftLog, "append", fail)
    with pytest.raises(QuorumError):
        host.running().propose("x", "x")
    monkeypatch.setattr(SimulatedRaftLog, "append_control", fail)
    host.running().step(RemoveVoter(replica(2), "cluster"), "admin")
    host.collect()
    host.finish_disk_work()
    assert host.results == []
    restarted = new_host(voter_ids=(1,))
    restarted.finish_store()
    assert restarted.running().state is RaftState.RESIGNED, "a leader that cannot write lets others lead"


def test_a_node_that_led_an_epoch_that_it_forgot_does_not_vote_in_it() -> None:
    host = new_host()
    node = host.running()
    node.expire(QuorumTimer.ELECTION)
    host.collect()
    sent = next(message for message in host.take_messages() if isinstance(message, Request))
    node.receive(sent, VoteReply(ErrorCode.FENCED_LEADER_EPOCH, LeaderNews(7, 1)))
    host.collect()
    assert ("quorum_state_lost", 7) in [(event.name, dict(event.fields).get("epoch")) for event in host.events]
    host.finish_disk_work()
    assert (host.stored.leader_epoch, host.stored.voted_id) == (7, 1)


def test_a_quorum_state_that_is_older_than_the_log_gives_no_vote_in_the_logs_epoch() -> None:
    host = new_host()
    host.log.append_control([KRaftVersion(1), VotersRecord(make_voters((1, 2, 3)))], 5)
    host.crash(2)
    host.start(LowRandomness(), 0)
    host.running().step(Vote(5, replica(2), replica(1), 4, 99), "candidate")
    host.collect()
    host.finish_disk_work()
    (reply,) = host.take_messages()
    assert isinstance(reply[1], VoteReply)
    assert not reply[1].vote_granted


def test_a_node_whose_disk_failed_asks_for_nothing_and_has_no_deadline_whatever_happens() -> None:
    host = lone_leader()
    node = host.running()
    node.storage_failed("EIO")
    host.collect()
    for happen in (node.resign, node.state_stored, node.log_synced, node.truncated, node.snapshot_installed):
        happen()
    node.tick(60_000)
    node.step(Vote(9, replica(2), replica(1), 8, 99), "candidate")
    host.collect()
    assert not host.has_disk_work
    assert host.take_messages() == []
    assert (node.next_deadline_ms, node.is_leading, node.failure) == (None, False, "EIO")


def test_a_report_that_nobody_waits_for_changes_nothing() -> None:
    host = lone_leader()
    node = host.running()
    node.state_stored()
    node.log_synced()
    host.collect()
    assert not host.has_disk_work
    assert (node.epoch, node.is_leading) == (1, True)


def test_an_unanswered_request_is_repeated_after_its_time_and_a_pause() -> None:
    host = new_host()
    node = host.running()
    node.expire(QuorumTimer.ELECTION)
    host.collect()
    assert len(host.take_messages()) == 2
    times: list[int] = []
    for now_ms in range(0, 4000, 10):
        node.tick(now_ms)
        host.collect()
        if node.state is RaftState.PROSPECTIVE and any(isinstance(each, Request) for each in host.take_messages()):
            times.append(now_ms)
    assert times
    assert node.next_deadline_ms is not None


def test_a_log_that_begins_above_0_needs_a_snapshot_that_covers_what_is_missing() -> None:
    host = lone_leader()
    host.running().propose("x", "x")
    host.collect()
    host.finish_disk_work()
    host.log.take_snapshot(3)
    host.start(LowRandomness(), 0)
    host.log.snapshot_id = None
    with pytest.raises(CorruptMetadataLog, match="begins at offset 3"):
        host.start(LowRandomness(), 0)


def test_an_observer_does_not_ask_the_same_server_again_that_named_a_leader_who_is_gone() -> None:
    log = SimulatedRaftLog(SnapshotStore())
    log.bootstrap(make_voters((1, 2, 3)))
    servers = (("n2", 9093), ("n3", 9093))
    config = RaftConfig(4, directory_id(4), bootstrap_servers=servers, retry_backoff_ms=0)
    host = QuorumHost(config, log, QuorumState())
    host.start(LowRandomness(), 0)
    asked = []
    for _ in range(3):
        (sent,) = host.take_messages()
        assert isinstance(sent, Request)
        asked.append(sent.peer.host)
        news = LeaderNews(1, 1, endpoint(1))
        host.running().receive(sent, QuorumFetchReply(ErrorCode.NOT_LEADER_OR_FOLLOWER, news))
        host.collect()
        host.finish_disk_work()
        host.take_messages()
        host.running().expire(QuorumTimer.FETCH)
        host.collect()
    assert asked == ["n2", "n3", "n2"]


def test_the_voter_history_goes_back_with_the_log() -> None:
    history = VoterHistory(make_voters((1,)))
    assert (history.voters.ids, history.kraft_version, history.voters_offset) == ((1,), 0, -1)
    history.note([(3, KRaftVersion(1)), (4, VotersRecord(make_voters((1, 2))))])
    history.note([(9, VotersRecord(make_voters((1, 2, 3))))])
    assert (history.voters.ids, history.voters_offset) == ((1, 2, 3), 9)
    history.truncate(9)
    assert (history.voters.ids, history.kraft_version, history.voters_offset) == ((1, 2), 1, 4)
    history.truncate(4)
    assert (history.voters.ids, history.kraft_version) == ((1,), 1)


class Sweep:
    """Three nodes whose disks and network do one step at a time in any order; the checker looks at everything that leaves."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.hosts = {node_id: new_host(node_id, retry_backoff_ms=0) for node_id in (1, 2, 3)}
        self.checker = QuorumChecker()
        self.transit: list[tuple[int, Origin, object]] = []

    def steps(self) -> Iterator[None]:
        while True:
            host = self.hosts[self.random.choice((1, 2, 3))]
            roll = self.random.random()
            if roll < 0.01:
                self.expire(host)
            elif roll < 0.3 and host.has_disk_work:
                finishes = [(host.storing, host.finish_store), (host.syncing, host.finish_sync), (host.cutting, host.finish_cut)]
                self.random.choice([finish for wanted, finish in finishes if wanted is not None])()
            elif 0.3 <= roll < 0.303:
                host.crash(self.random.randint(0, len(host.log.entries) - len(host.log.durable)))
                host.start(LowRandomness(), 0)
            elif 0.31 < roll < 0.35 and host.running().is_leading:
                value = f"{self.random.random()}"
                host.running().propose(value, value)
            elif self.transit:
                self.deliver(*self.transit.pop(self.random.randrange(len(self.transit))))
            self.collect(host)
            yield

    def expire(self, host: QuorumHost) -> None:
        timers = [timer for timer in host.running().armed_timers if timer is not QuorumTimer.OBSERVERS]
        if timers:
            host.running().expire(self.random.choice(timers))

    def deliver(self, to: int, origin: Origin, reply: object) -> None:
        host = self.hosts[to]
        if reply is None:
            host.running().step(origin.sent.request, origin)
        elif origin.incarnation == host.incarnation:
            if self.random.random() < 0.9:
                host.running().receive(origin.sent, reply)  # type: ignore[arg-type]  # what a node replied
            else:
                host.running().request_failed(origin.sent, RequestFailure.LOST)
        self.collect(host)

    def collect(self, host: QuorumHost) -> None:
        host.collect()
        self.checker.look_at(host)
        host.results.clear()
        host.events.clear()
        for message in host.take_messages():
            self.checker.sent(host, message)
            if isinstance(message, Request):
                self.transit.append((message.peer.node_id, host.origin(message), None))
            elif isinstance(message.reply_to, Origin):
                self.transit.append((message.reply_to.node_id, message.reply_to, message.reply))


@pytest.mark.parametrize("seed", range(8))
def test_nothing_leaves_before_it_is_durable_in_any_order_of_disk_and_network(seed: int) -> None:
    sweep = Sweep(seed)
    for _, _ in zip(range(1_000), sweep.steps(), strict=False):
        pass
    assert len(sweep.checker.committed) > 3, "the sweep must get somewhere"


def test_a_leader_whose_log_is_ahead_of_its_quorum_state_does_not_say_that_it_led_the_logs_epoch() -> None:
    host = lone_leader()
    host.finish_disk_work()
    host.log.append_control([KRaftVersion(1), VotersRecord(make_voters((1, 2, 3)))], 5)
    host.crash(2)
    host.start(LowRandomness(), 0)
    host.collect()
    host.finish_disk_work()
    assert (host.running().state, host.stored.leader_epoch, host.stored.leader_id) == (RaftState.UNATTACHED, 5, -1)


def test_a_leader_whose_disk_failed_names_nobody_as_the_leader() -> None:
    host = lone_leader()
    host.running().storage_failed("EIO")
    assert host.running().leader_id == -1
