"""Recovery of a metadata quorum whose majority is lost for good: one node that is left becomes the only voter.

Only an operator can decide that (``tidelog storage recover-quorum``). What the lost voters agreed on without this node is gone.
And if they ever come back, they are a majority that knows nothing of it: there would be two clusters with one id.

The decision is a file in the directory of the metadata log, written while the node is stopped::

    {"version": 1, "directory_id": "..."}

The node's next start finds it and appends a voter set that consists of itself, in an epoch far above any that it knows, because
the lost voters may have gone on to later ones. It leads at once, as any lone voter does, and so commits everything that its log
holds. Then it removes the file. A crash in between repeats that, which changes nothing more. The id keeps a copy of the directory
from recovering too: it has another id, or it is the directory itself.
"""

import json
from typing import NamedTuple

from tidelog.log import names
from tidelog.log.durability.checkpoints import parse_id, read_whole, write_atomically
from tidelog.log.errors import CorruptCheckpoint, CorruptLog
from tidelog.log.inspection.directory_facts import find_segments
from tidelog.log.inspection.file_contents import walk_batches
from tidelog.metadata.topics import METADATA_TOPIC
from tidelog.ports.disk import Disk
from tidelog.raft.errors import QuorumError
from tidelog.raft.quorum_state import QuorumState
from tidelog.raft.snapshot_file import parse_snapshot_file_name
from tidelog.raft.voters import ControlRecord, KRaftVersion, Voter, VoterEndpoint, VoterSet, VotersRecord

METADATA_DIRECTORY = names.partition_directory_name(METADATA_TOPIC, 0)
FILE_NAME = "recover-quorum"
_VERSION = 1
# More elections than anybody has held since this node heard of one.
EPOCH_STEP = 1_000


class RecoveryRefused(QuorumError):
    """The file asks for a recovery that this node cannot carry out."""


class MetadataLogEnd(NamedTuple):
    """How much of the metadata a directory holds: of two, the greater one holds more."""

    epoch: int
    end_offset: int


def read_log_end(disk: Disk, data_path: str) -> MetadataLogEnd | None:
    """Where the metadata log of a stopped node ends; None if it has none. What a crash left half-written does not count."""
    directory = names.join(data_path, METADATA_DIRECTORY)
    if not disk.is_directory(directory):
        return None
    found = [
        MetadataLogEnd(each.epoch, each.end_offset)
        for each in map(parse_snapshot_file_name, disk.list_directory(directory))
        if each
    ]
    for segment in reversed(find_segments(disk, directory)):
        file = disk.open(segment.log_path, "read")
        last = None
        try:
            for batch in walk_batches(file, 0, file.size()):
                if not batch.crc_is_valid:
                    break
                last = batch.header
        except CorruptLog:
            pass  # The next start cuts a torn tail here, too.
        if last is not None:
            found.append(MetadataLogEnd(last.leader_epoch, last.next_offset))
            break
    return max(found, default=None)


def request_recovery(disk: Disk, data_path: str, directory_id: str) -> None:
    """Let the next start of the node make it the only voter. Blocks until that is durable. The caller holds the directory's
    lock."""
    text = json.dumps({"version": _VERSION, "directory_id": directory_id})
    write_atomically(disk, names.join(names.join(data_path, METADATA_DIRECTORY), FILE_NAME), text.encode())


class QuorumRecovery:
    """The recovery that the directory of a metadata log asks for."""

    __slots__ = ("_disk", "_path", "directory_id")

    def __init__(self, disk: Disk, directory: str) -> None:
        """Raises RecoveryRefused if the file is damaged."""
        self._disk = disk
        self._path = names.join(directory, FILE_NAME)
        data = read_whole(disk, self._path)
        self.directory_id: bytes | None = None
        if data is None:
            return
        try:
            fields = json.loads(data)
            if fields["version"] != _VERSION:
                raise ValueError(f"version {fields['version']}")
            self.directory_id = parse_id(self._path, 1, "directory_id", fields["directory_id"])
        except (ValueError, KeyError, TypeError, CorruptCheckpoint) as error:
            raise RecoveryRefused(f"{self._path} is damaged ({error}): remove it, and ask for the recovery again") from error

    @property
    def is_requested(self) -> bool:
        return self.directory_id is not None

    def first_epoch(self, stored: QuorumState, last_epoch: int) -> int:
        return max(stored.leader_epoch, last_epoch) + EPOCH_STEP

    def records(self, node_id: int, directory_id: bytes, endpoints: tuple[VoterEndpoint, ...]) -> list[ControlRecord]:
        """Return the records that make this node the only voter. Raises RecoveryRefused."""
        if directory_id != self.directory_id:
            raise RecoveryRefused(f"{self._path} was written for another directory, of which this one is a copy: remove it")
        if not endpoints:
            raise RecoveryRefused(
                f"{self._path} asks this node to be the only voter, and others must be able to reach it: give it the role of a "
                "controller (process.roles) and a listener for controllers (listeners, controller.listener.names)"
            )
        return [KRaftVersion(1), VotersRecord(VoterSet((Voter(node_id, directory_id, endpoints),)))]

    def finish(self) -> None:
        """The voter set is committed. Blocks until the file is gone for good. Raises OSError."""
        self.directory_id = None
        self._disk.remove(self._path)
        self._disk.sync_directory(self._path.rpartition("/")[0])
