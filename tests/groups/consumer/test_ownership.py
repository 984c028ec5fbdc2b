"""Members of chance that join, crash, are slow and miss answers, topics that grow, a coordinator that restarts: a partition never
has two owners, and when all is quiet every partition has one."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.groups.consumer.bench import REBALANCE_MS, ConsumerBench, Member
from tidelog.controller.errors import ApiError
from tidelog.wire.errors import ErrorCode

NAMES = "abcd"
TOPICS = ("orders", "prices")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from(NAMES), st.sampled_from([TOPICS, TOPICS[:1], TOPICS[1:]])),
        st.tuples(
            st.sampled_from(["heartbeat", "heartbeat", "heartbeat", "lost", "busy", "leave", "crash"]), st.sampled_from(NAMES)
        ),
        st.tuples(st.just("grow"), st.sampled_from(TOPICS)),
        st.tuples(st.just("time"), st.sampled_from([1_000, 20_000, 40_000])),
        st.tuples(st.just("restart")),
    ),
    min_size=5,
    max_size=40,
)


class Crowd:
    def __init__(self) -> None:
        self.bench = ConsumerBench({"orders": 4, "prices": 3})
        self.alive: dict[str, Member] = {}
        self.topics: dict[str, tuple[str, ...]] = {}
        self.missed: set[str] = set()

    def step(self, action: str, *arguments: object) -> None:
        getattr(self, action)(*arguments)
        self.check()

    def check(self) -> None:
        """A client that was put out counts no more: it learns of it by its next heartbeat, and its own session has ended too."""
        owners: dict[tuple[str, int], str] = {}
        for name, member in self.alive.items():
            if name in self.bench.group.members:
                for partition in member.partitions:
                    assert owners.setdefault(partition, name) == name, f"{partition} has two owners"

    def join(self, name: str, topics: tuple[str, ...]) -> None:
        self.alive[name] = Member(self.bench, name)
        self.topics[name] = topics
        self.alive[name].join(topics)

    def heartbeat(self, name: str) -> None:
        self._send(name, is_heard=True)

    def lost(self, name: str) -> None:
        """The answer does not arrive: the client says everything the next time."""
        self._send(name, is_heard=False)
        self.missed.add(name)

    def busy(self, name: str) -> None:
        """It works on, and says nothing of what it has."""
        self._send(name, is_heard=False, is_silent=True)
        self.missed.add(name)

    def _send(self, name: str, *, is_heard: bool, is_silent: bool = False) -> None:
        member = self.alive.get(name)
        if member is None:
            return
        fields: dict[str, object] = {"owned": None if is_silent else member.owned}
        if name in self.missed and not is_silent:
            fields |= {"rebalance_timeout_ms": REBALANCE_MS, "subscribed_topic_names": list(self.topics[name])}
        try:
            response = self.bench.heartbeat(member.request(**fields))
        except ApiError as error:
            if error.code not in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
                raise
            member.join(self.topics[name])
            self.missed.discard(name)
            return
        if is_heard:
            member.follow(response)
            self.missed.discard(name)

    def leave(self, name: str) -> None:
        member = self.alive.pop(name, None)
        if member is not None and name in self.bench.group.members:
            member.leave()

    def crash(self, name: str) -> None:
        self.alive.pop(name, None)

    def grow(self, topic: str) -> None:
        image = self.bench.image.topic(topic)
        assert image is not None
        self.bench.grow_topic(topic, len(image.partitions) + 1)

    def time(self, duration_ms: int) -> None:
        self.bench.run_for(duration_ms)

    def restart(self) -> None:
        self.bench.restart()

    def heal(self) -> None:
        for _ in range(12):
            self.bench.run_for(5_000)
            for name in sorted(self.alive):
                self.heartbeat(name)
                self.check()
        wanted = {topic for name in self.alive for topic in self.topics[name]}
        owned = sorted(partition for member in self.alive.values() for partition in member.partitions)
        assert owned == sorted(
            (topic.name, index) for topic in self.bench.image.topics for index in topic.partitions if topic.name in wanted
        )
        assert self.bench.group.state_name == ("Stable" if self.alive else "Empty")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_one_owner_at_most_and_one_in_the_end(story: list[tuple[object, ...]]) -> None:
    crowd = Crowd()
    crowd.join("a", TOPICS)
    for action, *arguments in story:
        crowd.step(str(action), *arguments)
    crowd.heal()
