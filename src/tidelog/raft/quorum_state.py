"""The ``quorum-state`` file: this node's epoch, the leader of that epoch, and the candidate that the node voted for.

One JSON object, as Kafka writes it::

    {"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}

Version 0 (Kafka without directory ids) is read too. A node that forgot its vote could vote twice in one epoch, so the file is
replaced atomically and is durable before the node acts on it; a crash leaves either the old state or the new one.
"""

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidelog.ports.disk import Disk
from tidelog.raft.errors import QuorumStateUnusable

FILE_NAME = "quorum-state"
DATA_VERSION = 1
NOBODY = -1
NO_DIRECTORY = bytes(16)
_STATE_SIZE_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class QuorumState:
    leader_epoch: int = 0
    leader_id: int = NOBODY
    voted_id: int = NOBODY
    voted_directory_id: bytes = NO_DIRECTORY


def format_state(state: QuorumState) -> bytes:
    fields = {
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": state.voted_id,
        "votedDirectoryId": base64.urlsafe_b64encode(state.voted_directory_id).decode().rstrip("="),
        "data_version": DATA_VERSION,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def parse_state(data: bytes) -> QuorumState:
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise QuorumStateUnusable(f"{FILE_NAME} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise QuorumStateUnusable(f"{FILE_NAME} is not a JSON object")
    version = _integer(fields, "data_version", 0)
    if version > DATA_VERSION:
        raise QuorumStateUnusable(f"{FILE_NAME} has data_version {version}; this release reads versions 0 to {DATA_VERSION}")
    return QuorumState(
        leader_epoch=_integer(fields, "leaderEpoch", 0),
        leader_id=_integer(fields, "leaderId", NOBODY),
        voted_id=_integer(fields, "votedId", NOBODY),
        voted_directory_id=_directory_id(fields.get("votedDirectoryId")),
    )


def _integer(fields: dict[str, Any], name: str, low: int) -> int:
    value = fields.get(name)
    if type(value) is not int or value < low:
        raise QuorumStateUnusable(f"{FILE_NAME}: {name} is {value!r}, but must be an integer of at least {low}")
    return value


def _directory_id(text: object) -> bytes:
    if text is None:
        return NO_DIRECTORY
    try:
        value = base64.b64decode(f"{text}==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if len(value) != len(NO_DIRECTORY):
        raise QuorumStateUnusable(f"{FILE_NAME}: votedDirectoryId is {text!r}, but must be 22 characters of base64")
    return value


class QuorumStateFile:
    __slots__ = ("_disk", "_use_reserve", "path")

    def __init__(self, disk: Disk, directory: str, use_reserve: Callable[[Callable[[], None]], None] | None = None) -> None:
        """``use_reserve`` runs a write that must be possible on a full disk; it may run it twice."""
        self._disk = disk
        self._use_reserve = use_reserve
        self.path = f"{directory}/{FILE_NAME}"

    def load(self) -> QuorumState:
        """Read the file. If it does not exist, the node has never taken part: epoch 0, no leader, no vote."""
        try:
            file = self._disk.open(self.path, "read")
        except FileNotFoundError:
            return QuorumState()
        try:
            return parse_state(file.read(0, _STATE_SIZE_MAX))
        except QuorumStateUnusable as error:
            raise QuorumStateUnusable(
                f"{self.path} is damaged: {error}. It holds this node's vote: restore it from a copy. Without one, the only "
                "voter of a cluster may start without the file, and one of several is replaced by a new directory "
                "(docs/OPERATIONS.md, When a node is lost)"
            ) from error

    def store(self, state: QuorumState) -> None:
        """Write the state. Blocks until it is durable."""
        if self._use_reserve is None:
            self._write(state)
        else:
            self._use_reserve(lambda: self._write(state))

    def _write(self, state: QuorumState) -> None:
        temporary_path = self.path + ".tmp"
        file = self._disk.open(temporary_path, "create")
        # A crash may have left a longer file.
        file.truncate(0)
        file.write(0, [format_state(state)])
        file.sync()
        self._disk.rename(temporary_path, self.path)
        self._disk.sync_directory(self.path.rpartition("/")[0])
