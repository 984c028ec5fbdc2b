"""``tidelog reassign``: plan, begin, follow and cancel moves of partitions to other brokers.

Plans are in the JSON format of Kafka's own tool. A plan is checked as a whole before anything moves. The moves go on in the
cluster when the command has ended; ``--verify`` tells what is left. The calls go through ``tidelog.client.reassignment``, which
speaks plaintext only, and work on any Kafka since 2.4.
"""

import json
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from tidelog.cli.errors import CommandFailed, ExitCode
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, KafkaCluster, PlaintextOption, plaintext_options
from tidelog.cli.output import count_of, format_bytes, make_console, say, show_json, show_table
from tidelog.client.admin import Admin, ClusterDescription
from tidelog.client.balance import BrokerPlaces, PlanImpossible, balanced, with_replication_factor
from tidelog.client.leader_elections import LeaderElectionAdmin
from tidelog.client.quorum import QuorumAdmin
from tidelog.client.reassignment import MovingPartition, ReassignmentAdmin, ReassignmentsRefused
from tidelog.client.registered_brokers import RegisteredBrokersAdmin
from tidelog.client.throttle import remove_throttles, throttle
from tidelog.client.wire.errors import ClientError

INTERNAL_TOPICS = ("__consumer_offsets", "__share_group_state", "__transaction_state")
# Kafka's default for internal topics; a smaller cluster has as many replicas as brokers.
INTERNAL_REPLICATION_FACTOR = 3
PLAN_VERSION = 1

app = typer.Typer()

Plan = dict[tuple[str, int], tuple[int, ...]]

_RATE = re.compile(r"([1-9][0-9]{0,14})([kMG]?)(B(/s)?)?")
_UNITS = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
# How long the speed of the moves under way is measured.
MEASURE_SECONDS = 1.0

ThrottleOption = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar="RATE",
        help="Copy at most this much per second and broker, such as 20MB; alone, for what moves already.",
    ),
]


def read_rate(text: str | None) -> int | None:
    """Bytes per second."""
    found = _RATE.fullmatch(text) if text is not None else None
    if text is not None and found is None:
        raise CommandFailed(f"--throttle {text}: expected bytes per second, such as 20000000 or 20MB")
    return int(found[1]) * _UNITS[found[2]] if found is not None else None


class OperatedCluster(NamedTuple):
    """A cluster as an operator sees it, and the means to change it."""

    admin: Admin
    reassignments: ReassignmentAdmin
    brokers: RegisteredBrokersAdmin
    quorum: QuorumAdmin
    elections: LeaderElectionAdmin

    def assignment(self, description: ClusterDescription) -> Plan:
        """The replicas of all partitions. Raises CommandFailed while some of them move."""
        moving = self.reassignments.ongoing()
        if moving:
            raise CommandFailed(
                f"{count_of(len(moving), 'partition')} still moving: wait (tidelog reassign --verify) or cancel (--cancel)"
            )
        return {(topic, each.partition): each.replicas for topic, parts in description.topics.items() for each in parts}

    def places(self, description: ClusterDescription) -> BrokerPlaces:
        """The brokers that run, the racks of all, and the bytes of each partition."""
        racks = {each.broker_id: each.rack for each in self.brokers.describe().values()}
        sizes: dict[tuple[str, int], int] = {}
        for (key, _), size in self.reassignments.sizes(description.brokers).items():
            sizes[key] = max(size, sizes.get(key, 0))
        return BrokerPlaces(description.brokers, racks, sizes)

    def begin(self, plan: Plan, current: Plan, bytes_per_second: int | None, brokers: Collection[int]) -> Plan:
        """Begin the moves of a plan that differ from what is there, and return them. If one of them is refused, the others end
        where they began, and this raises CommandFailed."""
        changes = {key: replicas for key, replicas in sorted(plan.items()) if current[key] != replicas}
        if bytes_per_second is not None:
            moves = {key: (current[key], tuple(set(replicas) - set(current[key]))) for key, replicas in changes.items()}
            throttle(self.admin, brokers, {key: move for key, move in moves.items() if move[1]}, bytes_per_second)
        try:
            self._move_all(changes, current)
        except (ClientError, CommandFailed):
            if bytes_per_second is not None:
                self.remove_throttles(brokers, {topic for topic, _ in changes})
            raise
        return changes

    def _move_all(self, changes: Plan, current: Plan) -> None:
        try:
            self.reassignments.alter(changes)
        except ReassignmentsRefused as error:
            refused = {(refusal.topic, refusal.partition) for refusal in error.refusals}
            self.reassignments.alter({key: current[key] for key in changes if key not in refused})
            raise CommandFailed(f"{error}; nothing was moved") from error

    def remove_throttles(self, brokers: Collection[int], topics: Collection[str]) -> int:
        """Remove what throttles partitions that do not move."""
        return remove_throttles(self.admin, brokers, topics, self.reassignments.ongoing())


@contextmanager
def operated_cluster(bootstrap: str, properties: Sequence[str] | None) -> Iterator[OperatedCluster]:
    options = plaintext_options(properties, "moves of partitions")
    cluster = KafkaCluster(bootstrap, properties)
    try:
        with (
            cluster.errors(),
            cluster.admin() as admin,
            ReassignmentAdmin(bootstrap, **options) as reassignments,
            RegisteredBrokersAdmin(bootstrap, **options) as brokers,
            QuorumAdmin(bootstrap, **options) as quorum,
            LeaderElectionAdmin(bootstrap, **options) as elections,
        ):
            yield OperatedCluster(admin, reassignments, brokers, quorum, elections)
    except (ClientError, PlanImpossible) as error:
        raise CommandFailed(str(error)) from error


@app.command("reassign", epilog="Example: tidelog reassign --plan")
def reassign_command(
    is_plan: Annotated[bool, typer.Option("--plan", help="Show the moves that would even out the cluster.")] = False,
    is_execute: Annotated[bool, typer.Option("--execute", help="Begin these moves, or those of --file.")] = False,
    is_verify: Annotated[bool, typer.Option("--verify", help="Show what still moves; exit code 3 if anything does.")] = False,
    is_cancel: Annotated[bool, typer.Option("--cancel", help="Return what still moves to where it was.")] = False,
    file: Annotated[str | None, typer.Option("--file", metavar="FILE", help="A plan in the format of Kafka's tool.")] = None,
    is_internal: Annotated[
        bool, typer.Option("--internal", help="Only give internal topics the replicas that the cluster allows, 3 at most.")
    ] = False,
    throttle_rate: ThrottleOption = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> int:
    """Move partitions between brokers: plan, execute, verify, cancel."""
    chosen = [is_plan, is_execute, is_verify, is_cancel].count(True)
    is_change = throttle_rate is not None and not chosen
    if chosen != 1 and not is_change:
        raise CommandFailed("give one of --plan, --execute, --verify and --cancel")
    if file is not None and (is_internal or not is_execute):
        raise CommandFailed("--file belongs to --execute, without --internal")
    if throttle_rate is not None and not (is_execute or is_change):
        raise CommandFailed("--throttle belongs to --execute, or stands alone to change the rate of what moves")
    rate = read_rate(throttle_rate)
    wanted = None if file is None else read_plan(file)
    with operated_cluster(bootstrap, properties) as cluster:
        if not (is_plan or is_execute):
            return _look_after(cluster, rate, is_cancel, as_json)
        description = cluster.admin.describe_cluster()
        current = cluster.assignment(description)
        if wanted is not None:
            plan = _checked(wanted, current, description, cluster.reassignments)
        elif is_internal:
            plan = internal_plan(cluster.places(description), current)
        else:
            plan = balanced(current, cluster.places(description))
        changes = {key: replicas for key, replicas in sorted(plan.items()) if current[key] != replicas}
        if is_execute:
            cluster.begin(plan, current, rate, description.brokers)
    show_plan(changes, current, "begun" if is_execute else "planned", as_json)
    return ExitCode.SUCCESS


def _look_after(cluster: OperatedCluster, rate: int | None, is_cancel: bool, as_json: bool) -> int:
    """Show what moves; cancel it, or change its rate."""
    moving = cluster.reassignments.ongoing()
    if is_cancel:
        cluster.reassignments.alter(dict.fromkeys(moving))
        description = cluster.admin.describe_cluster()
        cluster.remove_throttles(description.brokers, description.topics)
        return _show_moving(moving, "cancelled", as_json)
    if rate is not None:
        if not moving:
            raise CommandFailed("nothing moves, so there is no rate to change; --throttle belongs to --execute")
        brokers = cluster.admin.describe_cluster().brokers
        moves = {key: (tuple(set(each.replicas) - set(each.adding)), each.adding) for key, each in moving.items()}
        throttle(cluster.admin, brokers, moves, rate)
    return _show_moving(moving, "moving", as_json, _progress(cluster, moving))


class MoveProgress(NamedTuple):
    """What the moves under way have yet to copy."""

    bytes_left: Mapping[tuple[str, int], int]
    seconds_left: int | None
    """At the speed that was just measured; None where nothing was copied."""


def _progress(cluster: OperatedCluster, moving: Mapping[tuple[str, int], MovingPartition]) -> MoveProgress | None:
    if not moving:
        return None
    before = sum(cluster.reassignments.bytes_left(moving).values())
    began = time.monotonic()
    time.sleep(MEASURE_SECONDS)
    left = cluster.reassignments.bytes_left(moving)
    copied = before - sum(left.values())
    seconds = round(sum(left.values()) * (time.monotonic() - began) / copied) if copied > 0 else None
    return MoveProgress(left, seconds)


def internal_plan(places: BrokerPlaces, current: Plan) -> Plan:
    """The replicas that internal topics should have in a cluster of this size."""
    factor = min(INTERNAL_REPLICATION_FACTOR, len(places.brokers))
    return with_replication_factor(current, INTERNAL_TOPICS, factor, places)


def read_plan(file: str) -> Plan:
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
        entries = [_entry(each) for each in document["partitions"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"{file} is not a plan of partitions and their replicas: {error!r}") from None
    plan: Plan = {}
    for key, replicas in entries:
        if key in plan:
            raise CommandFailed(f"{file} moves {key[0]}-{key[1]} twice")
        plan[key] = replicas
    return plan


def _entry(fields: Mapping[str, Any]) -> tuple[tuple[str, int], tuple[int, ...]]:
    return (str(fields["topic"]), int(fields["partition"])), tuple(int(replica) for replica in fields["replicas"])


def _checked(plan: Plan, current: Plan, description: ClusterDescription, reassignments: ReassignmentAdmin) -> Plan:
    """The plan, if all of it fits the cluster: nothing moves before all of it was checked."""
    minimums = reassignments.min_insync_replicas({topic for topic, _ in plan})
    for (topic, partition), replicas in plan.items():
        place = f"{topic}-{partition}"
        if (topic, partition) not in current:
            raise CommandFailed(f"the plan moves {place}, which does not exist; nothing was moved")
        if len(set(replicas)) != len(replicas) or not replicas:
            raise CommandFailed(f"the plan puts {place} on {list(replicas)}: name each broker once; nothing was moved")
        unknown = [replica for replica in replicas if replica not in description.brokers]
        if any(replica not in current[topic, partition] for replica in unknown):
            running = ", ".join(map(str, sorted(description.brokers)))
            raise CommandFailed(f"the plan puts {place} on broker {unknown[0]}; running are {running}; nothing was moved")
        # A topic may have fewer replicas than its minimum, and go on with as many.
        minimum = min(minimums.get(topic, 1), len(current[topic, partition]))
        if len(replicas) < minimum:
            few = f"{list(replicas)}, fewer than the {minimum} of its min.insync.replicas"
            raise CommandFailed(f"the plan puts {place} on {few}; nothing was moved")
    return plan


def show_plan(changes: Plan, current: Plan, word: str, as_json: bool) -> None:
    if as_json:
        entries = [{"topic": key[0], "partition": key[1], "replicas": list(replicas)} for key, replicas in changes.items()]
        show_json({"version": PLAN_VERSION, "partitions": entries})
        return
    console = make_console()
    copies = sum(len(set(replicas) - set(current[key])) for key, replicas in changes.items())
    say(console, f"{count_of(len(changes), 'change')} {word}, {count_of(copies, 'replica')} to copy")
    if changes:
        rows = [(f"{key[0]}-{key[1]}", _text(current[key]), _text(replicas)) for key, replicas in changes.items()]
        show_table(console, ("Partition", "From", "To"), rows)


def _show_moving(
    moving: Mapping[tuple[str, int], MovingPartition], word: str, as_json: bool, progress: MoveProgress | None = None
) -> int:
    left = progress.bytes_left if progress is not None else {}
    if as_json:
        entries = [
            {"topic": key[0], "partition": key[1], **each._asdict(), **({"bytes_left": left[key]} if key in left else {})}
            for key, each in moving.items()
        ]
        show_json({word: entries, **({"seconds_left": progress.seconds_left} if progress is not None else {})})
    else:
        console = make_console()
        say(console, f"{count_of(len(moving), 'partition')} {word}")
        if progress is not None:
            at = "nothing was copied within the last second"
            if progress.seconds_left is not None:
                at = f"about {count_of(progress.seconds_left, 'second')} at the speed of the last one"
            say(console, f"{format_bytes(sum(left.values()))} left to copy, {at}")
        if moving:
            rows = [
                (f"{key[0]}-{key[1]}", _text(each.adding), _text(each.removing), format_bytes(left[key]) if key in left else "")
                for key, each in moving.items()
            ]
            show_table(console, ("Partition", "Adding", "Removing", "Left"), rows)
    return ExitCode.FOUND if moving and word == "moving" else ExitCode.SUCCESS


def _text(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas)) or "-"
