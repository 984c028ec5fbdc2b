from collections.abc import Callable, Sequence

from tests.controller.cluster import RULES, STATIC, new_image, randomness, replay
from tidelog.controller.decision_queue import WAITING_MAX, ControllerResult, DecisionQueue
from tidelog.controller.errors import ApiError
from tidelog.controller.topics import NewTopic, TopicCreation, create_topics
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import MetadataRecord, NoOpRecord
from tidelog.wire.errors import ErrorCode


class Quorum:
    """Commits when told to."""

    def __init__(self) -> None:
        self.image = new_image()
        self.queue = DecisionQueue(self.image, self.propose)
        self.proposed: list[tuple[Sequence[MetadataRecord], Callable[[Exception | None], None]]] = []
        self.heard: list[tuple[object, Exception | None]] = []

    def propose(self, records: Sequence[MetadataRecord], on_done: Callable[[Exception | None], None]) -> None:
        self.proposed.append((records, on_done))

    def commit(self, error: Exception | None = None) -> None:
        records, on_done = self.proposed.pop(0)
        if error is None:
            replay(self.image, records)
        on_done(error)

    def submit(self, decide: Callable[[ClusterImage], ControllerResult[object]]) -> None:
        self.queue.submit(decide, lambda response, error: self.heard.append((response, error)))


def create_orders(image: ClusterImage) -> ControllerResult[list[TopicCreation]]:
    return create_topics(image, RULES, STATIC, [NewTopic("orders")], randomness())


def test_the_second_of_two_equal_decisions_sees_the_first() -> None:
    quorum = Quorum()
    codes: list[ErrorCode] = []
    for _ in range(2):
        quorum.queue.submit(create_orders, lambda response, error: codes.append(response[0].error))
    assert (len(quorum.proposed), len(quorum.queue), codes) == (1, 1, [])
    quorum.commit()
    assert codes == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]
    assert quorum.proposed == []


def test_a_decision_without_records_waits_for_those_before_it() -> None:
    quorum = Quorum()
    quorum.submit(lambda image: ControllerResult([NoOpRecord()], "first"))
    quorum.submit(lambda image: ControllerResult([], "second"))
    assert quorum.heard == []
    quorum.commit()
    assert quorum.heard == [("first", None), ("second", None)]


def test_what_is_not_committed_is_told_and_the_next_one_is_decided_without_it() -> None:
    quorum = Quorum()
    error = OSError("broken")
    quorum.submit(lambda image: ControllerResult([NoOpRecord()], "never"))
    quorum.submit(lambda image: ControllerResult([NoOpRecord()], image.last_offset))
    quorum.commit(error)
    assert quorum.heard == [(None, error)]
    quorum.commit()
    assert quorum.heard[1:] == [(0, None)]


def test_a_refusal_is_told_and_does_not_stop_the_queue() -> None:
    quorum = Quorum()
    refusal = ApiError(ErrorCode.INVALID_REQUEST, "no")

    def refuse(image: ClusterImage) -> ControllerResult[object]:
        raise refusal

    quorum.submit(refuse)
    quorum.submit(lambda image: ControllerResult([], "next"))
    assert quorum.heard == [(None, refusal), ("next", None)]


def test_thousands_of_decisions_that_end_at_once_do_not_pile_up_on_the_stack() -> None:
    quorum = Quorum()
    quorum.submit(lambda image: ControllerResult([NoOpRecord()], "first"))
    for _ in range(WAITING_MAX):
        quorum.submit(lambda image: ControllerResult([], "next"))
    quorum.commit()
    assert len(quorum.heard) == WAITING_MAX + 1


def test_a_decision_made_from_within_an_answer_comes_after_those_that_wait() -> None:
    quorum = Quorum()

    def answered(response: object, error: Exception | None) -> None:
        quorum.heard.append((response, error))
        quorum.submit(lambda image: ControllerResult([], "third"))

    quorum.queue.submit(lambda image: ControllerResult([NoOpRecord()], "first"), answered)
    quorum.submit(lambda image: ControllerResult([], "second"))
    quorum.commit()
    assert [response for response, _ in quorum.heard] == ["first", "second", "third"]


def test_one_whose_asker_has_gone_is_not_begun() -> None:
    quorum = Quorum()
    is_there = True
    begun: list[str] = []

    def decide(image: ClusterImage) -> ControllerResult[object]:
        begun.append("for nobody")
        return ControllerResult([NoOpRecord()], "for nobody")

    quorum.submit(lambda image: ControllerResult([NoOpRecord()], "first"))
    quorum.queue.submit(decide, lambda response, error: quorum.heard.append((response, error)), lambda: is_there)
    quorum.submit(lambda image: ControllerResult([], "last"))
    is_there = False
    quorum.commit()
    assert begun == []
    assert quorum.heard == [("first", None), ("last", None)]


def test_no_more_wait_than_a_disk_can_sync_in_some_seconds() -> None:
    quorum = Quorum()
    quorum.submit(lambda image: ControllerResult([NoOpRecord()], "first"))
    for _ in range(WAITING_MAX + 3):
        quorum.submit(lambda image: ControllerResult([], "next"))
    assert len(quorum.queue) == WAITING_MAX
    assert [getattr(error, "code", None) for _, error in quorum.heard] == [ErrorCode.REQUEST_TIMED_OUT] * 3


def test_records_that_cannot_be_proposed_do_not_stop_the_queue() -> None:
    error = ValueError("cannot be encoded")
    heard: list[tuple[object, Exception | None]] = []

    def propose(records: Sequence[MetadataRecord], on_done: Callable[[Exception | None], None]) -> None:
        raise error

    queue = DecisionQueue(new_image(), propose)
    for _ in range(2):
        queue.submit(lambda image: ControllerResult([NoOpRecord()], "never"), lambda *told: heard.append(told))
    assert heard == [(None, error)] * 2
