"""The letters of a retry partition: those that are due from the head on, in the order of the log."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.message import Message
from tidelog.worker.letters import foreign_letter
from tidelog.worker.retry_queue import RetryQueue


@given(st.lists(st.integers(0, 50)), st.lists(st.integers(0, 60)))
def test_letters_come_in_order_when_the_head_is_due(dues: list[int], times: list[int]) -> None:
    queue = RetryQueue()
    letters = [foreign_letter("t", 0, 0, number, None, "g")._replace(due_ms=due) for number, due in enumerate(dues)]
    for letter in letters:
        queue.add(Message.of(offset=letter.offset), letter)
    taken = []
    for now_ms in sorted(times):
        for _, letter in queue.take_due(now_ms):
            assert letter.due_ms is not None
            assert letter.due_ms <= now_ms
            taken.append(letter)
        assert queue.due_ms is None or queue.due_ms > now_ms
    assert taken == letters[: len(taken)]
    assert len(queue) == len(letters) - len(taken)
