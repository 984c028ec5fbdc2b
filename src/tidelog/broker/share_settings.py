"""The settings of share groups as the leader of a partition needs them: a group's own, or else the broker's.

They are read again for every request, because an administrator may change them at any time, even before the group exists.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.config.groups import (
    DEAD_LETTER_COPY,
    DEAD_LETTER_TOPIC,
    GROUP,
    ORDER_BY_KEY,
    SHARE_DELIVERY_COUNT_LIMIT,
    SHARE_ISOLATION_LEVEL,
    SHARE_OFFSET_RESET,
    SHARE_ORDER,
    SHARE_RECORD_LOCK_DURATION,
    SHARE_RECORD_LOCKS,
    SHARE_RENEW_ENABLE,
    broker_setting_of,
)
from tidelog.config.topic import QUEUE_ENABLE, QUEUE_EXPIRED_TO_DEAD_LETTERS, QUEUE_TTL
from tidelog.config.types import InvalidSetting
from tidelog.log.reading import Isolation
from tidelog.metadata.configs import ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.queues.share_partition import DeliveryLimits

if TYPE_CHECKING:
    from tidelog.broker.config import TopicSettings

READ_COMMITTED = "read_committed"
# On queue topics, for one group in one partition: what is locked at once, and the rows of the table of states. Of the rows, every
# other one is settled at most, and only those and the locked ones are written. So with both at their limits, and every record
# apart from its neighbours, the state still fits into one record of the share coordinator, which has 20 bytes for each of them.
QUEUE_ACQUIRED_MAX = 20_000
QUEUE_RANGES_MAX = 60_000


class QueueRules(NamedTuple):
    """What a queue topic says about its messages."""

    ttl_ms: int
    """-1: they do not expire by themselves."""
    buries_expired: bool


class ShareSettings:
    __slots__ = ("_broker_values", "_image", "_topics")

    def __init__(self, image: ClusterImage, broker_values: Mapping[str, Any], topics: "TopicSettings") -> None:
        self._image = image
        self._broker_values = broker_values
        self._topics = topics

    def queue_rules(self, topic: str) -> QueueRules | None:
        """None for a topic that is not a queue."""
        values = self._topics.values(topic)
        if not values[QUEUE_ENABLE]:
            return None
        return QueueRules(int(values[QUEUE_TTL]), bool(values[QUEUE_EXPIRED_TO_DEAD_LETTERS]))

    def limits(self, group_id: str, topic: str) -> DeliveryLimits:
        rules = self.queue_rules(topic)
        if rules is not None:
            return DeliveryLimits(
                lock_duration_ms=self.lock_duration_ms(group_id),
                delivery_count_max=int(self._value(group_id, SHARE_DELIVERY_COUNT_LIMIT)),
                width_max=None,
                acquired_max=QUEUE_ACQUIRED_MAX,
                ranges_max=QUEUE_RANGES_MAX,
                has_dead_letters=bool(self.dead_letter_topic(group_id)),
                buries_expired=rules.buries_expired,
            )
        return DeliveryLimits(
            lock_duration_ms=self.lock_duration_ms(group_id),
            delivery_count_max=int(self._value(group_id, SHARE_DELIVERY_COUNT_LIMIT)),
            width_max=int(self._value(group_id, SHARE_RECORD_LOCKS)),
            has_dead_letters=bool(self.dead_letter_topic(group_id)),
        )

    def lock_duration_ms(self, group_id: str) -> int:
        return int(self._value(group_id, SHARE_RECORD_LOCK_DURATION))

    def isolation(self, group_id: str) -> Isolation:
        is_committed = self._value(group_id, SHARE_ISOLATION_LEVEL) == READ_COMMITTED
        return Isolation.LAST_STABLE if is_committed else Isolation.HIGH_WATERMARK

    def may_renew(self, group_id: str) -> bool:
        return bool(self._value(group_id, SHARE_RENEW_ENABLE))

    def is_ordered_by_key(self, group_id: str, topic: str) -> bool:
        return self._value(group_id, SHARE_ORDER) == ORDER_BY_KEY and self.queue_rules(topic) is not None

    def dead_letter_topic(self, group_id: str) -> str:
        """Empty if the group keeps no dead letters."""
        return str(self._value(group_id, DEAD_LETTER_TOPIC))

    def copies_dead_records(self, group_id: str) -> bool:
        return bool(self._value(group_id, DEAD_LETTER_COPY))

    def offset_reset(self, group_id: str) -> str:
        return str(self._value(group_id, SHARE_OFFSET_RESET))

    def _value(self, group_id: str, name: str) -> Any:
        """A value that cannot be parsed, perhaps written by another release, is ignored."""
        setting = GROUP.settings[name]
        text = self._image.configs_of(ResourceType.GROUP, group_id).get(name)
        if text is not None:
            with suppress(InvalidSetting):
                return setting.read(text)
        return self._broker_values[broker_setting_of(name)] if setting.synonyms else setting.default
