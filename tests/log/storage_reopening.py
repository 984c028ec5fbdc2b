"""Which partitions a data directory brings back when it is opened: each that must be there, as its model says, and no other.

A topic may have been deleted and made again under its name: which of them a log is follows from its topic id.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.log.storage_check import check_log, read_all, require
from tests.log.storage_history import Batch
from tests.log.storage_model import PartitionModel
from tidelog.log.data_directory import DataDirectory
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation

NO_TOPIC_ID = bytes(16)


class CameBack(NamedTuple):
    log: PartitionLog
    model: PartitionModel
    history: list[Batch]


def check_came_back(
    directory: DataDirectory, models: Mapping[tuple[str, int], PartitionModel], deleted: Sequence[PartitionModel]
) -> list[CameBack]:
    """Raise ModelError unless what is there is what may be there. Returns it."""
    require(not directory.offline, f"a crash alone must take nothing offline: {directory.offline}")
    came_back = []
    for key in dict.fromkeys([*models, *directory.logs]):
        log, model = directory.logs.get(key), models.get(key)
        is_acknowledged = model is not None and model.acknowledged_end > 0
        if log is None:
            require(not is_acknowledged, f"{key} is gone, and had acknowledged records")
            continue
        require(log.offline_reason is None, f"{log.name} is offline after opening: {log.offline_reason}")
        found = _incarnation(model, deleted, log)
        if found is not model:
            require(not is_acknowledged, f"{key} is an older topic of that name, and the newer one had acknowledged records")
            require(not found.is_deletion_done, f"{key} is back, and its deletion was acknowledged")
        history = check_log(found, log)
        require(log.durable.offset == log.log_end_offset, f"{log.name}: opened, but not durable: {log.durable}")
        came_back.append(CameBack(log, found, history))
    return came_back


def _incarnation(model: PartitionModel | None, deleted: Sequence[PartitionModel], log: PartitionLog) -> PartitionModel:
    """Which topic of that name it is. Without an id it was never committed, and nothing of it was acknowledged."""
    key = log.topic, log.partition
    candidates = [*([model] if model is not None else []), *(one for one in reversed(deleted) if one.key == key)]
    same = [one for one in candidates if one.topic_id == log.topic_id]
    if log.topic_id == NO_TOPIC_ID and all(one.is_deletion_done for one in same):
        found = [batch for batches, _ in read_all(log, Isolation.LOG_END) for batch in batches]
        same = [
            one
            for one in candidates
            if one.acknowledged_end == 0 and all(batch.data in one.ever.get(batch.base_offset, ()) for batch in found)
        ] or same
    require(bool(same), f"{log.name} with topic id {log.topic_id.hex()} was never made, or has lost its id")
    return same[0]
