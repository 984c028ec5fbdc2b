"""The metrics of a broker: requests, quotas, logs, groups and coordinators. docs/reference/metrics.md lists them all.

Every value is read from its owner when somebody asks for the metrics. Nothing is counted here.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.broker.client_metrics import VALUES_MAX as CLIENT_VALUES_MAX
from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.broker.request_metrics import SLOWEST_PARTITIONS_MAX, TOPICS_MAX
from tidelog.broker.share_metrics import add_share_metrics
from tidelog.config.broker import METRICS_PARTITIONS
from tidelog.config.listeners import ListenerRole
from tidelog.coordinator.shard import ShardState
from tidelog.groups.lag import GroupPartitionLag
from tidelog.metrics.histogram import COUNTS, NANOSECONDS_PER_SECOND, SECONDS, SECONDS_COARSE
from tidelog.metrics.labelled import OTHER
from tidelog.metrics.registry import Description, Kind, Registry, Rest, Sample
from tidelog.raft.quorum import RaftState
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode


def add_broker_metrics(registry: Registry, broker: "BrokerNode") -> None:
    info = Description("tidelog_broker_info", Kind.GAUGE, "Always 1; its labels say which broker this is.", ("cluster", "broker"))
    registry.add([info], lambda: [(info, (broker.config.cluster_id, str(broker.config.node_id)), 1)])
    registry.add_value(
        Kind.GAUGE,
        "tidelog_ready",
        "1 when the broker serves everything that it leads, as /health/ready says.",
        lambda: int(broker.unready_reason() is None),
    )
    add_request_metrics(registry, broker)
    add_quota_metrics(registry, broker)
    add_client_metrics(registry, broker)
    add_log_metrics(registry, broker)
    add_replication_metrics(registry, broker)
    add_group_metrics(registry, broker)
    add_share_metrics(registry, broker)
    add_coordinator_metrics(registry, broker)
    add_quorum_metrics(registry, broker)


# The protocol has fewer APIs than this.
APIS_MAX = 100
ERRORS_MAX = 500

REQUESTS = Description("tidelog_requests_total", Kind.COUNTER, "Requests received.", ("api",), APIS_MAX)
TOTAL = Description(
    "tidelog_request_seconds",
    Kind.HISTOGRAM,
    "From the arrival of a request until its response is ready. Above 500 per second, every 32nd is timed and counts for 32.",
    ("api",),
    APIS_MAX,
)
# The APIs whose stages have series of their own. With the stages of every API, three quarters of a small broker's page would be
# buckets that count a handful of requests. For the same reason the requests that only brokers send share one series.
STAGED_APIS = frozenset(("Produce", "Fetch", "ShareFetch", "ShareAcknowledge"))
QUEUE = Description(
    "tidelog_request_queue_seconds",
    Kind.HISTOGRAM,
    "From the arrival of a request until its handling began, behind others of the same turn.",
    ("api",),
    len(STAGED_APIS),
)
HANDLING = Description(
    "tidelog_request_handling_seconds",
    Kind.HISTOGRAM,
    "Decoding a request and doing the work that need not wait; this holds the loop.",
    ("api",),
    len(STAGED_APIS),
)
WAIT = Description(
    "tidelog_request_wait_seconds",
    Kind.HISTOGRAM,
    "From the end of handling until the response, for requests that wait for the disk, for data or for a group.",
    ("api",),
    len(STAGED_APIS),
)
ERRORS = Description(
    "tidelog_request_errors_total",
    Kind.COUNTER,
    "Error codes in responses, counted as often as they occur.",
    ("api", "code"),
    ERRORS_MAX,
)
PRODUCE_TO_ACK = Description(
    "tidelog_topic_produce_to_ack_seconds",
    Kind.HISTOGRAM,
    "From the arrival of a produce request to its acknowledgement, once for each partition in it.",
    ("topic",),
    TOPICS_MAX,
)
PRODUCED = Description(
    "tidelog_topic_produced_bytes_total", Kind.COUNTER, "Bytes of records that producers sent, as stored.", ("topic",), TOPICS_MAX
)
FETCHED = Description(
    "tidelog_topic_fetched_bytes_total", Kind.COUNTER, "Bytes of records that consumers were sent.", ("topic",), TOPICS_MAX
)
SLOWEST = Description(
    "tidelog_slowest_partition_produce_to_ack_seconds",
    Kind.GAUGE,
    "The worst produce-to-ack time of the last 30 to 60 seconds, of the partitions where it was worst.",
    ("topic", "partition"),
    SLOWEST_PARTITIONS_MAX,
    Rest.MAX,
)


def add_request_metrics(registry: Registry, broker: "BrokerNode") -> None:
    registry.add([REQUESTS, TOTAL, QUEUE, HANDLING, WAIT, ERRORS], lambda: _collect_requests(broker))
    registry.add([PRODUCE_TO_ACK, PRODUCED, FETCHED, SLOWEST], lambda: _collect_topics(broker))
    registry.add_value(
        Kind.GAUGE, "tidelog_fetch_sessions", "Incremental fetch sessions that are kept.", lambda: len(broker.fetch_sessions)
    )


def _collect_requests(broker: "BrokerNode") -> Iterator[Sample]:
    metrics = broker.request_metrics
    for key, timings in metrics.timings.items():
        if not timings.count:
            continue
        api = broker.apis[key]
        name = api.name
        yield REQUESTS, (name,), timings.count
        # Samples with the same labels are summed.
        yield TOTAL, (name if ListenerRole.CLIENT in api.listeners else OTHER,), timings.total.value(SECONDS_COARSE)
        stage = (name if name in STAGED_APIS else OTHER,)
        yield QUEUE, stage, timings.queue.value(SECONDS_COARSE)
        yield HANDLING, stage, timings.handling.value(SECONDS_COARSE)
        if any(timings.wait.counts):
            yield WAIT, stage, timings.wait.value(SECONDS_COARSE)
    for (key, code), count in list(metrics.errors.items()):
        yield ERRORS, (broker.apis[key].name, ErrorCode(code).name), count


def _collect_topics(broker: "BrokerNode") -> Iterator[Sample]:
    metrics = broker.request_metrics
    metrics.produce_to_ack.forget(lambda name: broker.image.topic(name) is None)
    for name, histogram in metrics.produce_to_ack:
        yield PRODUCE_TO_ACK, (name,), histogram.value(SECONDS_COARSE)
    for partition in list(broker.partitions):
        if partition.produced_bytes or partition.fetched_bytes:
            # Samples with the same labels are summed.
            yield PRODUCED, (partition.topic,), partition.produced_bytes
            yield FETCHED, (partition.topic,), partition.fetched_bytes
    for (topic, index), worst_ns in metrics.slowest_partitions.found():
        yield SLOWEST, (topic, str(index)), worst_ns / NANOSECONDS_PER_SECOND


CLIENT_METRIC = Description(
    "tidelog_client_metric",
    Kind.GAUGE,
    "The last value of a metric that a client has pushed (KIP-714).",
    ("client_id", "client_instance", "software", "metric", "attributes"),
    CLIENT_VALUES_MAX,
)


def add_client_metrics(registry: Registry, broker: "BrokerNode") -> None:
    metrics = broker.client_metrics
    registry.add([CLIENT_METRIC], lambda: [(CLIENT_METRIC, shown[:-1], shown.value) for shown in metrics.values()])
    registry.add_value(
        Kind.GAUGE,
        "tidelog_client_instances",
        "Clients that have asked whether to push metrics, and have not been silent since.",
        lambda: metrics.instance_count,
    )
    registry.add_value(
        Kind.COUNTER, "tidelog_client_metrics_pushes_total", "Pushes of metrics by clients.", lambda: metrics.pushes
    )
    registry.add_value(
        Kind.COUNTER,
        "tidelog_client_metrics_dropped_total",
        "Pushes of which a part was not kept, and values that made room for others, because clients pushed too many.",
        lambda: metrics.values_dropped,
    )


# Each partition has four lines, and all together make half a megabyte of text.
PARTITIONS_MAX = 1_000

_PARTITION_LABELS = ("topic", "partition")

SIZE = Description("tidelog_log_size_bytes", Kind.GAUGE, "Size of a partition's segments.", _PARTITION_LABELS, PARTITIONS_MAX)
START = Description("tidelog_log_start_offset", Kind.GAUGE, "First offset that can be read.", _PARTITION_LABELS, PARTITIONS_MAX)
HIGH_WATERMARK = Description(
    "tidelog_log_high_watermark", Kind.GAUGE, "Offset below which consumers may read.", _PARTITION_LABELS, PARTITIONS_MAX
)
END = Description("tidelog_log_end_offset", Kind.GAUGE, "Offset of the next record.", _PARTITION_LABELS, PARTITIONS_MAX)
PARTITIONS = Description("tidelog_partitions", Kind.GAUGE, "Partitions with a log on this broker, internal ones included.")
OFFLINE = Description("tidelog_partitions_offline", Kind.GAUGE, "Partitions whose log is damaged, or whose disk failed.")
SEGMENTS = Description("tidelog_log_segments", Kind.GAUGE, "Segments of all logs.")
PRODUCER_IDS = Description("tidelog_producer_ids", Kind.GAUGE, "Producers that logs remember, counted once per partition.")
OPEN_TRANSACTIONS = Description(
    "tidelog_log_open_transactions", Kind.GAUGE, "Transactions open in logs, counted once per partition."
)
OPEN_TRANSACTION_IDLE = Description(
    "tidelog_log_open_transaction_idle_seconds_max",
    Kind.GAUGE,
    "Time since the last record of the open transaction that holds back readers, in the worst partition.",
)
PASSES = Description("tidelog_group_commit_passes_total", Kind.COUNTER, "Passes of group commit.")
FILE_SYSTEM_SYNCS = Description(
    "tidelog_group_commit_file_system_syncs_total", Kind.COUNTER, "Passes that synced the whole file system instead of files."
)
PASS_LOGS = Description("tidelog_group_commit_logs", Kind.HISTOGRAM, "Logs that one pass made durable.")
SYNC = Description(
    "tidelog_group_commit_sync_seconds", Kind.HISTOGRAM, "Time that the disk took for the syncs of one pass (fdatasync, syncfs)."
)
PASS = Description(
    "tidelog_group_commit_pass_seconds",
    Kind.HISTOGRAM,
    "Duration of one pass as the loop saw it: the syncs, and waiting for threads.",
)


def add_log_metrics(registry: Registry, broker: "BrokerNode") -> None:
    of_logs = [SIZE, START, HIGH_WATERMARK, END]
    of_all = [PARTITIONS, OFFLINE, SEGMENTS, PRODUCER_IDS, OPEN_TRANSACTIONS, OPEN_TRANSACTION_IDLE]
    registry.add([*of_logs, *of_all], lambda: _collect_logs(broker))
    registry.add([PASSES, FILE_SYSTEM_SYNCS, PASS_LOGS, SYNC, PASS], lambda: _collect_commits(broker))
    registry.add_value(
        Kind.GAUGE,
        "tidelog_open_segment_files",
        "Segment files that are kept open.",
        lambda: len(broker.directory.environment.handles),
    )
    registry.add_value(
        Kind.GAUGE,
        "tidelog_disk_backlog_bytes",
        "Upper bound on bytes of producers that are not synced yet, without topics with relaxed durability.",
        lambda: broker.partitions.appends.unsynced_bytes,
    )
    registry.add_value(
        Kind.COUNTER,
        "tidelog_produce_held_total",
        "Produce requests with acks=0 or acks=1 that were delayed, because the disk was too far behind.",
        lambda: broker.backlog.held,
    )


# A cluster has fewer brokers than this, or a partition has fewer followers.
FOLLOWERS_MAX = 100

UNDER_REPLICATED = Description(
    "tidelog_partitions_under_replicated", Kind.GAUGE, "Partitions led here that have a replica which is not in sync."
)
UNDER_MIN_ISR = Description(
    "tidelog_partitions_under_min_isr",
    Kind.GAUGE,
    "Partitions led here with fewer replicas in sync than min.insync.replicas: acks=all is refused.",
)
MOVING = Description("tidelog_partitions_moving", Kind.GAUGE, "Partitions led here that are being moved to other brokers.")
FOLLOWER_LAG = Description(
    "tidelog_follower_lag_records_max", Kind.GAUGE, "How far the slowest follower of a partition led here is behind, in offsets."
)
FOLLOWER_LAG_MS = Description(
    "tidelog_follower_lag_milliseconds_max",
    Kind.GAUGE,
    "For how long the slowest follower of a partition led here has not had everything.",
)
LED = Description("tidelog_partitions_led", Kind.GAUGE, "Partitions that this broker leads.")
SLOW_FOLLOWER = Description(
    "tidelog_slow_follower_milliseconds",
    Kind.GAUGE,
    "For how long this follower, a broker by its id, has not had everything of some partition led here.",
    ("follower",),
    FOLLOWERS_MAX,
)
PARTITIONS_THROTTLED = Description(
    "tidelog_partitions_throttled", Kind.GAUGE, "Partitions led here whose new replicas are copied at a limited rate."
)
THROTTLE_RATE = Description(
    "tidelog_replication_throttle_bytes_per_second",
    Kind.GAUGE,
    "The rate at which throttled partitions are sent (leader) and copied (follower); -1 where no rate is set.",
    ("side",),
    2,
)
THROTTLED_BYTES = Description(
    "tidelog_replication_throttled_bytes_total",
    Kind.COUNTER,
    "Bytes of records that were sent (leader) or copied (follower) at a limited rate.",
    ("side",),
    2,
)
REPLICATED = Description(
    "tidelog_replicated_bytes_total", Kind.COUNTER, "Bytes of records sent to followers since this broker began to lead."
)


def add_replication_metrics(registry: Registry, broker: "BrokerNode") -> None:
    registry.add(
        [UNDER_REPLICATED, UNDER_MIN_ISR, MOVING, LED, FOLLOWER_LAG, FOLLOWER_LAG_MS, SLOW_FOLLOWER, REPLICATED],
        lambda: _collect_replication(broker),
    )
    registry.add([PARTITIONS_THROTTLED, THROTTLE_RATE, THROTTLED_BYTES], lambda: _collect_throttles(broker))
    registry.add_value(
        Kind.GAUGE,
        "tidelog_partitions_followed",
        "Partitions that this broker copies from their leaders.",
        lambda: broker.replicas.followed_count,
    )
    registry.add_value(
        Kind.COUNTER,
        "tidelog_replica_fetched_bytes_total",
        "Bytes of records that this broker has copied from leaders.",
        lambda: broker.replicas.fetched_bytes,
    )
    registry.add_value(
        Kind.COUNTER,
        "tidelog_leader_elections_total",
        "Leaders that this node elected as the active controller from replicas that had every record.",
        lambda: broker.controller.counts.clean_elections,
    )
    registry.add_value(
        Kind.COUNTER,
        "tidelog_unclean_leader_elections_total",
        "Leaders that this node elected as the active controller although records may be lost by it.",
        lambda: broker.controller.counts.unclean_elections,
    )
    registry.add_value(
        Kind.COUNTER,
        "tidelog_isr_shrinks_total",
        "Partitions that lost a replica from their in-sync set, as this node decided as the active controller.",
        lambda: broker.controller.counts.isr_shrinks,
    )
    registry.add_value(
        Kind.COUNTER,
        "tidelog_isr_expansions_total",
        "Partitions that got a replica into their in-sync set, as this node decided as the active controller.",
        lambda: broker.controller.counts.isr_expansions,
    )
    registry.add_value(
        Kind.GAUGE,
        "tidelog_partitions_without_leader",
        "Partitions of the cluster that nobody can read or write, for want of a leader; only the active controller counts them.",
        lambda: broker.controller.count_without_leader(),
    )
    registry.add_value(
        Kind.GAUGE,
        "tidelog_brokers_down",
        "Registered brokers that are fenced; only the active controller counts them.",
        lambda: broker.controller.count_fenced(),
    )


def _collect_replication(broker: "BrokerNode") -> Iterator[Sample]:
    under_replicated = under_min_isr = moving = led = lag = replicated = 0
    behind_ms: dict[int, int] = {}
    now_ms = broker.clock.monotonic_ms()
    for partition in list(broker.partitions):
        in_sync = partition.in_sync
        under_replicated += len(in_sync.isr) < in_sync.settled_count
        under_min_isr += partition.is_under_min_isr
        moving += in_sync.is_moving
        led += 1
        replicated += partition.replicated_bytes
        for follower in in_sync.followers:
            end_offset = partition.log.log_end_offset
            lag = max(lag, end_offset - max(0, follower.fetch_offset))
            follower_ms = now_ms - follower.last_caught_up_ms if follower.fetch_offset < end_offset else 0
            behind_ms[follower.broker_id] = max(behind_ms.get(follower.broker_id, 0), follower_ms)
    yield UNDER_REPLICATED, (), under_replicated
    yield UNDER_MIN_ISR, (), under_min_isr
    yield MOVING, (), moving
    yield FOLLOWER_LAG, (), lag
    yield LED, (), led
    yield FOLLOWER_LAG_MS, (), max(behind_ms.values(), default=0)
    for broker_id, milliseconds in behind_ms.items():
        yield SLOW_FOLLOWER, (str(broker_id),), milliseconds
    yield REPLICATED, (), replicated


def _collect_throttles(broker: "BrokerNode") -> Iterator[Sample]:
    yield PARTITIONS_THROTTLED, (), sum(1 for partition in list(broker.partitions) if partition.throttle is not None)
    for side, throttle in (("leader", broker.throttles.leader), ("follower", broker.throttles.follower)):
        yield THROTTLE_RATE, (side,), throttle.rate if throttle.is_limited else -1
        yield THROTTLED_BYTES, (side,), throttle.throttled_bytes


def _collect_logs(broker: "BrokerNode") -> Iterator[Sample]:
    now_ms = broker.clock.now_ms()
    offline = len(broker.directory.offline)
    segments = producers = transactions = 0
    idle_ms_max = 0
    logs = list(broker.directory.logs.items())
    label = _partition_label(broker)
    for (topic, partition), log in logs:
        # Samples with the same labels are summed.
        labels = (topic, label(topic, partition))
        yield SIZE, labels, log.size
        yield START, labels, log.log_start_offset
        yield HIGH_WATERMARK, labels, log.high_watermark
        yield END, labels, log.log_end_offset
        offline += log.offline_reason is not None
        segments += len(log.segments)
        state = log.producers
        producers += state.producer_count
        oldest = state.oldest_open_producer
        if oldest is not None:
            transactions += state.open_transaction_count
            idle_ms_max = max(idle_ms_max, now_ms - oldest.last_timestamp)
    yield PARTITIONS, (), len(logs) + len(broker.directory.offline)
    yield OFFLINE, (), offline
    yield SEGMENTS, (), segments
    yield PRODUCER_IDS, (), producers
    yield OPEN_TRANSACTIONS, (), transactions
    yield OPEN_TRANSACTION_IDLE, (), idle_ms_max / 1000


def _partition_label(broker: "BrokerNode") -> Callable[[str, int], str]:
    """What tells the series of a partition from those of its topic, as the setting says."""
    chosen = broker.config.values[METRICS_PARTITIONS]
    if chosen == "none":
        return lambda _topic, _partition: ""
    if chosen == "all":
        return lambda _topic, partition: str(partition)
    led = {(partition.topic, partition.index) for partition in broker.partitions}
    return lambda topic, partition: str(partition) if (topic, partition) in led else ""


def _collect_commits(broker: "BrokerNode") -> Iterator[Sample]:
    statistics = broker.directory.commit.statistics
    yield PASSES, (), statistics.passes
    yield FILE_SYSTEM_SYNCS, (), statistics.file_system_syncs
    yield PASS_LOGS, (), statistics.pass_logs.value(COUNTS)
    yield SYNC, (), statistics.sync_ns.value(SECONDS)
    yield PASS, (), statistics.pass_ns.value(SECONDS)


_COORDINATORS_MAX = 3

SHARDS = Description(
    "tidelog_coordinator_shards",
    Kind.GAUGE,
    "Partitions of a coordinator's topic that are led here, in each state.",
    ("coordinator", "state"),
    _COORDINATORS_MAX * (len(ShardState) + 1),
)
LOAD = Description(
    "tidelog_coordinator_shard_load_seconds_max",
    Kind.GAUGE,
    "How long the last load of the slowest shard took.",
    ("coordinator",),
    _COORDINATORS_MAX,
    Rest.MAX,
)
DROPS = Description(
    "tidelog_coordinator_shard_drops_total",
    Kind.COUNTER,
    "How often a shard was dropped and reloaded, because one of its writes failed.",
    ("coordinator",),
    _COORDINATORS_MAX,
)
TRANSACTIONAL_IDS = Description("tidelog_transactional_ids", Kind.GAUGE, "Transactional ids that are kept.")
OPEN = Description("tidelog_transactions_open", Kind.GAUGE, "Open transactions.")
ENDING = Description("tidelog_transactions_ending", Kind.GAUGE, "Decided transactions whose markers are being written.")
OLDEST = Description(
    "tidelog_transaction_oldest_seconds", Kind.GAUGE, "Age of the oldest open transaction; 0 when there is none."
)


def add_coordinator_metrics(registry: Registry, broker: "BrokerNode") -> None:
    registry.add([SHARDS, LOAD, DROPS], lambda: _collect_shards(broker))
    registry.add([TRANSACTIONAL_IDS, OPEN, ENDING, OLDEST], lambda: _collect_transactions(broker))
    registry.add_value(
        Kind.GAUGE,
        "tidelog_producer_ids_left",
        "Producer ids that can be given out before the next block is requested.",
        lambda: broker.coordinators.producer_ids.left,
    )


def _collect_shards(broker: "BrokerNode") -> Iterator[Sample]:
    coordinators = broker.coordinators
    yield from _of_coordinator("groups", coordinators.groups)
    yield from _of_coordinator("transactions", coordinators.transactions)
    yield from _of_coordinator("shares", coordinators.share_states.service)


def _of_coordinator(name: str, service: CoordinatorService[Any]) -> Iterator[Sample]:
    shards = list(service.runtime)
    states = Counter(shard.state for shard in shards)
    for state in ShardState:
        yield SHARDS, (name, state.value), states[state]
    yield SHARDS, (name, "unavailable"), service.unavailable_count
    yield LOAD, (name,), max((shard.load_ms for shard in shards), default=0) / 1000
    yield DROPS, (name,), sum(shard.drops for shard in shards)


def _collect_transactions(broker: "BrokerNode") -> Iterator[Sample]:
    now_ms = broker.clock.now_ms()
    ids = under_way = ending = 0
    oldest_ms = now_ms
    for shard in broker.coordinators.transactions.runtime:
        if shard.machine is None:
            continue
        table = shard.machine.table
        ids += len(table)
        under_way += len(table.ongoing)
        ending += len(table.prepared)
        # This dictionary gets an id when its transaction begins, so the first one is the oldest.
        first = table.find(next(iter(table.ongoing), ""))
        if first is not None:
            oldest_ms = min(oldest_ms, first.value.start_timestamp_ms)
    yield TRANSACTIONAL_IDS, (), ids
    yield OPEN, (), under_way
    yield ENDING, (), ending
    yield OLDEST, (), (now_ms - oldest_ms) / 1000


GROUPS_MAX = 200
GROUP_PARTITIONS_MAX = 1_000
# There are seven states.
STATES_MAX = 16

_LAG_LABELS = ("group", "topic", "partition")

GROUPS = Description("tidelog_groups", Kind.GAUGE, "Groups in each state.", ("state",), STATES_MAX)
MEMBERS = Description("tidelog_group_members", Kind.GAUGE, "Members of a group.", ("group",), GROUPS_MAX)
REBALANCES = Description(
    "tidelog_group_rebalances_total", Kind.COUNTER, "Rebalances of a group since it was loaded.", ("group",), GROUPS_MAX
)
REBALANCE_SECONDS = Description(
    "tidelog_group_rebalance_seconds_total", Kind.COUNTER, "Time that a group spent in rebalances.", ("group",), GROUPS_MAX
)
LOST = Description(
    "tidelog_group_lost_messages",
    Kind.GAUGE,
    "Records that were deleted before the group read them, in partitions where it has not continued since.",
    ("group",),
    GROUPS_MAX,
)
DELETION = Description(
    "tidelog_group_deletion_seconds",
    Kind.GAUGE,
    "Earliest time until retention deletes a record that the group has not read; no series when none is expected.",
    ("group",),
    GROUPS_MAX,
    Rest.MIN,
)
LAG_MESSAGES = Description(
    "tidelog_group_lag_messages", Kind.GAUGE, "High watermark minus committed offset.", _LAG_LABELS, GROUP_PARTITIONS_MAX
)
LAG_SECONDS = Description(
    "tidelog_group_lag_seconds", Kind.GAUGE, "Age of the next unread record.", _LAG_LABELS, GROUP_PARTITIONS_MAX, Rest.MAX
)


def add_group_metrics(registry: Registry, broker: "BrokerNode") -> None:
    of_groups = [GROUPS, MEMBERS, REBALANCES, REBALANCE_SECONDS, LOST, DELETION]
    registry.add([*of_groups, LAG_MESSAGES, LAG_SECONDS], lambda: _collect_groups(broker))
    lag = broker.lag
    registry.add_value(
        Kind.GAUGE, "tidelog_groups_losing", "Groups about to lose unread records to retention.", lambda: len(lag.groups_losing)
    )
    registry.add_value(
        Kind.GAUGE,
        "tidelog_groups_behind_log_start",
        "Groups that have lost unread records to retention.",
        lambda: len(lag.groups_behind_log_start),
    )
    registry.add_value(
        Kind.GAUGE,
        "tidelog_groups_behind_compaction",
        "Groups with unread records that compaction may have removed.",
        lambda: len(lag.groups_behind_compaction),
    )
    registry.add_value(
        Kind.GAUGE,
        "tidelog_lag_offsets_not_followed",
        "Committed offsets beyond the number that the lag monitor tracks.",
        lambda: lag.not_followed,
    )


def _collect_groups(broker: "BrokerNode") -> Iterator[Sample]:
    states: Counter[str] = Counter()
    label = _partition_label(broker)
    for group, offsets in broker.lag.each_group():
        states[group.state] += 1
        labels = (group.group_id,)
        yield MEMBERS, labels, group.members
        yield REBALANCES, labels, group.rebalances
        yield REBALANCE_SECONDS, labels, group.rebalance_ms_total / 1000
        yield from _of_retention(group.group_id, offsets)
        seconds: dict[tuple[str, str, str], float] = {}
        for one in offsets:
            place = (one.group_id, one.topic, label(one.topic, one.partition))
            yield LAG_MESSAGES, place, one.lag_messages
            if one.lag_seconds is not None:
                # Messages add up; of ages the worst counts.
                seconds[place] = max(seconds.get(place, 0.0), one.lag_seconds)
        for place, worst in seconds.items():
            yield LAG_SECONDS, place, worst
    for group_id, offsets in broker.lag.each_share_group():
        yield from _of_retention(group_id, offsets)
    for state, count in states.items():
        yield GROUPS, (state,), count


def _of_retention(group_id: str, offsets: Sequence[GroupPartitionLag]) -> Iterator[Sample]:
    yield LOST, (group_id,), sum(one.lost_messages for one in offsets)
    deletions = [one.deletion_seconds for one in offsets if one.deletion_seconds is not None]
    if deletions:
        yield DELETION, (group_id,), min(deletions)


QUOTA_KEYS_MAX = 5
THROTTLED = Description(
    "tidelog_throttled_requests_total",
    Kind.COUNTER,
    "Requests after which their client was throttled, because it was over a quota.",
    ("api", "quota"),
    APIS_MAX * QUOTA_KEYS_MAX,
)
THROTTLED_SECONDS = Description(
    "tidelog_throttled_seconds_total",
    Kind.COUNTER,
    "How long clients were throttled for being over a quota.",
    ("api", "quota"),
    APIS_MAX * QUOTA_KEYS_MAX,
)
TRACKED = Description(
    "tidelog_quota_clients",
    Kind.GAUGE,
    "Clients whose usage is tracked because they have such a quota.",
    ("quota",),
    QUOTA_KEYS_MAX,
)


def add_quota_metrics(registry: Registry, broker: "BrokerNode") -> None:
    registry.add([THROTTLED, THROTTLED_SECONDS, TRACKED], lambda: _collect_quotas(broker))


def _collect_quotas(broker: "BrokerNode") -> Iterator[Sample]:
    for (key, quota), throttled in list(broker.throttling.by_api_and_key.items()):
        labels = broker.apis[key].name, quota
        yield THROTTLED, labels, throttled.count
        yield THROTTLED_SECONDS, labels, throttled.milliseconds / 1000
    for quota, count in broker.throttling.quotas.tracked().items():
        yield TRACKED, (quota,), count


# More than any cluster has nodes.
REPLICAS_MAX = 1_000

QUORUM_STATE = Description(
    "tidelog_quorum_state", Kind.GAUGE, "1 for the state of this node in the metadata quorum, 0 for the others.", ("state",), 6
)
QUORUM_EPOCH = Description("tidelog_quorum_epoch", Kind.GAUGE, "The epoch of the metadata quorum, as far as this node knows.")
QUORUM_LEADER = Description("tidelog_quorum_leader", Kind.GAUGE, "The id of the quorum's leader; -1 while this node knows none.")
QUORUM_ELECTIONS = Description("tidelog_quorum_elections_total", Kind.COUNTER, "Elections in which this node stood, won or lost.")
QUORUM_LAG = Description(
    "tidelog_quorum_replica_lag_records",
    Kind.GAUGE,
    "Records of the metadata log that a voter or an observer does not have yet. Only the leader knows.",
    ("node", "role"),
    REPLICAS_MAX,
    Rest.MAX,
)
DECISIONS_WAITING = Description(
    "tidelog_decisions_waiting",
    Kind.GAUGE,
    "Changes of the metadata that wait for their turn at this node, the active controller. One is decided at a time.",
)
HEARTBEAT_GAP = Description(
    "tidelog_broker_heartbeat_gap_seconds",
    Kind.GAUGE,
    "The longest time between two heartbeats of a broker since this node is the active controller; it fences after "
    "broker.session.timeout.ms.",
)
SNAPSHOT_AGE = Description(
    "tidelog_metadata_snapshot_age_seconds",
    Kind.GAUGE,
    "Time since the last record that the latest snapshot of the metadata covers.",
)
SNAPSHOT_BYTES = Description("tidelog_metadata_snapshot_bytes", Kind.GAUGE, "Size of the latest snapshot of the metadata.")
SNAPSHOT_PENDING = Description(
    "tidelog_metadata_snapshot_pending_bytes",
    Kind.GAUGE,
    "Bytes of the metadata log that were applied since the latest snapshot; a start reads them again.",
)


def add_quorum_metrics(registry: Registry, broker: "BrokerNode") -> None:
    of_quorum = [QUORUM_STATE, QUORUM_EPOCH, QUORUM_LEADER, QUORUM_ELECTIONS, QUORUM_LAG, DECISIONS_WAITING, HEARTBEAT_GAP]
    registry.add([*of_quorum, SNAPSHOT_AGE, SNAPSHOT_BYTES, SNAPSHOT_PENDING], lambda: _collect_quorum(broker))


def _collect_quorum(broker: "BrokerNode") -> Iterator[Sample]:
    quorum = broker.quorum
    for state in RaftState:
        yield QUORUM_STATE, (state.value,), int(quorum.state is state)
    yield QUORUM_EPOCH, (), quorum.epoch
    yield QUORUM_LEADER, (), quorum.leader_id
    yield QUORUM_ELECTIONS, (), quorum.elections
    if quorum.is_leader:
        status = quorum.status()
        for role, replicas in (("voter", status.voters), ("observer", status.observers)):
            for replica in replicas:
                lag = status.log_end_offset - max(replica.log_end_offset, 0)
                yield QUORUM_LAG, (str(replica.key.node_id), role), lag
    if broker.controller.is_active:
        yield DECISIONS_WAITING, (), len(broker.controller.decisions)
        yield HEARTBEAT_GAP, (), broker.controller.sessions.lateness_ms_max / 1000
    snapshots = quorum.snapshots
    age_ms = snapshots.latest_age_ms
    if age_ms is not None:
        yield SNAPSHOT_AGE, (), age_ms / 1000
    yield SNAPSHOT_BYTES, (), snapshots.latest_size
    yield SNAPSHOT_PENDING, (), snapshots.bytes_since_latest
