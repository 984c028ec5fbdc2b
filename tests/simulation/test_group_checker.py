"""Each kind of bad history of a group is planted, and found; and good ones that look like it are let be."""

from simulation.group_checker import Commit, GroupHistory, OffsetRead, Ownership, check_groups
from simulation.history import History, Outcome, PartitionId, Poll
from simulation.scheduler import Scheduler

TOPIC_ID = b"t" * 16
PARTITION = PartitionId(TOPIC_ID, 0)
LONG_US = 1_000_000


class Story:
    """A history that is told step by step. Every step takes a millisecond."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.history = GroupHistory(History(), self.scheduler, {"g": ["a", "b"]})
        self.history.base.created("orders", TOPIC_ID, 1)

    def pass_time(self, duration_us: int = 1_000) -> None:
        self.scheduler.now_us += duration_us

    def own(self, member: str, epoch: int, assured_for_us: int = LONG_US) -> Ownership:
        self.pass_time()
        return self.history.owned("g", member, PARTITION, epoch, self.scheduler.now_us + assured_for_us)

    def give_up(self, ownership: Ownership) -> None:
        self.pass_time()
        self.history.given_up(ownership)

    def read_records(self, *offsets: int, member: str = "a", is_final: bool = False) -> None:
        base = self.history.base
        records = [(offset, f"v{offset}") for offset in offsets]
        reader = "final" if is_final else member
        end = offsets[-1] + 1
        base.polls.append(Poll(reader, 1, PARTITION, offsets[0], records, end, 0, base.now(), base.now(), is_final))

    def send_commit(self, offset: int, epoch: int = 1, member: str = "a") -> Commit:
        return self.history.committing("g", member, PARTITION, epoch, offset)

    def commit(self, offset: int, epoch: int = 1, member: str = "a", outcome: Outcome = Outcome.ACKED) -> Commit:
        commit = self.send_commit(offset, epoch, member)
        self.history.committed(commit, outcome)
        return commit

    def read_offset(self, commit: Commit | None, offset: int | None = None, is_final: bool = False) -> None:
        base = self.history.base
        found = -1 if commit is None else commit.offset if offset is None else offset
        metadata = "" if commit is None else commit.metadata
        self.history.reads.append(OffsetRead("a", "g", PARTITION, found, metadata, base.now(), base.now(), is_final))

    def kinds(self) -> set[str]:
        return {violation.kind for violation in check_groups(self.history)}


def test_a_good_story() -> None:
    story = Story()
    first = story.own("a", 1)
    story.read_records(0, 1)
    story.read_offset(story.commit(2))
    story.give_up(first)
    story.own("b", 2)
    story.read_records(2, member="b")
    story.read_offset(story.commit(3, 2, "b"), is_final=True)
    story.read_records(0, 1, 2, is_final=True)
    assert story.kinds() == set()


def test_two_owners_in_one_generation() -> None:
    story = Story()
    story.give_up(story.own("a", 3))
    story.own("b", 3)
    assert story.kinds() == {"two owners in one generation"}


def test_two_owners_at_a_time() -> None:
    story = Story()
    story.own("a", 3)
    story.own("b", 4)
    assert story.kinds() == {"two owners at a time"}


def test_an_owner_whose_session_may_have_ended_is_not_waited_for() -> None:
    story = Story()
    story.own("a", 3, assured_for_us=500)
    story.own("b", 4)
    assert story.kinds() == set()


def test_one_who_hears_late_that_it_was_an_owner() -> None:
    story = Story()
    story.own("b", 4)
    story.own("a", 3, assured_for_us=-500)
    assert story.kinds() == set()


def test_an_epoch_that_goes_back() -> None:
    story = Story()
    story.give_up(story.own("a", 3))
    story.own("a", 2)
    assert story.kinds() == {"epoch went back"}


def test_a_stale_commit() -> None:
    story = Story()
    story.read_records(0)
    late = story.send_commit(1)
    story.give_up(story.own("a", 1))
    story.own("b", 2)
    story.history.committed(late, Outcome.ACKED)
    assert story.kinds() == set(), "sent before anybody knew of another owner"
    story.commit(1, 1)
    assert story.kinds() == {"stale commit accepted"}


def test_a_stale_commit_that_is_refused() -> None:
    story = Story()
    story.read_records(0)
    story.own("b", 2)
    story.commit(1, 1, outcome=Outcome.FAILED)
    assert story.kinds() == set()


def test_a_lost_commit() -> None:
    story = Story()
    story.read_records(0, 1)
    first = story.commit(1)
    story.commit(2)
    story.read_offset(first)
    assert story.kinds() == {"lost commit"}
    story = Story()
    story.read_records(0)
    story.commit(1)
    story.read_offset(None)
    assert story.kinds() == {"lost commit"}


def test_a_commit_that_was_read_is_not_lost_either() -> None:
    story = Story()
    story.read_records(0, 1)
    first = story.commit(1)
    unclear = story.commit(2, outcome=Outcome.UNKNOWN)
    story.read_offset(first)
    story.read_offset(unclear)
    assert story.kinds() == set()
    story.read_offset(first)
    assert story.kinds() == {"lost commit"}


def test_a_commit_that_nobody_was_told_of_may_come_late() -> None:
    story = Story()
    story.read_records(0, 1)
    unclear = story.commit(1, outcome=Outcome.UNKNOWN)
    story.commit(2)
    story.read_offset(unclear)
    assert story.kinds() == set()


def test_offsets_that_nobody_committed() -> None:
    story = Story()
    story.read_records(0, 1)
    story.read_offset(story.commit(2, outcome=Outcome.FAILED))
    assert story.kinds() == {"refused but committed"}
    story = Story()
    story.read_records(0, 1)
    story.read_offset(story.commit(2), offset=1)
    assert story.kinds() == {"refused but committed"}
    story = Story()
    story.read_offset(Commit("g", "a", PARTITION, 1, 7, "a:99", 1))
    assert story.kinds() == {"never committed"}


def test_records_that_were_skipped() -> None:
    story = Story()
    story.read_records(0, 1)
    story.read_records(3)
    story.commit(4)
    assert story.kinds() == {"committed unread records"}


def test_records_are_read_before_they_are_committed() -> None:
    story = Story()
    story.commit(1)
    story.read_records(0)
    assert story.kinds() == {"committed unread records"}


def test_a_group_that_is_not_drained() -> None:
    story = Story()
    story.read_records(0, 1)
    story.read_offset(story.commit(1), is_final=True)
    story.read_records(0, 1, is_final=True)
    assert story.kinds() == {"not drained"}
