"""Every mistake that a member or an administrator of a share group can make, with the exact code that answers it."""

from collections.abc import Callable

import pytest

from tests.broker.handlers.share_client import GROUP, ShareMember, share_machine
from tests.broker.handlers.test_share_group_states import Peer
from tests.broker.handlers.test_share_groups import alter, described_offsets, member_of
from tests.broker.harness import Machine
from tidelog.queues.acknowledgements import AcknowledgeType
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

ACCEPT, RENEW = AcknowledgeType.ACCEPT, AcknowledgeType.RENEW


class Scene:
    """A member that holds the first two of four records, in a broker that serves one member."""

    def __init__(self) -> None:
        machine, client, self.topic_id = share_machine(settings={"group.share.max.share.sessions": "1"})
        self.machine: Machine = machine
        client.append(count=4)
        self.member: ShareMember = member_of(machine, self.topic_id)
        assert self.member.acquired(max_records=2, share_acquire_mode=1) == [(0, 1, 1)]

    def settle(self, first: int, last: int, *types: int, version: int = 2) -> int:
        response = self.member.acknowledge((0, first, last, types), version=version)
        return int(response.responses[0].partitions[0].error_code)

    def beat(self, member: str, epoch: int, group: str = GROUP) -> int:
        fields = {"group_id": group, "member_id": member, "member_epoch": epoch}
        return int(self.machine.client().call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, **fields).error_code)

    def delete_offsets(self, group: str = GROUP) -> int:
        fields = {"group_id": group, "topics": [{"topic_name": "orders"}]}
        return int(self.machine.client().call(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, **fields).error_code)

    def delete_group(self) -> int:
        (result,) = self.machine.client().call(ApiKey.DELETE_GROUPS, 2, groups_names=[GROUP]).results
        return int(result.error_code)

    def other_fetch(self) -> int:
        return int(member_of(self.machine, self.topic_id, "other").fetch().error_code)


def fenced_state(_: Scene) -> int:
    peer = Peer()
    peer.initialize(state_epoch=3)
    return peer.write(state_epoch=2)


MISTAKES: dict[str, tuple[int, Callable[[Scene], int]]] = {
    "a record that is not acquired": (121, lambda scene: _after_release(scene)),
    "a session that is not there": (122, lambda scene: scene.member.fetch(member_id="nobody").error_code),
    "an acknowledgement without a session": (122, lambda scene: scene.member.acknowledge(member_id="nobody").error_code),
    "a session epoch that is not the next": (123, lambda scene: scene.member.fetch(share_session_epoch=9).error_code),
    "a session that begins with an acknowledgement": (
        123,
        lambda scene: scene.member.acknowledge(share_session_epoch=0).error_code,
    ),
    "a state epoch that is over": (124, fenced_state),
    "one session too many": (133, Scene.other_fetch),
    "the first offset after the last": (42, lambda scene: scene.settle(1, 0, ACCEPT)),
    "neither one type nor one for each offset": (42, lambda scene: scene.settle(0, 1, ACCEPT, ACCEPT, ACCEPT)),
    "an unknown type": (42, lambda scene: scene.settle(0, 0, 5)),
    "a renewal in version 1": (42, lambda scene: scene.settle(0, 0, RENEW, version=1)),
    "a renewal without its flag": (42, lambda scene: scene.settle(0, 0, RENEW)),
    "offsets beyond the window": (42, lambda scene: scene.settle(3, 3, ACCEPT)),
    "no group": (42, lambda scene: scene.member.fetch(group_id=None).error_code),
    "a renewal that fetches": (42, lambda scene: scene.member.fetch(is_renew_ack=True).error_code),
    "a member epoch from the future": (110, lambda scene: scene.beat("a", 99)),
    "a member that the group does not have": (25, lambda scene: scene.beat("stranger", 1)),
    "a group that is not there": (69, lambda scene: scene.beat("a", 1, group="nothing")),
    "offsets of a group that is not there": (69, lambda scene: described_offsets(scene.machine, group="nothing").error_code),
    "deleting offsets of a group that is not there": (69, lambda scene: scene.delete_offsets("nothing")),
    "setting the offsets of a group with members": (68, lambda scene: alter(scene.machine, 0)[0]),
    "deleting the offsets of a group with members": (68, Scene.delete_offsets),
    "deleting a group with members": (68, Scene.delete_group),
}


def _after_release(scene: Scene) -> int:
    assert scene.settle(1, 1, AcknowledgeType.RELEASE) == ErrorCode.NONE
    return scene.settle(1, 1, ACCEPT)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_its_code(name: str) -> None:
    code, make = MISTAKES[name]
    scene = Scene()
    assert make(scene) == code
    assert scene.machine.facts("unexpected_error") == []
    assert scene.settle(0, 0, ACCEPT) == ErrorCode.NONE, "what the member holds is not affected"
