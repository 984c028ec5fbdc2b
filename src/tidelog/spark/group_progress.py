"""Where a stream is, as the committed offsets of a consumer group, for those who watch lag.

Nobody reads them back: the checkpoint says where to go on. So a failure to commit is told in the log and does not stop the
query. Committed is the end of the last finished batch, when the next one is planned: what the group shows is done.
"""

import logging
from collections.abc import Mapping

from tidelog.client.admin import Admin
from tidelog.client.errors import TidelogError
from tidelog.client.fetch.settings import librdkafka_settings
from tidelog.client.topic_partition import Partition
from tidelog.spark.options import Connection

# A trigger waits no longer than this for it.
TIMEOUT_SECONDS = 5.0

_logger = logging.getLogger(__name__)


class GroupProgress:
    def __init__(self, connection: Connection, group_id: str) -> None:
        self._connection = connection
        self._group_id = group_id
        self._admin: Admin | None = None
        self._shown: Mapping[Partition, int] = {}
        self._problem = ""

    def show(self, positions: Mapping[Partition, int]) -> None:
        """Only what has changed."""
        news: dict[tuple[str, int], int] = {
            partition: offset for partition, offset in positions.items() if self._shown.get(partition) != offset
        }
        if not news:
            return
        try:
            if self._admin is None:
                settings = librdkafka_settings(dict(self._connection.settings))
                self._admin = Admin(
                    self._connection.bootstrap, timeout=TIMEOUT_SECONDS, connect_timeout=TIMEOUT_SECONDS, config=settings
                )
            self._admin.set_group_offsets(self._group_id, news)
        except TidelogError as error:
            self._tell(str(error))
            return
        self._shown = dict(positions)
        self._problem = ""

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def _tell(self, problem: str) -> None:
        """Once: the same thing would be said at every trigger."""
        if problem != self._problem:
            _logger.warning("the progress is not shown as group %s: %s", self._group_id, problem)
            self._problem = problem
