"""Waiting until a group has shared out its partitions."""

from collections.abc import Sequence

from tests.compatibility.clients.groups.conftest import Flow
from tests.compatibility.clients.groups.ledger import Ledger
from tests.compatibility.clients.groups.member import Member, Partition, all_of
from tests.compatibility.clients.groups.member_process import MemberProcess
from tests.compatibility.clients.waiting import wait_until

Participant = Member | MemberProcess


def wait_until_shared_out(members: Sequence[Participant], topic: str, partitions: int) -> None:
    """Each partition has one owner, and no member has two more than another."""

    def is_shared_out() -> bool:
        for member in members:
            if isinstance(member, Member) and member.error is not None:
                raise member.error
        return are_shared_out(members, all_of(topic, partitions))

    try:
        wait_until(is_shared_out, f"{partitions} partitions shared out")
    except TimeoutError as error:
        shares = {str(member): sorted(member.owned) for member in members}
        raise TimeoutError(f"{partitions} partitions of {topic} are not shared out: {shares}") from error


def are_shared_out(members: Sequence[Participant], partitions: frozenset[Partition]) -> bool:
    shares = [member.owned for member in members]
    sizes = [len(share) for share in shares]
    return frozenset().union(*shares) == partitions and sum(sizes) == len(partitions) and max(sizes) - min(sizes) <= 1


def wait_until_all_read(ledger: Ledger, topic: str, flow: Flow) -> None:
    """And nothing went wrong on the way."""
    wait_until(lambda: ledger.problems or ledger.has_read_all(topic, flow.end_offsets), "every record read")
    assert ledger.problems == [], ledger.problems[:5]
