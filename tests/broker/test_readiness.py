from errno import EIO

from tests.broker.harness import Machine
from tidelog.broker.readiness import unready_reason
from tidelog.coordinator.hashing import partition_for
from tidelog.coordinator.shard import ShardState
from tidelog.metadata.topics import GROUPS_TOPIC
from tidelog.wire.protocol import ApiKey

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
    assert unready_reason(machine.broker) is None
    machine.stop()
    assert unready_reason(machine.broker) == "the broker is starting or stopping"


def test_after_a_start_it_is_ready_when_all_shards_are_loaded() -> None:
    machine = Machine(SETTINGS)
    with_groups(machine)
    assert machine.restart() is None
    assert unready_reason(machine.broker) == f"{GROUPS_TOPIC}: {SHARDS} partitions are still to be loaded"
    machine.run_until(lambda: unready_reason(machine.broker) is None)
    assert sum(shard.state is ShardState.ACTIVE for shard in machine.broker.coordinators.groups.runtime) == SHARDS


def test_a_shard_that_is_loading_is_waited_for_and_one_that_was_dropped_is_not() -> None:
    machine = Machine(SETTINGS)
    with_groups(machine)
    shard = next(iter(machine.broker.coordinators.groups.runtime))
    shard.state = ShardState.LOADING
    assert unready_reason(machine.broker) == f"{GROUPS_TOPIC}: 1 partitions are still to be loaded"
    shard.state = ShardState.ACTIVE
    shard.drop(RuntimeError("told to"))
    assert shard.state is ShardState.FAILED
    assert unready_reason(machine.broker) is None
    shard.load()
    shard.state = ShardState.LOADING
    assert unready_reason(machine.broker) is None, "it is loaded anew, which concerns its own groups only"


def test_a_shard_whose_log_is_damaged_does_not_keep_the_broker_from_being_ready() -> None:
    machine = Machine(SETTINGS)
    with_groups(machine)
    commit_in(machine, 3)
    machine.executor.crash()
    machine.disk = machine.executor.disk = machine.disk.crash_image(machine.randomness, "all")
    machine.disk.faults.fail("read", lambda path: f"{GROUPS_TOPIC}-3/" in path, EIO)
    assert machine.start() is None
    assert (GROUPS_TOPIC, 3) in machine.broker.directory.offline
    machine.run_until(lambda: unready_reason(machine.broker) is None)
    service = machine.broker.coordinators.groups
    machine.run_for(3_000)
    assert unready_reason(machine.broker) is None
    assert (service.untried_count, service.unavailable_count) == (0, 1)
