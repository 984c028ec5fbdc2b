from errno import EIO

import pytest

from tests.broker.harness import NODE_ID, PATH, Machine, offsets_in
from tests.log.harness import batch
from tidelog.broker.broker import STOP_MS_MAX
from tidelog.broker.partitions import Partitions
from tidelog.coordinator.runtime import partition_for
from tidelog.coordinator.shard import ShardState
from tidelog.log.retention.deletion_queue import DeletionQueue
from tidelog.metadata.features import FIRST_LEVELS, METADATA_VERSION, METADATA_VERSION_LEVEL, SHARE_VERSION, TRANSACTION_VERSION
from tidelog.metadata.topics import GROUPS_TOPIC, PartitionImage
from tidelog.raft.errors import CorruptMetadataLog
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import encode_request
from tidelog.wire.protocol import ApiKey


def state(machine: Machine, index: int = 0) -> PartitionImage:
    topic = machine.broker.image.topic("orders")
    assert topic is not None
    return topic.partitions[index]


# -- starting ----------------------------------------------------------------------------------------------------------------


def test_a_new_broker_registers_itself_and_finalizes_its_features() -> None:
    machine = Machine()
    broker = machine.broker.image.brokers.find(NODE_ID)
    assert broker is not None
    assert broker.is_active
    assert machine.broker.image.features == {METADATA_VERSION: METADATA_VERSION_LEVEL, TRANSACTION_VERSION: 2, SHARE_VERSION: 1}
    assert machine.events == []


def test_an_older_cluster_keeps_its_features_until_somebody_raises_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FIRST_LEVELS, TRANSACTION_VERSION)
    monkeypatch.delitem(FIRST_LEVELS, SHARE_VERSION)
    machine = Machine()
    monkeypatch.undo()
    machine.restart()
    assert machine.broker.image.features == {METADATA_VERSION: METADATA_VERSION_LEVEL}
    change = {"feature": TRANSACTION_VERSION, "max_version_level": 2}
    assert machine.client().call(ApiKey.UPDATE_FEATURES, 2, feature_updates=[change]).error_code == 0
    machine.restart()
    assert machine.broker.image.features == {METADATA_VERSION: METADATA_VERSION_LEVEL, TRANSACTION_VERSION: 2}


def test_a_clean_stop_keeps_data_settings_and_leader_epochs() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic("orders", 2, retention_ms="5000")
    client.append(count=3)
    epoch = machine.broker.lifecycle.broker_epoch
    assert machine.restart() is None
    assert machine.broker.directory.was_stopped_cleanly
    assert machine.broker.lifecycle.broker_epoch > epoch
    assert state(machine).leader_epoch == 0
    assert offsets_in(machine.client().read().records) == [0, 1, 2]
    assert machine.broker.directory.logs["orders", 1].settings.retention_ms == 5000


@pytest.mark.parametrize("keep", ["none", "some", "all"])
def test_a_crash_begins_new_leader_epochs_only_where_readers_may_have_lost_something(keep: str) -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic("orders", 2)
    client.create_topic("clicks", 1, flush_messages="1000")
    client.append(partition=1)
    for crashes in (1, 2):
        before = machine.broker.image.last_offset
        assert machine.crash(keep) is None  # type: ignore[arg-type]  # a literal, one by one
        assert [state(machine, index).leader_epoch for index in range(2)] == [0, 0]
        clicks = machine.broker.image.topic("clicks")
        assert clicks is not None
        # The only replica of the partition with relaxed durability begins one new epoch.
        assert clicks.partitions[0].leader_epoch == crashes
        # The leader change, the registration, the end of fencing, and the one partition.
        assert machine.broker.image.last_offset - before == 4
    assert machine.client().append(partition=1).base_offset == 1


def test_the_metadata_log_does_not_grow_with_the_partitions_at_a_crash() -> None:
    machine = Machine()
    machine.client().create_topic("orders", 50)
    before = machine.broker.image.last_offset
    assert machine.crash() is None
    # The leader change, the registration, and the end of fencing.
    assert machine.broker.image.last_offset - before == 3


def test_records_are_visible_after_a_restart_without_anyone_writing() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic("orders", 40)
    for index in range(40):
        client.append(partition=index)
    assert machine.restart() is None
    client = machine.client()
    machine.run_for(10)
    assert [client.read(partition=index).high_watermark for index in range(40)] == [1] * 40


def test_retention_never_looks_at_a_log_before_it_has_its_topics_settings() -> None:
    """The logs are opened before the metadata is read: with the default of seven days these records would be gone."""
    machine = Machine({"log.retention.check.interval.ms": "1"})
    client = machine.client()
    client.create_topic("orders", 100, retention_ms="-1", segment_bytes="1048576")
    old_ms = machine.clock.now_ms() - 10**10
    client.append(partition=99, records=batch(timestamps=[old_ms]))
    assert machine.restart() is None
    log = machine.broker.directory.logs["orders", 99]
    assert log.settings.retention_ms == -1
    machine.run_for(1000)
    assert machine.client().read(partition=99).log_start_offset == 0


def stray_directories(machine: Machine) -> list[str]:
    return [name for name in machine.disk.list_directory(PATH) if name.endswith("-stray")]


def test_a_log_of_a_topic_that_was_deleted_is_set_aside_at_the_next_start() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic("orders", 2)
    client.append()
    machine.run_until(lambda: len(machine.broker.directory.logs) == 3)
    machine.disk.faults.fail("names", lambda path: "/orders-" in path)
    client.call(ApiKey.DELETE_TOPICS, 1, topic_names=["orders"], timeout_ms=1000)
    assert machine.crash("all") is None
    strays = sorted((facts["partition"], facts["records"]) for facts in machine.facts("stray_log"))
    assert strays == [("orders-0", 1), ("orders-1", 0)]
    assert [topic for topic, _ in machine.broker.directory.logs] == ["__cluster_metadata"]
    assert [name.split(".")[0] for name in stray_directories(machine)] == ["orders-0"], "without records it is just deleted"


def test_logs_without_any_metadata_are_kept() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    client.append()
    assert machine.stop() is None
    for name in machine.disk.list_directory(f"{PATH}/__cluster_metadata-0"):
        machine.disk.remove(f"{PATH}/__cluster_metadata-0/{name}")
    machine.disk.remove_directory(f"{PATH}/__cluster_metadata-0")
    for name in ("durable-marks", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        machine.disk.remove(f"{PATH}/{name}")
    assert machine.start() is None
    (stray,) = stray_directories(machine)
    assert stray.startswith("orders-0.")


def test_a_metadata_log_that_cannot_be_read_stops_the_start() -> None:
    machine = Machine()
    machine.client().create_topic()
    assert machine.stop() is None
    (name,) = [name for name in machine.disk.list_directory(f"{PATH}/__cluster_metadata-0") if name.endswith(".log")]
    machine.disk.flip_bit(f"{PATH}/__cluster_metadata-0/{name}", 200)
    assert isinstance(machine.start(), CorruptMetadataLog)


def test_a_disk_that_fails_at_the_start_is_told() -> None:
    machine = Machine(is_started=False)
    machine.disk.faults.fail("sync", lambda path: path.endswith(".log"))
    assert machine.start() is not None
    assert not machine.broker.is_running


# -- stopping ----------------------------------------------------------------------------------------------------------------


def test_stopping_waits_for_the_work_under_way() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    machine.executor.run_delay_us = (500_000, 500_000)
    client.append(acks=1)
    start_ms = machine.clock.monotonic_ms()
    assert machine.stop() is None
    assert machine.clock.monotonic_ms() - start_ms >= 500
    assert machine.executor.pending == 0
    assert machine.start() is None
    assert machine.broker.directory.was_stopped_cleanly


def test_stopping_gives_up_on_work_that_never_ends() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    machine.executor.run_delay_us = (10**12, 10**12)
    client.append(acks=1)
    start_ms = machine.clock.monotonic_ms()
    assert isinstance(machine.stop(), TimeoutError)
    assert STOP_MS_MAX <= machine.clock.monotonic_ms() - start_ms < STOP_MS_MAX + 1000


def test_a_disk_that_fails_at_the_stop_is_told() -> None:
    machine = Machine()
    machine.client().create_topic()
    machine.run_for(5000)
    machine.disk.faults.fail("write", lambda path: "checkpoint" in path)
    machine.disk.faults.fail("names", lambda path: "checkpoint" in path)
    assert isinstance(machine.stop(), OSError)


def test_stopping_ends_a_compaction() -> None:
    # So slow that it would rest for minutes.
    machine = Machine({"log.cleaner.backoff.ms": "100", "log.cleaner.io.max.bytes.per.second": "1000"})
    client = machine.client()
    client.create_topic("table", cleanup_policy="compact", segment_bytes="1048576", min_cleanable_dirty_ratio="0.01")
    for _ in range(20):
        client.append("table", records=batch(size=100_000), acks=1)
    cleaner = machine.broker.directory.cleaner
    machine.run_until(lambda: cleaner.log_being_cleaned is not None)
    machine.run_for(200)
    assert cleaner.log_being_cleaned is not None
    assert machine.stop() is None
    assert cleaner.log_being_cleaned is None


# -- faults of ours ----------------------------------------------------------------------------------------------------------


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """The next call raises, those after it work."""
    works = getattr(owner, name)

    def fail(*arguments: object) -> None:
        monkeypatch.setattr(owner, name, works)
        raise RuntimeError("a bug")

    monkeypatch.setattr(owner, name, fail)


def test_an_error_in_the_background_does_not_end_all_background_work(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic("orders", flush_messages="1000")
    client.append()
    fail_once(monkeypatch, DeletionQueue, "tick")
    log = machine.broker.directory.logs["orders", 0]
    assert log.durable.offset == 0
    machine.run_until(lambda: log.durable.offset == 1)
    assert [facts["where"] for facts in machine.facts("unexpected_error")] == ["housekeeping"]


def test_an_error_while_following_the_metadata_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    client = machine.client()
    fail_once(monkeypatch, Partitions, "apply")
    client.create_topic("orders")
    client.create_topic("more")
    assert [client.append(name).error for name in ("orders", "more")] == [ErrorCode.NONE] * 2
    assert [facts["where"] for facts in machine.facts("unexpected_error")] == ["following the metadata"]


# -- partitions --------------------------------------------------------------------------------------------------------------


def test_a_log_that_cannot_be_made_is_made_later() -> None:
    machine = Machine()
    client = machine.client()
    machine.disk.faults.fail("names", lambda path: "/orders-" in path)
    client.create_topic("orders", 2)
    assert client.append().error is ErrorCode.KAFKA_STORAGE_ERROR
    assert machine.facts("partition_not_created")
    machine.disk.faults.clear()
    machine.run_until(lambda: ("orders", 1) in machine.broker.directory.logs)
    assert client.append(partition=1).error is ErrorCode.NONE


def test_many_partitions_are_made_a_few_at_a_time() -> None:
    machine = Machine()
    machine.client().create_topic("orders", 100)
    assert len(machine.broker.directory.logs) < 100
    machine.run_until(lambda: len(machine.broker.directory.logs) == 101)
    assert machine.events == []


def with_hundred_partitions() -> Machine:
    """Of which each has a record; the topic was just deleted."""
    machine = Machine()
    client = machine.client()
    client.create_topic("orders", 100)
    for index in range(100):
        client.append(partition=index, acks=1)
    client.send(ApiKey.DELETE_TOPICS, 1, encode_request(ApiKey.DELETE_TOPICS, 1, {"topic_names": ["orders"]}))
    machine.run_until(lambda: not client.session.in_flight)
    return machine


def directories_of_orders(machine: Machine) -> list[str]:
    return [name for name in machine.disk.list_directory(PATH) if name.startswith("orders")]


def test_the_logs_of_a_deleted_topic_go_a_few_at_a_time_but_nobody_reads_them() -> None:
    machine = with_hundred_partitions()
    assert 1 < len(machine.broker.directory.logs) < 101
    assert machine.client().read(partition=99).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    machine.run_until(lambda: len(machine.broker.directory.logs) == 1)
    assert all(name.endswith("-delete") for name in directories_of_orders(machine))
    assert machine.events == []


def test_a_topic_that_is_made_again_meanwhile_is_a_new_one() -> None:
    machine = with_hundred_partitions()
    client = machine.client()
    client.create_topic("orders", 100)
    machine.run_until(lambda: client.append(partition=99).error is ErrorCode.NONE)
    assert offsets_in(client.read(partition=99).records) == [0]
    machine.run_until(lambda: len(machine.broker.directory.logs) == 101)
    assert [name for name in directories_of_orders(machine) if "stray" in name] == []


def test_a_stop_lets_all_logs_of_deleted_topics_go() -> None:
    machine = with_hundred_partitions()
    assert machine.restart() is None
    assert directories_of_orders(machine) == []
    assert machine.facts("stray_log") == []


def with_damaged_orders() -> Machine:
    """A broker that was started on records that do not match their checksum."""
    machine = Machine()
    client = machine.client()
    client.create_topic()
    client.append(count=5)
    assert machine.stop() is None
    machine.disk.open(f"{PATH}/orders-0/00000000000000000000.log", "write").write(20, [b"\xff" * 8])
    machine.disk.remove(f"{PATH}/.kafka_cleanshutdown")
    assert machine.start() is None
    assert machine.broker.directory.offline.keys() == {("orders", 0)}
    return machine


def delete_orders(machine: Machine) -> None:
    (deleted,) = machine.client().call(ApiKey.DELETE_TOPICS, 1, topic_names=["orders"]).responses
    assert deleted.error_code == 0


def test_a_damaged_partition_goes_with_its_topic_and_its_name_is_free_again() -> None:
    machine = with_damaged_orders()
    delete_orders(machine)
    client = machine.client()
    client.create_topic()
    machine.run_until(lambda: client.append().error is ErrorCode.NONE)
    machine.run_for(1000)
    assert [name for name in machine.disk.list_directory(PATH) if name.startswith("orders")] == ["orders-0"]
    assert machine.restart() is None
    assert machine.broker.directory.was_stopped_cleanly
    assert machine.client().append().base_offset == 1


def test_a_damaged_partition_of_a_deleted_topic_is_set_aside_by_the_next_start() -> None:
    machine = with_damaged_orders()
    machine.disk.faults.fail("names", lambda path: "orders" in path)
    delete_orders(machine)
    assert machine.facts("log_not_deleted")
    machine.disk.faults.clear()
    client = machine.client()
    client.create_topic()
    assert client.append().error is ErrorCode.KAFKA_STORAGE_ERROR
    assert machine.crash() is None
    client = machine.client()
    machine.run_until(lambda: client.append().error is ErrorCode.NONE)
    (stray,) = [name for name in machine.disk.list_directory(PATH) if name.endswith("-stray")]
    assert machine.disk.file_size(f"{PATH}/{stray}/00000000000000000000.log") > 0


def test_a_damaged_partition_of_a_topic_that_is_there_is_left_alone() -> None:
    machine = with_damaged_orders()
    assert machine.crash() is None
    assert machine.broker.directory.offline.keys() == {("orders", 0)}
    assert machine.client().append().error is ErrorCode.KAFKA_STORAGE_ERROR


SHARDS = 10
SETTINGS = {"offsets.topic.num.partitions": str(SHARDS)}


def with_groups(machine: Machine) -> None:
    """The topic of the groups exists and all its partitions are loaded."""
    machine.client().call(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
    runtime = machine.broker.coordinators.groups.runtime
    machine.run_until(lambda: sum(shard.state is ShardState.ACTIVE for shard in runtime) == SHARDS)


def commit_in(machine: Machine, shard: int) -> None:
    group = next(f"group{number}" for number in range(1000) if partition_for(f"group{number}", SHARDS) == shard)
    client = machine.client()
    client.create_topic()
    partitions = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}]
    topics = [{"name": "orders", "partitions": partitions}]
    answer = client.call(ApiKey.OFFSET_COMMIT, 8, group_id=group, generation_id_or_member_epoch=-1, topics=topics)
    assert answer.topics[0].partitions[0].error_code == 0


def test_a_broker_without_coordinators_is_ready_when_it_has_started() -> None:
    machine = Machine()
    assert machine.broker.unready_reason() is None
    machine.stop()
    assert machine.broker.unready_reason() == "the broker is starting or stopping"


def test_after_a_start_it_is_ready_when_all_shards_are_loaded() -> None:
    machine = Machine(SETTINGS)
    with_groups(machine)
    assert machine.restart() is None
    machine.run_until(lambda: machine.broker.unready_reason() is None)
    assert sum(shard.state is ShardState.ACTIVE for shard in machine.broker.coordinators.groups.runtime) == SHARDS


def test_a_shard_that_is_loading_is_waited_for_and_one_that_was_dropped_is_not() -> None:
    machine = Machine(SETTINGS)
    with_groups(machine)
    shard = next(iter(machine.broker.coordinators.groups.runtime))
    shard.state = ShardState.LOADING
    assert machine.broker.unready_reason() == f"{GROUPS_TOPIC}: 1 partitions have not been loaded yet"
    shard.state = ShardState.ACTIVE
    shard.drop(RuntimeError("told to"))
    assert shard.state is ShardState.FAILED
    assert machine.broker.unready_reason() is None
    shard.load()
    shard.state = ShardState.LOADING
    assert machine.broker.unready_reason() is None, "it is reloaded, which concerns its own groups only"


def test_a_shard_whose_log_is_damaged_does_not_keep_the_broker_from_being_ready() -> None:
    machine = Machine(SETTINGS)
    with_groups(machine)
    commit_in(machine, 3)
    machine.executor.crash()
    machine.disk = machine.executor.disk = machine.disk.crash_image(machine.randomness, "all")
    machine.disk.faults.fail("read", lambda path: f"{GROUPS_TOPIC}-3/" in path, EIO)
    assert machine.start() is None
    assert (GROUPS_TOPIC, 3) in machine.broker.directory.offline
    machine.run_until(lambda: machine.broker.unready_reason() is None)
    service = machine.broker.coordinators.groups
    machine.run_for(3_000)
    assert machine.broker.unready_reason() is None
    assert (service.untried_count, service.unavailable_count) == (0, 1)
