"""Several answers become one."""

from tidelog.broker.gather import Gather


def test_answers_come_in_the_order_of_the_questions_when_all_are_there() -> None:
    said: list[list[object]] = []
    gather = Gather(3, lambda results: said.append(list(results)))
    gather.put(2, "c")
    gather.put(0, "a")
    assert said == []
    gather.put(1, None)
    assert said == [["a", None, "c"]]


def test_no_questions_are_answered_at_once() -> None:
    said: list[list[object]] = []
    Gather(0, lambda results: said.append(list(results)))
    assert said == [[]]
