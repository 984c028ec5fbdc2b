"""A recovery that an operator asked for, on a simulated disk: what is refused, and what a crash leaves."""

import pytest

from tests.broker.harness import PATH, Machine
from tidelog.broker.quorum_recovery import FILE_NAME, METADATA_DIRECTORY, RecoveryRefused, read_log_end, request_recovery
from tidelog.log.durability.checkpoints import format_id
from tidelog.raft.voters import Voter, VoterEndpoint

REQUEST = f"{PATH}/{METADATA_DIRECTORY}/{FILE_NAME}"
REACHABLE = {"listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093", "controller.listener.names": "CONTROLLER"}


def stopped(settings: dict[str, str]) -> Machine:
    machine = Machine(settings)
    machine.client().create_topic()
    machine.stop()
    return machine


def own_id(machine: Machine) -> bytes:
    directory_id = machine.broker.directory.meta.directory_id
    assert directory_id is not None
    return directory_id


def test_the_node_becomes_the_only_voter_once() -> None:
    machine = stopped(REACHABLE)
    before = read_log_end(machine.disk, PATH)
    assert before is not None
    assert before.end_offset == machine.broker.quorum.end_offset
    request_recovery(machine.disk, PATH, format_id(own_id(machine)))
    assert machine.start() is None
    assert machine.broker.quorum.voters.voters == (Voter(1, own_id(machine), (VoterEndpoint("CONTROLLER", "127.0.0.1", 9093),)),)
    assert machine.broker.quorum.epoch > before.epoch + 1_000
    assert machine.facts("quorum_recovered")
    assert not machine.disk.exists(REQUEST)
    after = machine.broker.quorum.epoch
    machine.restart()
    assert (machine.broker.quorum.epoch, len(machine.facts("quorum_recovered"))) == (after + 1, 1)
    assert machine.broker.image.topic("orders")


def test_a_power_cut_before_the_recovery_is_committed_repeats_it() -> None:
    machine = stopped(REACHABLE)
    request_recovery(machine.disk, PATH, format_id(own_id(machine)))
    machine.disk.faults.fail("sync", lambda path: METADATA_DIRECTORY in path and path.endswith(".log"))
    assert machine.start() is not None
    assert machine.disk.exists(REQUEST)
    machine.disk.faults.clear()
    assert machine.crash() is None
    assert (machine.broker.quorum.kraft_version, machine.disk.exists(REQUEST)) == (1, False)


@pytest.mark.parametrize(
    ("settings", "text", "words"),
    [
        (REACHABLE, "{", "is damaged"),
        (REACHABLE, '{"version": 2, "directory_id": "AAAAAAAAAAAAAAAAAAAAAQ"}', "is damaged (version 2)"),
        (REACHABLE, '{"version": 1, "directory_id": "AAAAAAAAAAAAAAAAAAAAAQ"}', "was written for another directory"),
        ({}, "own", "give it the role of a controller (process.roles) and a listener for controllers"),
    ],
)
def test_what_is_refused(settings: dict[str, str], text: str, words: str) -> None:
    machine = stopped(settings)
    before = machine.broker.quorum.end_offset
    if text == "own":
        request_recovery(machine.disk, PATH, format_id(own_id(machine)))
    else:
        file = machine.disk.open(REQUEST, "create")
        file.write(0, [text.encode()])
    with pytest.raises(RecoveryRefused) as refused:
        machine.start()
    assert str(refused.value).startswith(REQUEST)
    assert words in str(refused.value)
    assert machine.disk.exists(REQUEST)
    after = read_log_end(machine.disk, PATH)
    assert after is not None
    assert after.end_offset == before
