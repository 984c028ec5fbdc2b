"""``tidelog queues``: create, list, describe, send, receive, purge and delete queues, on any Kafka that has share groups.

A queue is a topic with a share group of the same name, unless ``--group`` says otherwise. Topics are created and deleted through
``KafkaCluster``; what is about the group speaks plaintext only.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, NamedTuple

import typer

from tidelog.cli.completion import complete_topics
from tidelog.cli.errors import CommandFailed
from tidelog.cli.groups_lag import RecordTimes
from tidelog.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    JsonOption,
    KafkaCluster,
    PlaintextOption,
    no_such_topic,
    partitions_of,
    plaintext_options,
    read_pairs,
)
from tidelog.cli.output import bytes_text, confirm, count_of, header_text, json_field, make_console, say, show_json, show_table
from tidelog.cli.times import duration_text
from tidelog.client.admin import Admin, NewTopicSpec, PartitionBounds
from tidelog.client.errors import InvalidTopic, MessageTooLarge, TidelogError, UnknownTopic
from tidelog.client.queue import Job, Queue
from tidelog.client.queue.schedule import QUEUE_ENABLE, QUEUE_TTL
from tidelog.client.queue.share_groups import (
    DEAD_LETTER_COPY,
    DEAD_LETTER_TOPIC,
    ISOLATION,
    LOCK_DURATION,
    OFFSET_RESET,
    ORDER,
    ShareGroupAdmin,
    ShareOffset,
)
from tidelog.client.topic_partition import TopicPartition
from tidelog.client.wire.errors import BrokerError, ClientError
from tidelog.deadletters.cluster import GROUP_ENABLE
from tidelog.deadletters.dead_letters import DeadLetters
from tidelog.deadletters.topics import FAILURE_CONFIG, dead_letter_topic, ensure_topics
from tidelog.wire.errors import ErrorCode

app = typer.Typer(
    help="Create, list, describe, purge and delete queues; send jobs to them and receive jobs from them.", no_args_is_help=True
)

NameArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.", autocompletion=complete_topics)]
GroupOption = Annotated[
    str | None, typer.Option("--group", "-g", metavar="NAME", help="The share group; the queue's name unless given.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
EMPTY_STATE = "Empty"
CLEANUP_POLICY = "cleanup.policy"
# What Tidelog's brokers say of each partition, beyond what is not settled. Those of Apache Kafka do not.
FIGURES: dict[str, Callable[[ShareOffset], int | None]] = {
    "available": lambda at: at.available,
    "delayed": lambda at: at.delayed,
    "acquired": lambda at: at.acquired,
    "redelivered": lambda at: at.redelivered,
}

# With figures of five digits, they just fit into 60 columns.
FIGURE_TITLES = ("Partition", *(name.capitalize() for name in FIGURES), "Oldest")


class QueueState(NamedTuple):
    """A queue as its share group sees it."""

    name: str
    group: str
    state: str
    workers: int
    partitions: dict[TopicPartition, ShareOffset]
    bounds: dict[TopicPartition, PartitionBounds]
    settings: dict[str, str | None]
    letters: str
    """The topic of the group's dead letters; empty if it keeps none."""

    @property
    def unsettled(self) -> int:
        """How many messages are waiting or being worked on. Before the group has begun, all are waiting."""
        return sum(_lag(self.partitions.get(partition), bounds) for partition, bounds in self.bounds.items())

    def total(self, figure: Callable[[ShareOffset], int | None]) -> int | None:
        """Of all partitions; None if no broker says it of any."""
        known = [count for at in self.partitions.values() if (count := figure(at)) is not None]
        return sum(known) if known else None

    @property
    def held_up_by(self) -> "UnsettledHead | None":
        """Where most is settled behind a message that is not. What retention has deleted holds nothing up."""
        heads = [
            UnsettledHead(bounds.end - at.start_offset - at.lag, partition.partition, at.start_offset)
            for partition, bounds in self.bounds.items()
            if (at := self.partitions.get(partition)) is not None and at.lag is not None and at.start_offset >= bounds.start
        ]
        worst = max(heads, default=None)
        return worst if worst is not None and worst.settled_behind > 0 else None


class UnsettledHead(NamedTuple):
    """The first message of a partition that is not settled: the group's start cannot move beyond it."""

    settled_behind: int
    partition: int
    offset: int


@app.command("create", epilog="Example: tidelog queues create resize-jobs --partitions 3 --visibility-timeout 60")
def create_command(
    name: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")],
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="Over how many partitions its messages spread.")] = 1,
    visibility_timeout: Annotated[
        float | None, typer.Option("--visibility-timeout", min=1, help="Seconds for which a received job is locked.")
    ] = None,
    deliveries: Annotated[
        int | None, typer.Option("--max-deliveries", min=2, help="How many times a job is delivered at most.")
    ] = None,
    ttl: Annotated[
        float | None, typer.Option("--ttl", min=1, help="How many seconds a job waits for a worker before it expires.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting of the topic; repeatable.")
    ] = None,
    order: Annotated[
        str | None, typer.Option("--order", help="key: the jobs of one key are received in their order, one at a time.")
    ] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Make a queue of a topic that exists; its messages become jobs.")
    ] = False,
    has_dead_letters: Annotated[
        bool,
        typer.Option(
            "--dead-letters", help="Keep what is rejected or was delivered too often on a topic QUEUE.GROUP.dlq, for tidelog dlq."
        ),
    ] = False,
    group: GroupOption = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a queue: a topic that keeps delays and times to live, and the settings of its share group."""
    configs = {QUEUE_ENABLE: "true", **read_pairs(config or [], "--config")}
    if ttl is not None:
        configs[QUEUE_TTL] = str(round(ttl * 1000))
    letters = dead_letter_topic(name, group or name) if has_dead_letters else None
    settings = _group_settings(visibility_timeout, deliveries, order, letters)
    with _opened(bootstrap, properties) as (admin, groups):
        is_there = name in admin.describe_cluster().topics
        if is_there and not adopt:
            raise CommandFailed(
                f"there is a topic {name} already; to see it as a queue: tidelog queues describe {name}; to make it one, with "
                f"its messages as jobs: tidelog queues create {name} --adopt"
            )
        has_settings = admin.describe_topics([name])[name].configs if is_there else {}
        _check_policy({**has_settings, **configs}.get(CLEANUP_POLICY))
        # Before the topic, because a setting that is refused must not leave a topic behind.
        groups.set_settings(group or name, settings)
        if is_there:
            admin.alter_topic(name, **configs)
            partitions = len(partitions_of(admin, name))
        else:
            configs = _create_topic(admin, name, partitions, configs)
        if letters is not None:
            ensure_topics(admin, name, {letters: FAILURE_CONFIG})
            admin.alter_configs("topic", letters, {GROUP_ENABLE: "true"})
    if as_json:
        show_json({"queue": name, "group": group or name, "partitions": partitions, "settings": settings, "configs": configs})
        return
    console = make_console()
    what = "Adopted" if is_there else "Created"
    say(console, f"{what} {name}. To send a job: tidelog queues send {name} VALUE")
    if letters is not None:
        say(console, f"Its dead letters: tidelog dlq list {letters}")
    if QUEUE_ENABLE not in configs:
        say(console, "The brokers are not Tidelog's: jobs cannot be delayed, and do not expire.")


def _check_policy(policy: str | None) -> None:
    if "compact" in (policy or ""):
        raise CommandFailed(
            f"a queue cannot be compacted ({CLEANUP_POLICY}={policy}): of jobs with equal keys, only the last would stay; to "
            f"keep them all: --config {CLEANUP_POLICY}=delete"
        )


def _group_settings(
    visibility_timeout: float | None, deliveries: int | None, order: str | None, letters: str | None
) -> dict[str, str]:
    settings = {OFFSET_RESET: "earliest"}
    if visibility_timeout is not None:
        settings[LOCK_DURATION] = str(round(visibility_timeout * 1000))
    if deliveries is not None:
        settings["share.delivery.count.limit"] = str(deliveries)
    if order is not None:
        settings[ORDER] = order
    if letters is not None:
        # A replay is a transaction, and what an aborted one has sent is not to be received.
        settings |= {DEAD_LETTER_TOPIC: letters, DEAD_LETTER_COPY: "true", ISOLATION: "read_committed"}
    return settings


def _create_topic(admin: Admin, name: str, partitions: int, configs: dict[str, str]) -> dict[str, str]:
    """Returns the settings of the topic that was created. Apache Kafka refuses those of queues, and has an ordinary topic."""
    error = admin.create_topics([NewTopicSpec(name, partitions, configs=configs)])[name]
    if (
        isinstance(error, InvalidTopic)
        and f"Unknown topic config name: {QUEUE_ENABLE}" in str(error)
        and QUEUE_TTL not in configs
    ):
        configs = {key: text for key, text in configs.items() if key != QUEUE_ENABLE}
        error = admin.create_topics([NewTopicSpec(name, partitions, configs=configs)])[name]
    if error is not None:
        raise error
    return configs


@app.command("list", epilog="Example: tidelog queues list --json")
def list_command(
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the share groups with the queues that they read, and how much is not settled."""
    with _opened(bootstrap, properties) as (admin, groups):
        topics = admin.describe_cluster().topics
        rows = []
        for listing in groups.list_groups():
            names = {partition.topic for partition in groups.offsets(listing.name)}
            # A group that has received nothing yet belongs to the topic of its name.
            for topic in sorted(names or {listing.name} & set(topics)):
                rows.append(_state(admin, groups, topic, listing.name))
        # A queue that was created a moment ago has no group yet; its topic says what it is.
        others = sorted(set(admin.list_topics()) - {row.name for row in rows})
        created = [name for name, topic in admin.describe_topics(others).items() if topic.configs.get(QUEUE_ENABLE) == "true"]
        rows += [_state(admin, groups, name, name) for name in created]
    if as_json:
        for each in rows:
            show_json(_document(each, with_partitions=False))
        return
    console = make_console()
    if not rows:
        say(console, "There are no queues yet. To create one: tidelog queues create NAME")
        return
    cells = [(each.name, each.group, each.state or EMPTY_STATE, each.workers, each.unsettled) for each in rows]
    show_table(console, ("Queue", "Group", "State", "Workers", "Unsettled"), cells)


@app.command("describe", epilog="Example: tidelog queues describe resize-jobs")
def describe_command(
    name: NameArgument,
    group: GroupOption = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a queue's workers, settings, and what is not settled in each partition."""
    with _opened(bootstrap, properties) as (admin, groups):
        found = _state(admin, groups, name, group or name)
        dead = _dead_count(bootstrap, found)
    ages = _oldest_ages(bootstrap, found)
    oldest = max((age for age in ages.values() if age is not None), default=None if ages else 0.0)
    if as_json:
        show_json({**_document(found, with_partitions=True), "oldest_seconds": oldest, "dead": dead})
        return
    console = make_console()
    group_text = f"group {found.group}, {found.state or EMPTY_STATE}, {count_of(found.workers, 'worker')}"
    age = f", the oldest for {duration_text(oldest)}" if oldest else ""
    say(console, f"{name}: {group_text}; {count_of(found.unsettled, 'message')} not settled{age}")
    if dead:
        say(console, f"{count_of(dead, 'dead letter')}: tidelog dlq list {found.letters}")
    head = found.held_up_by
    if head is not None:
        behind = count_of(head.settled_behind, "message")
        say(console, f"Partition {head.partition} is held up by offset {head.offset}, behind which {behind} are settled.")
    figures = []
    for partition in found.bounds:
        at = found.partitions.get(partition)
        counts = ["-" if at is None or (count := figure(at)) is None else count for figure in FIGURES.values()]
        figures.append((partition.partition, *counts, duration_text(ages[partition]) if partition in ages else "0s"))
    show_table(console, FIGURE_TITLES, figures)
    rows = []
    for partition, bounds in found.bounds.items():
        at = found.partitions.get(partition)
        rows.append((partition.partition, bounds.start, "-" if at is None else at.start_offset, bounds.end, _lag(at, bounds)))
    show_table(console, ("Partition", "Log start", "Settled up to", "End", "Unsettled"), rows)
    show_table(console, ("Setting", "Value"), sorted(found.settings.items()))


@app.command("send", epilog="Example: tidelog queues send resize-jobs cat.png dog.png --key pets")
def send_command(
    name: NameArgument,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[VALUE]...", help="Jobs; by default, the lines of standard input.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of all these jobs.")] = None,
    delay: Annotated[float, typer.Option("--delay", min=0, help="Seconds before which nobody receives these jobs.")] = 0.0,
    ttl: Annotated[float | None, typer.Option("--ttl", help="Seconds after which those that nobody has received expire.")] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send jobs. Each is acknowledged by all in-sync replicas."""
    with _queue(bootstrap, properties, name, None) as queue:
        texts = values or (line.rstrip("\n") for line in sys.stdin)
        deliveries = [queue.send(text, key=key, delay=delay, ttl=ttl) for text in texts]
        results = [delivery.result() for delivery in deliveries]
    if as_json:
        for each in results:
            show_json({"queue": name, "partition": each.partition, "offset": each.offset})
    else:
        say(make_console(), f"Sent {count_of(len(results), 'job')} to {name}.")


@app.command("receive", epilog="Example: tidelog queues receive resize-jobs --max 10 --wait 20 --ack")
def receive_command(
    name: NameArgument,
    group: GroupOption = None,
    count: Annotated[int, typer.Option("--max", "-n", min=1, max=10_000, help="How many jobs at most.")] = 10,
    wait: Annotated[float, typer.Option("--wait", min=0, max=3_600, help="Seconds to wait for the first job.")] = 1.0,
    ack: Annotated[
        bool, typer.Option("--ack", help="Acknowledge the jobs when they are printed. Without it they are released.")
    ] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print jobs. Looking counts as a delivery; with --ack, the printed jobs are done."""
    with _queue(bootstrap, properties, name, group) as queue:
        jobs = queue.receive(count, wait)
        console = make_console()
        for job in jobs:
            if as_json:
                show_json(_job_document(job))
            else:
                say(console, bytes_text(job.value))
        sys.stdout.flush()  # A job that is acknowledged has been printed.
        if ack:
            queue.ack(jobs)
        if not jobs and not as_json:
            say(console, f"{name} has no job that nobody works on.")


@app.command("purge", epilog="Example: tidelog queues purge resize-jobs --yes")
def purge_command(
    name: NameArgument,
    group: GroupOption = None,
    yes: YesOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Settle everything that a group has not settled. Its workers must be stopped; other groups, and the log, are not touched."""
    group_id = group or name
    with _opened(bootstrap, properties) as (admin, groups):
        found = _state(admin, groups, name, group_id)
        if found.workers:
            raise CommandFailed(f"group {group_id} has {count_of(found.workers, 'worker')}; stop them first")
        confirm(f"Settle {count_of(found.unsettled, 'message')} of {name} unseen? This cannot be undone.", yes)
        groups.set_offsets(group_id, {partition: bounds.end for partition, bounds in found.bounds.items()})
    if as_json:
        show_json({"queue": name, "group": group_id, "purged": found.unsettled})
    else:
        say(make_console(), f"Purged {count_of(found.unsettled, 'message')} of {name}.")


@app.command("delete", epilog="Example: tidelog queues delete resize-jobs --yes")
def delete_command(
    name: NameArgument,
    group: GroupOption = None,
    yes: YesOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a queue: its topic with all messages, and its share group. Its workers must be stopped."""
    group_id = group or name
    with _opened(bootstrap, properties) as (admin, groups):
        found = _state(admin, groups, name, group_id)
        if found.workers:
            raise CommandFailed(f"group {group_id} has {count_of(found.workers, 'worker')}; stop them first")
        confirm(f"Delete {name} with all its messages? This cannot be undone.", yes)
        if found.state:
            groups.delete_group(group_id)
        admin.delete_topic(name)
    if as_json:
        show_json({"queue": name, "group": group_id, "deleted": True})
    else:
        say(make_console(), f"Deleted {name}.")


# -- connections -----------------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(bootstrap: str, properties: Sequence[str] | None) -> Iterator[tuple[Admin, ShareGroupAdmin]]:
    options = plaintext_options(properties, "queues")
    cluster = KafkaCluster(bootstrap, None)
    try:
        with cluster.errors(), cluster.admin() as admin, ShareGroupAdmin(bootstrap, **options) as groups:
            yield admin, groups
    except ClientError as error:
        raise CommandFailed(str(error)) from error


@contextmanager
def _queue(bootstrap: str, properties: Sequence[str] | None, name: str, group: str | None) -> Iterator[Queue]:
    options = plaintext_options(properties, "queues")
    cluster = KafkaCluster(bootstrap, None)
    cluster.check_reachable()
    try:
        with Queue(bootstrap, name, group, client_id=options.get("client_id", "tidelog-queues")) as queue:
            yield queue
    except MessageTooLarge as error:
        raise CommandFailed(cluster.reason(error)) from error
    except TidelogError as error:
        raise CommandFailed(str(error)) from error


def _state(admin: Admin, groups: ShareGroupAdmin, name: str, group_id: str) -> QueueState:
    if name not in admin.describe_cluster().topics:
        raise no_such_topic(admin, name)
    bounds = admin.bounds(partitions_of(admin, name))
    try:
        described = groups.describe(group_id)
        state, workers = described.state, len(described.members)
        offsets = {each: at for each, at in groups.offsets(group_id).items() if each.topic == name}
    except BrokerError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        # Nobody has received yet.
        state, workers, offsets = "", 0, {}
    all_settings = groups.settings(group_id)
    settings = {key: each.value for key, each in all_settings.items() if key.startswith("share.")}
    letters = all_settings[DEAD_LETTER_TOPIC].value if DEAD_LETTER_TOPIC in all_settings else None
    return QueueState(name, group_id, state, workers, offsets, dict(bounds), settings, letters or "")


def _dead_count(bootstrap: str, found: QueueState) -> int | None:
    """How many dead letters wait; None if the group keeps none. They are counted by their offsets, without reading them."""
    if not found.letters:
        return None
    try:
        return sum(depth.letters for depth in DeadLetters(bootstrap).depth(found.letters, estimate=True))
    except UnknownTopic:
        return 0  # None was written yet.


def _oldest_ages(bootstrap: str, found: QueueState) -> dict[TopicPartition, float | None]:
    """The ages of the oldest messages that are not settled, where there are any; None for one that cannot be read. Delayed ones
    do not count where the broker knows which these are."""
    times: dict[TopicPartition, int | None] = {}
    waiting = {}
    for partition, bounds in found.bounds.items():
        at = found.partitions.get(partition)
        if at is not None and at.oldest_timestamp_ms is not None:
            times[partition] = at.oldest_timestamp_ms
        elif _lag(at, bounds) and (at is None or at.delayed != at.lag):
            waiting[partition] = bounds.start if at is None else max(bounds.start, at.start_offset)
    if waiting:
        times |= RecordTimes(KafkaCluster(bootstrap, None)).find(waiting)
    now = time.time()
    return {partition: None if at_ms is None else max(0.0, now - at_ms / 1000) for partition, at_ms in times.items()}


def _lag(at: ShareOffset | None, bounds: PartitionBounds) -> int:
    if at is None:
        return bounds.end - bounds.start
    return at.lag if at.lag is not None else max(0, bounds.end - at.start_offset)


def _document(found: QueueState, *, with_partitions: bool) -> dict[str, object]:
    document: dict[str, object] = {
        "queue": found.name,
        "group": found.group,
        "state": found.state or EMPTY_STATE,
        "workers": found.workers,
        "unsettled": found.unsettled,
    }
    if with_partitions:
        head = found.held_up_by
        document |= {name: found.total(figure) for name, figure in FIGURES.items()}
        document["held_up_by"] = None if head is None else head._asdict()
        document["settings"] = found.settings
        document["partitions"] = [
            {
                "partition": partition.partition,
                "log_start_offset": bounds.start,
                "start_offset": None if partition not in found.partitions else found.partitions[partition].start_offset,
                "end_offset": bounds.end,
                "unsettled": _lag(found.partitions.get(partition), bounds),
                **{
                    name: None if partition not in found.partitions else figure(found.partitions[partition])
                    for name, figure in FIGURES.items()
                },
            }
            for partition, bounds in found.bounds.items()
        ]
    return document


def _job_document(job: Job) -> dict[str, object]:
    return {
        "queue": job.topic,
        "partition": job.partition,
        "offset": job.offset,
        "timestamp": job.timestamp,
        "deliveries": job.deliveries,
        "headers": {name: header_text(value) for name, value in job.headers.items()},
        **json_field("key", job.key),
        **json_field("value", job.value),
    }
