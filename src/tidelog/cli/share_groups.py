"""Share groups as the commands about groups see them: groups like others, whose lag is what they have not settled.

A share group has no committed offsets. In their place is the first message of each partition that is not settled; of those
behind it some may be, so the lag is what the broker counts. It is asked over plaintext only: where a command line has TLS or
SASL, or the cluster has no share groups, there are none to see.
"""

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import NamedTuple, Self

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import KafkaCluster
from tidelog.client.admin import CommittedOffset, GroupDescription, GroupListing, GroupMember
from tidelog.client.queue.share_groups import ShareGroupAdmin
from tidelog.client.topic_partition import TopicPartition
from tidelog.client.wire.errors import BrokerError, ClientError, SecurityRequired, UnsupportedByBroker
from tidelog.wire.errors import ErrorCode

SHARE = "SHARE"
_PLAINTEXT = "PLAINTEXT"
_ABSENT = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


class SharedGroup(NamedTuple):
    group: GroupDescription
    starts: dict[TopicPartition, CommittedOffset]
    """The first messages that are not settled."""
    unsettled: dict[TopicPartition, int | None]
    """How many are not; None where the broker does not say."""


class ShareGroups:
    """Connects on first use."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._open = ExitStack()
        self._admin: ShareGroupAdmin | None = None
        protocol = str(cluster.properties.get("security.protocol", _PLAINTEXT))
        self._is_visible = protocol.upper() == _PLAINTEXT

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    def listings(self) -> list[GroupListing]:
        if self._is_visible:
            with suppress(UnsupportedByBroker, SecurityRequired):
                return [GroupListing(each.name, each.state.upper(), SHARE) for each in self._asked().list_groups()]
        return []

    def find(self, name: str) -> SharedGroup | None:
        """None if there is no share group of that name."""
        if not self._is_visible:
            return None
        try:
            admin = self._asked()
            found, offsets = admin.describe(name), admin.offsets(name)
        except (UnsupportedByBroker, SecurityRequired):
            return None
        except BrokerError as error:
            if error.code in _ABSENT:
                return None
            raise CommandFailed(str(error)) from error
        except ClientError as error:
            raise CommandFailed(str(error)) from error
        members = tuple(
            GroupMember(member.member_id, member.client_id, member.host, None, member.partitions) for member in found.members
        )
        return SharedGroup(
            GroupDescription(name, found.state.upper(), SHARE, found.assignor, None, members),
            {partition: CommittedOffset(at.start_offset, at.leader_epoch, "") for partition, at in offsets.items()},
            {partition: at.lag for partition, at in offsets.items()},
        )

    def set_offsets(self, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
        try:
            self._asked().set_offsets(name, {TopicPartition(*partition): offset for partition, offset in offsets.items()})
        except ClientError as error:
            raise CommandFailed(str(error)) from error

    def delete(self, name: str) -> None:
        try:
            self._asked().delete_group(name)
        except ClientError as error:
            raise CommandFailed(str(error)) from error

    def _asked(self) -> ShareGroupAdmin:
        if self._admin is None:
            self._admin = self._open.enter_context(ShareGroupAdmin(self._cluster.bootstrap))
        return self._admin
