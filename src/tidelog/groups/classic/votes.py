"""Which protocol a generation uses: of those that every member has, the one that most members prefer."""

from collections.abc import Collection

from tidelog.groups.classic.member import ClassicMember


def select_protocol(members: Collection[ClassicMember]) -> str | None:
    """The first in the order of members wins among equals. None when they have nothing in common."""
    counts: dict[str, int] = {}
    for member in members:
        for name, _ in dict(member.protocols).items():
            counts[name] = counts.get(name, 0) + 1
    votes: dict[str, int] = {}
    for member in members:
        for name, _ in member.protocols:
            if counts[name] == len(members):
                votes[name] = votes.get(name, 0) + 1
                break
    return max(votes, key=votes.__getitem__, default=None)
