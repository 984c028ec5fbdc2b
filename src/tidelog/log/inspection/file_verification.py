"""Is a single small file sound: a snapshot, a checkpoint, the journal of durable marks? A segment's files are looked at together
(verification.py), and need their partition's directory."""

from tidelog.log import names
from tidelog.log.atomic_file import read_whole
from tidelog.log.checkpoints import read_meta_properties, read_offset_checkpoint, read_partition_metadata
from tidelog.log.durable_marks import decode_journal
from tidelog.log.errors import CorruptCheckpoint
from tidelog.log.inspection.directory_facts import CHECKPOINTS
from tidelog.log.inspection.findings import Finding, Severity
from tidelog.log.inspection.target import FileTarget
from tidelog.log.inspection.verification import snapshot_problem
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.ports.disk import Disk


def verify_file(disk: Disk, target: FileTarget) -> Finding | None:
    """None when it is sound. Not for a segment's files."""
    path = target.path
    try:
        problem = _problem(disk, target)
    except CorruptCheckpoint as error:
        problem = str(error)
    if problem is None:
        return None
    return Finding(Severity.DAMAGE, "", path, None, None, problem, "verify its directory to learn what that means")


def _problem(disk: Disk, target: FileTarget) -> str | None:
    path, kind = target.path, target.kind
    if kind == names.SNAPSHOT_SUFFIX:
        return snapshot_problem(read_whole(disk, path) or b"", path, target.base_offset)
    if kind == names.DURABLE_MARKS:
        return decode_journal(read_whole(disk, path) or b"", path)[1]
    if kind == names.LEADER_EPOCH_CHECKPOINT:
        LeaderEpochs(disk, path).load()
    elif kind == names.META_PROPERTIES:
        read_meta_properties(disk, path)
    elif kind == names.PARTITION_METADATA:
        read_partition_metadata(disk, path)
    elif kind in CHECKPOINTS:
        read_offset_checkpoint(disk, path)
    return None
