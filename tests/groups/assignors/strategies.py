"""Groups of chance, and what every assignor must hold."""

from collections.abc import Mapping

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tidelog.groups.assignors.specification import Assignments, Members, MemberSubscription

# On a busy machine an example may take as long as it likes.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

TOPICS = [bytes([index]) * 16 for index in range(1, 6)]

partition_counts = st.lists(st.integers(1, 9), min_size=len(TOPICS), max_size=len(TOPICS)).map(
    lambda counts: dict(zip(TOPICS, counts, strict=True))
)
topic_sets = st.frozensets(st.sampled_from(TOPICS))


@st.composite
def groups(draw: st.DrawFn, *, homogeneous: bool, members_max: int = 6) -> tuple[dict[str, MemberSubscription], dict[bytes, int]]:
    """Members without an assignment yet."""
    counts = draw(partition_counts)
    shared = draw(topic_sets)
    names = draw(st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=members_max, unique=True))
    members = {
        name: MemberSubscription(shared if homogeneous else draw(topic_sets), draw(st.none() | st.just(f"instance-{name}")))
        for name in names
    }
    return members, counts


def with_assignment(members: Members, assignments: Assignments) -> dict[str, MemberSubscription]:
    return {name: member._replace(assigned=assignments.get(name, {})) for name, member in members.items()}


def flat(assignments: Assignments) -> dict[tuple[bytes, int], str]:
    owners: dict[tuple[bytes, int], str] = {}
    for name, topics in assignments.items():
        for topic_id, partitions in topics.items():
            assert partitions, "a topic without partitions is left out"
            assert list(partitions) == sorted(set(partitions))
            for partition in partitions:
                assert (topic_id, partition) not in owners, "at most one owner"
                owners[(topic_id, partition)] = name
    return owners


def check(members: Members, counts: Mapping[bytes, int], assignments: Assignments) -> None:
    """Every partition that somebody subscribes to has one owner, who subscribes to it; nothing else is assigned."""
    assert set(assignments) == set(members)
    owners = flat(assignments)
    subscribed = {topic_id for member in members.values() for topic_id in member.topic_ids}
    assert set(owners) == {(topic_id, partition) for topic_id in subscribed for partition in range(counts[topic_id])}
    for (topic_id, _), name in owners.items():
        assert topic_id in members[name].topic_ids


def load(assignments: Assignments, name: str) -> int:
    return sum(len(partitions) for partitions in assignments[name].values())


def loads(assignments: Assignments) -> list[int]:
    return sorted(load(assignments, name) for name in assignments)


def moved(before: Assignments, after: Assignments) -> int:
    """Partitions that had an owner and have another one now."""
    owners = flat(after)
    return sum(1 for topic_partition, name in flat(before).items() if owners.get(topic_partition, name) != name)
