from simulation.clock import SimulatedClock
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tests.broker.harness import fetch_request
from tidelog.broker.fetch_sessions import (
    EPOCH_MAX,
    EVICTION_IDLE_MS,
    PARTITIONS_PER_STEP,
    FetchSession,
    FetchSessions,
    SessionChoice,
    SessionPartition,
)
from tidelog.ports.steps import run_to_end
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import FetchPartition, FetchRequest, FetchResult, FetchTopic


class World:
    def __init__(self, slots_max: int = 2, partitions_max: int = 100) -> None:
        self.scheduler = Scheduler()
        self.sessions = FetchSessions(SimulatedClock(self.scheduler), SimulatedRandomness(1), slots_max, partitions_max)

    def ask_for(self, count: int, session: tuple[int, int] = (0, 0), first: int = 0) -> SessionChoice:
        """A request that names so many partitions."""
        wanted = [FetchPartition(index, 0, 1) for index in range(first, first + count)]
        topics = [FetchTopic("orders", None, wanted)]
        return self.sessions.choose(FetchRequest(-1, 0, 1, 1, 0, *session, topics, [], ""), False)

    def begin(self) -> FetchSession | None:
        return self.sessions.choose(fetch_request(session=(0, 0)), False).session

    def go_on(self, session: FetchSession, epoch: int) -> ErrorCode:
        request = FetchRequest(-1, 0, 1, 1, 0, session.id, epoch, [], [], "")
        return self.sessions.choose(request, False).error

    def pass_time(self, duration_ms: int) -> None:
        self.scheduler.run_for(duration_ms * 1000)


def test_epochs_count_up_and_wrap_to_one() -> None:
    world = World()
    session = world.begin()
    assert session is not None
    assert [world.go_on(session, epoch) for epoch in (1, 2, 3)] == [ErrorCode.NONE] * 3
    assert world.go_on(session, 3) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    session.epoch = EPOCH_MAX
    assert [world.go_on(session, epoch) for epoch in (EPOCH_MAX, 1)] == [ErrorCode.NONE] * 2


def test_a_full_cache_gives_no_session_until_one_has_rested() -> None:
    world = World()
    first, second = world.begin(), world.begin()
    assert first is not None
    assert second is not None
    world.pass_time(EVICTION_IDLE_MS - 1)
    assert world.begin() is None
    assert world.go_on(first, 1) is ErrorCode.NONE
    world.pass_time(1)
    assert world.begin() is not None
    assert world.go_on(second, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert world.go_on(first, 2) is ErrorCode.NONE
    assert len(world.sessions) == 2


def test_no_slots_no_sessions() -> None:
    assert World(slots_max=0).begin() is None


def test_a_request_without_topics_begins_no_session() -> None:
    world = World()
    request = FetchRequest(-1, 0, 1, 1, 0, 0, 0, [], [], "")
    assert world.sessions.choose(request, False).session is None


def test_beginning_again_ends_the_session_before() -> None:
    world = World()
    session = world.begin()
    assert session is not None
    again = world.sessions.choose(fetch_request(session=(session.id, 0)), False).session
    assert again is not None
    assert world.go_on(session, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(world.sessions) == 1


def test_what_is_news() -> None:
    known = SessionPartition(FetchPartition(0, 0, 1))
    quiet = FetchResult(0, ErrorCode.NONE, 5, 5, 0)
    assert [known.update_told(quiet) for _ in range(2)] == [True, False]
    assert known.update_told(quiet._replace(high_watermark=6))
    assert known.update_told(quiet._replace(high_watermark=6, log_start_offset=1))
    failed = FetchResult(0, ErrorCode.KAFKA_STORAGE_ERROR)
    assert [known.update_told(failed) for _ in range(2)] == [True, True]
    assert known.update_told(quiet), "the error is gone, and the reader hears that"


def test_partitions_with_records_go_to_the_end() -> None:
    session = FetchSession(1, 0, False)
    wanted = [FetchPartition(index, 0, 1) for index in range(3)]
    run_to_end(session.update(FetchRequest(-1, 0, 1, 1, 0, 0, 0, [FetchTopic("a", None, wanted)], [], "")))
    session.rotate(("a", None, 0))
    assert [index for _, _, index in session.partitions] == [1, 2, 0]


def test_what_all_sessions_remember_is_bounded() -> None:
    world = World(slots_max=1000, partitions_max=10)
    first = world.ask_for(6).session
    assert first is not None
    refused = world.ask_for(5)
    assert (refused.session, refused.error) == (None, ErrorCode.NONE), "it is answered, but nothing is kept"
    second = world.ask_for(4).session
    assert second is not None
    assert world.ask_for(1, (second.id, 1), first=100).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(world.sessions) == 1
    assert world.ask_for(4).session is not None, "what was dropped is not counted any more"
    assert world.go_on(first, 1) is ErrorCode.NONE


def test_a_reader_that_disconnects_in_the_middle_of_a_large_request_has_what_it_left_counted() -> None:
    world = World(slots_max=1000, partitions_max=PARTITIONS_PER_STEP + 10)
    wanted = [FetchPartition(index, 0, 1) for index in range(2 * PARTITIONS_PER_STEP)]
    request = FetchRequest(-1, 0, 1, 1, 0, 0, 0, [FetchTopic("orders", None, wanted)], [], "")
    steps = world.sessions.choose_in_slices(request, False)
    next(steps)
    steps.close()
    assert world.ask_for(11).session is None
    assert world.ask_for(10).session is not None
    world.pass_time(EVICTION_IDLE_MS)
    assert world.ask_for(PARTITIONS_PER_STEP + 10).session is not None, "each is counted out once"


def test_sessions_that_have_rested_make_room_for_what_others_want_to_remember() -> None:
    world = World(slots_max=1000, partitions_max=10)
    first, second = world.ask_for(5).session, world.ask_for(5).session
    assert first is not None
    assert second is not None
    world.pass_time(EVICTION_IDLE_MS)
    assert world.go_on(second, 1) is ErrorCode.NONE
    assert world.ask_for(5).session is not None
    assert world.go_on(first, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert world.go_on(second, 2) is ErrorCode.NONE
