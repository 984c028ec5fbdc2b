"""Each kind of bad history of transactions is planted, and found."""

from simulation.history import History, PartitionId, Shortage
from simulation.transaction_checker import CommittedPoll, End, Transaction, TransactionHistory, check_transactions

SOURCE = PartitionId(b"s" * 16, 0)
FIRST, SECOND = PartitionId(b"o" * 16, 0), PartitionId(b"o" * 16, 1)
FAR = 1 << 30


class Story:
    """Transactions that write one value to each of two partitions, ``name:0`` and ``name:1``."""

    def __init__(self) -> None:
        self.history = TransactionHistory(History())
        self.history.base.created("orders", SOURCE.topic_id, 1)
        self.history.base.created("events", FIRST.topic_id, 2)

    def begin(self, first: int = 0, after: int = 1) -> Transaction:
        transaction = self.history.begin("w", "w", True, SOURCE, first, after)
        transaction.values = {f"{transaction.name}:0": FIRST, f"{transaction.name}:1": SECOND}
        return transaction

    def end(self, transaction: Transaction, end: End) -> None:
        if end in (End.COMMITTED, End.UNKNOWN):
            self.history.commit_sent(transaction)
        if end is not End.UNKNOWN:
            self.history.ended(transaction, end)

    def poll(
        self,
        partition: PartitionId,
        *records: tuple[int, str],
        last_stable_offset: int = FAR,
        sent_at: int | None = None,
        is_final: bool = False,
    ) -> None:
        now = self.history.base.now
        sent = now() if sent_at is None else sent_at
        self.history.polls.append(CommittedPoll("r", partition, list(records), last_stable_offset, FAR, sent, now(), is_final))

    def final(self, *transactions: Transaction, position: int | None = None) -> None:
        for number, partition in enumerate((FIRST, SECOND)):
            records = [(10 * index, f"{one.name}:{number}") for index, one in enumerate(transactions)]
            self.poll(partition, *records, is_final=True)
        self.history.positions[SOURCE] = transactions[-1].next_offset if position is None else position

    def kinds(self) -> set[str]:
        return {violation.kind for violation in check_transactions(self.history)}


def test_a_good_story() -> None:
    story = Story()
    committed, aborted, unclear = story.begin(0, 2), story.begin(2, 4), story.begin(2, 5)
    story.end(committed, End.COMMITTED)
    story.end(aborted, End.ABORTED)
    story.end(unclear, End.UNKNOWN)
    story.poll(FIRST, (0, f"{committed.name}:0"))
    story.final(committed, unclear)
    assert story.kinds() == set()


def test_an_aborted_read() -> None:
    for end in (End.ABORTED, End.OPEN):
        story = Story()
        transaction = story.begin()
        if end is not End.OPEN:
            story.end(transaction, end)
        story.final(transaction)
        assert story.kinds() == {"aborted read"}


def test_a_read_before_the_commit() -> None:
    story = Story()
    transaction = story.begin()
    story.poll(FIRST, (0, f"{transaction.name}:0"))
    story.end(transaction, End.COMMITTED)
    story.final(transaction)
    assert story.kinds() == {"read before the commit"}


def test_records_that_came_late_and_records_of_nobody() -> None:
    story = Story()
    transaction = story.begin()
    transaction.late.add("w.0:late")
    story.end(transaction, End.COMMITTED)
    story.final(transaction)
    story.poll(FIRST, (7, "w.0:late"), is_final=True)
    assert story.kinds() == {"late records read"}
    story.poll(FIRST, (9, "somebody"), is_final=True)
    assert "never sent" in story.kinds()


def test_a_value_in_another_partition() -> None:
    story = Story()
    transaction = story.begin()
    story.end(transaction, End.COMMITTED)
    story.final(transaction)
    story.poll(SECOND, (0, f"{transaction.name}:0"), is_final=True)
    assert story.kinds() == {"never sent"}


def test_a_lost_write_and_half_a_transaction() -> None:
    for end, kind in ((End.COMMITTED, "lost write"), (End.UNKNOWN, "half a transaction")):
        story = Story()
        transaction = story.begin()
        story.end(transaction, end)
        story.poll(FIRST, (0, f"{transaction.name}:0"), is_final=True)
        story.history.positions[SOURCE] = 1
        assert story.kinds() == {kind}


def test_a_duplicate_write() -> None:
    story = Story()
    transaction = story.begin()
    story.end(transaction, End.COMMITTED)
    story.final(transaction)
    story.poll(FIRST, (5, f"{transaction.name}:0"), is_final=True)
    assert story.kinds() == {"duplicate write"}


def test_what_was_read_and_is_not_there() -> None:
    story = Story()
    transaction = story.begin()
    story.end(transaction, End.UNKNOWN)
    story.poll(FIRST, (0, f"{transaction.name}:0"))
    story.history.positions[SOURCE] = 0
    assert story.kinds() == {"vanished"}


def test_input_taken_twice_skipped_or_with_another_position() -> None:
    for first, position, kind in (
        (1, 4, "input taken twice"),
        (3, 4, "input skipped"),
        (2, 2, "position is not that of the transactions"),
    ):
        story = Story()
        one, other = story.begin(0, 2), story.begin(first, 4)
        story.end(one, End.COMMITTED)
        story.end(other, End.COMMITTED)
        story.final(one, other, position=position)
        assert story.kinds() == {kind}


def test_a_last_stable_offset_past_an_open_transaction() -> None:
    story = Story()
    transaction = story.begin()
    story.poll(FIRST, last_stable_offset=1)
    transaction.written.append((FIRST, 0, story.history.base.now()))
    story.poll(FIRST, last_stable_offset=1)
    story.end(transaction, End.COMMITTED)
    story.final(transaction)
    assert story.kinds() == {"last stable offset past an open transaction"}


def test_a_last_stable_offset_that_waits() -> None:
    story = Story()
    transaction = story.begin()
    transaction.written.append((FIRST, 5, story.history.base.now()))
    story.poll(FIRST, last_stable_offset=5)
    early = story.history.base.now()
    story.end(transaction, End.COMMITTED)
    story.poll(FIRST, last_stable_offset=9, sent_at=early)
    story.final(transaction)
    assert story.kinds() == set()


def test_a_last_stable_offset_that_falls() -> None:
    story = Story()
    story.poll(FIRST, last_stable_offset=7)
    story.poll(FIRST, last_stable_offset=6)
    assert story.kinds() == {"last stable offset fell"}
    # It may, while there are too few replicas.
    story.history.base.topics[FIRST.topic_id].shortages.append(Shortage(0, 1))
    assert story.kinds() == set()
