"""Producer ids: each once, a block ahead, and who waits is answered whatever happens."""

from tidelog.coordinator.errors import CoordinatorLoading
from tidelog.transactions.producer_ids import LOW_WATER_IDS, WAITERS_MAX, OnBlock, ProducerIdBlock, ProducerIds


class Controller:
    """Gives out blocks when a test says so."""

    def __init__(self) -> None:
        self.asked: list[OnBlock] = []
        self.next_id = 0

    def allocate(self, on_block: OnBlock) -> None:
        self.asked.append(on_block)

    def give(self, size: int = 1000) -> None:
        first, self.next_id = self.next_id, self.next_id + size
        self.asked.pop(0)(ProducerIdBlock(first, size), None)


def test_each_id_is_given_once_over_many_blocks() -> None:
    controller = Controller()
    producer_ids = ProducerIds(controller.allocate)
    taken: list[int] = []
    while len(taken) < 5000:
        found = producer_ids.take()
        if found is None:
            controller.give()
        else:
            taken.append(found)
    assert taken == list(range(5000))


def test_the_next_block_is_asked_for_before_the_last_id_is_gone() -> None:
    controller = Controller()
    producer_ids = ProducerIds(controller.allocate)
    assert producer_ids.take() is None
    controller.give()
    for _ in range(1000 - LOW_WATER_IDS):
        producer_ids.take()
    assert controller.asked == []
    assert producer_ids.take() is not None
    assert len(controller.asked) == 1, "once, however many are taken after it"
    assert producer_ids.take() is not None
    assert len(controller.asked) == 1
    controller.give()
    assert producer_ids.left == 2 * 1000 - (1000 - LOW_WATER_IDS) - 2


def test_who_waits_is_called_when_there_is_a_block() -> None:
    controller = Controller()
    producer_ids = ProducerIds(controller.allocate)
    taken: list[int | None] = []
    for _ in range(7):
        producer_ids.when_available(lambda error: taken.append(producer_ids.take()))
    assert taken == []
    controller.give(3)
    assert taken == [0, 1, 2]
    controller.give(3)
    controller.give(3)
    assert taken == [0, 1, 2, 3, 4, 5, 6]
    producer_ids.when_available(lambda error: taken.append(producer_ids.take()))
    assert taken[-1] == 7, "at once, when there are some"


def test_when_no_block_can_be_had_everybody_hears_it_and_the_next_one_asks_again() -> None:
    controller = Controller()
    producer_ids = ProducerIds(controller.allocate)
    heard: list[Exception | None] = []
    producer_ids.when_available(heard.append)
    producer_ids.when_available(heard.append)
    controller.asked.pop()(None, OSError("no disk"))
    assert [type(error) for error in heard] == [CoordinatorLoading] * 2, "every client tries again after that"
    assert "no disk" in str(heard[0])
    assert controller.asked == []
    producer_ids.when_available(heard.append)
    controller.give()
    assert heard[2:] == [None]


def test_only_so_many_wait() -> None:
    controller = Controller()
    producer_ids = ProducerIds(controller.allocate)
    heard: list[Exception | None] = []
    for _ in range(WAITERS_MAX + 1):
        producer_ids.when_available(heard.append)
    assert len(heard) == 1
    assert isinstance(heard[0], CoordinatorLoading)
