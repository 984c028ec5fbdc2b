"""Formats a data directory before a node first uses it: ``meta.properties`` says to which cluster and which node it belongs.

A node that is a cluster of its own needs none of this, because it formats its directory when it first starts. A node of a cluster
is formatted on purpose: an empty directory under the name of a voter that had another one would have forgotten its votes, so it
must not come about by mistake (a disk that was not mounted).

Formatting takes the directory's lock. ``meta.properties`` is written last and as a whole: a crash leaves a directory that is not
formatted, and formatting it again is harmless.
"""

import re
from collections.abc import Callable

from tidelog.log import names
from tidelog.log.durability.checkpoints import MetaProperties, format_id, read_meta_properties, write_meta_properties
from tidelog.log.errors import DirectoryUnusable
from tidelog.log.recovery.directory_opening import lock_for_use
from tidelog.ports.disk import Disk
from tidelog.ports.randomness import Randomness

UUID_BYTES = 16
# Kafka's own ids have 22 characters; names that people gave to clusters of older versions may be longer.
CLUSTER_ID = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,99}")


def random_id(randomness: Randomness) -> str:
    """16 random bytes in 22 characters, like Kafka's ids of clusters and directories."""
    while True:
        text = format_id(randomness.token(UUID_BYTES))
        # Like Kafka: an id that begins with a dash would be taken for an option on a command line.
        if not text.startswith("-"):
            return text


def read_format(disk: Disk, path: str) -> MetaProperties | None:
    """The owner of the directory, or None if it was never formatted."""
    return read_meta_properties(disk, names.join(path, names.META_PROPERTIES))


def format_directory(
    disk: Disk,
    randomness: Randomness,
    path: str,
    wanted: MetaProperties,
    *,
    ignore_formatted: bool = False,
    prepare: Callable[[MetaProperties], None] | None = None,
) -> MetaProperties:
    """Give the directory to a node; it is created if it is missing, and gets an id if ``wanted`` has none for it. Returns what it
    is formatted as. ``prepare`` writes whatever else the directory begins with.

    ``ignore_formatted`` accepts a directory that belongs to that node of that cluster already, and leaves it as it is. Raises
    DirectoryUnusable for any other that is in use, and changes nothing then."""
    if CLUSTER_ID.fullmatch(wanted.cluster_id) is None:
        raise DirectoryUnusable(f"{wanted.cluster_id!r} is not a cluster id; to make one: tidelog storage random-uuid")
    found = read_format(disk, path)
    if found is None:
        _check_empty(disk, path)
    lock = lock_for_use(disk, path)
    try:
        if found is None:
            directory_id = wanted.directory_id or randomness.token(UUID_BYTES)
            found = wanted._replace(directory_id=directory_id)
            if prepare is not None:
                prepare(found)
            write_meta_properties(disk, names.join(path, names.META_PROPERTIES), found)
            return found
        _check_same_owner(path, found, wanted)
        if not ignore_formatted:
            raise DirectoryUnusable(
                f"{path} is formatted already, for node {found.node_id} of cluster {found.cluster_id}; "
                "to keep it as it is, add --ignore-formatted"
            )
        return found
    finally:
        lock.release()


def _check_empty(disk: Disk, path: str) -> None:
    if not disk.is_directory(path):
        return
    for name in disk.list_directory(path):
        directory = names.join(path, name)
        if names.parse_partition_directory_name(name) is None or not disk.is_directory(directory):
            continue
        if any(file.endswith(names.LOG_SUFFIX) for file in disk.list_directory(directory)):
            raise DirectoryUnusable(
                f"{path} holds partitions ({name}) but no {names.META_PROPERTIES}, so its owner is not known; "
                "put that file back, or choose an empty directory"
            )


def _check_same_owner(path: str, found: MetaProperties, wanted: MetaProperties) -> None:
    if found.cluster_id != wanted.cluster_id:
        raise DirectoryUnusable(f"{path} belongs to cluster {found.cluster_id}, not to {wanted.cluster_id}")
    if found.node_id != wanted.node_id:
        raise DirectoryUnusable(f"{path} belongs to node {found.node_id}, not to node {wanted.node_id}")
    if wanted.directory_id is not None and found.directory_id not in (None, wanted.directory_id):
        raise DirectoryUnusable(f"{path} has another directory id than the one that was given")
