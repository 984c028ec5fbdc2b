"""What a node says when its directory holds no quorum that it could take part in: the path, what is wrong, and what to do."""

from collections.abc import Callable

import pytest

from tests.broker.harness import PATH, Machine
from tidelog.broker.quorum_recovery import METADATA_DIRECTORY
from tidelog.raft.messages import UpgradeKRaftVersion

DIRECTORY = f"{PATH}/{METADATA_DIRECTORY}"
LOG = f"{DIRECTORY}/00000000000000000000.log"
ALONE = {"listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093", "controller.listener.names": "CONTROLLER"}
TOLD_OF_A_QUORUM = {
    "listeners": f"{ALONE['listeners']},REPLICATION://127.0.0.1:9094",
    "listener.security.protocol.map": "REPLICATION:PLAINTEXT",
    "inter.broker.listener.name": "REPLICATION",
    "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
}


def damage_state(machine: Machine) -> None:
    file = machine.disk.open(f"{DIRECTORY}/quorum-state", "create")
    file.truncate(0)
    file.write(0, [b"garbage"])


def damage_log(machine: Machine) -> None:
    machine.disk.flip_bit(LOG, 200)


def damage_log_and_crash(machine: Machine) -> None:
    damage_log(machine)
    machine.disk.remove(f"{PATH}/.kafka_cleanshutdown")


def name_a_quorum(machine: Machine) -> None:
    machine.settings.update(TOLD_OF_A_QUORUM)


def take_another_id(machine: Machine) -> None:
    machine.settings["node.id"] = "7"


def failure_of(machine: Machine) -> Exception | None:
    try:
        return machine.start()
    except Exception as error:
        return error


@pytest.mark.parametrize(
    ("harm", "path", "words"),
    [
        (damage_state, f"{DIRECTORY}/quorum-state", "restore it from a copy"),
        (damage_log, DIRECTORY, "restore the data directory from a copy, or replace this node"),
        (damage_log_and_crash, LOG, "restore the data directory from a copy, or replace this node"),
        (name_a_quorum, DIRECTORY, "tidelog quorum upgrade"),
        (take_another_id, PATH, "belongs to broker 1, but this is broker 7; "),
    ],
)
def test_what_is_wrong_and_what_to_do(harm: Callable[[Machine], None], path: str, words: str) -> None:
    machine = Machine(ALONE)
    machine.client().create_topic()
    machine.stop()
    harm(machine)
    said = str(failure_of(machine))
    assert path in said
    assert words in said
    assert "\n" not in said


def test_settings_that_contradict_the_log_are_reported() -> None:
    voters = {
        **ALONE,
        **TOLD_OF_A_QUORUM,
        "controller.quorum.bootstrap.servers": "",
        "controller.quorum.voters": "1@127.0.0.1:9093",
    }
    machine = Machine(voters)
    machine.broker.quorum.handle(UpgradeKRaftVersion(1, 1_000), lambda _: None)
    machine.run_until(lambda: machine.broker.quorum.high_watermark == machine.broker.quorum.end_offset)
    machine.restart()
    assert machine.facts("quorum_settings_outdated") == []
    machine.stop()
    machine.settings["controller.quorum.voters"] = "1@127.0.0.1:9093,2@127.0.0.1:9999"
    assert machine.start() is None
    assert machine.facts("quorum_settings_outdated") == [{"voters_of_settings": (1, 2), "voters_of_log": (1,)}]
