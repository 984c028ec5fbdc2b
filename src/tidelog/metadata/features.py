"""The features that a cluster can finalize, and the levels that this release supports.

The table lists only what is implemented, because clients act on it. The level of metadata.version matches the versions of the
records that we write (Kafka 4.3). From transaction.version 2 on (KIP-890) clients no longer add partitions to a transaction
themselves, and every transaction has its own epoch. share.version 1 allows share groups (KIP-932). kraft.version 1 keeps the
voters of the metadata quorum in the log, so that they can change (KIP-853); its level is a control record of that log.
"""

METADATA_VERSION = "metadata.version"
METADATA_VERSION_LEVEL = 30
TRANSACTION_VERSION = "transaction.version"
TRANSACTION_VERSION_LEVEL = 2
SHARE_VERSION = "share.version"
SHARE_VERSION_LEVEL = 1
KRAFT_VERSION = "kraft.version"
KRAFT_VERSION_LEVEL = 1

# Maps a feature's name to its minimum and maximum level.
SUPPORTED_FEATURES: dict[str, tuple[int, int]] = {
    METADATA_VERSION: (METADATA_VERSION_LEVEL, METADATA_VERSION_LEVEL),
    TRANSACTION_VERSION: (0, TRANSACTION_VERSION_LEVEL),
    SHARE_VERSION: (0, SHARE_VERSION_LEVEL),
    KRAFT_VERSION: (0, KRAFT_VERSION_LEVEL),
}
# The levels of a new cluster. An older cluster keeps its levels until an administrator raises them.
FIRST_LEVELS = {
    METADATA_VERSION: METADATA_VERSION_LEVEL,
    TRANSACTION_VERSION: TRANSACTION_VERSION_LEVEL,
    SHARE_VERSION: SHARE_VERSION_LEVEL,
}
