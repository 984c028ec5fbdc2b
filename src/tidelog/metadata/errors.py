"""What can be wrong with a metadata log. Each stops a start: a broker with half of its metadata would do harm."""


class MetadataError(Exception):
    """Base of all errors about metadata records."""


class MalformedRecord(MetadataError):
    """The bytes are not a metadata record, or not one of the version that they name."""


class UnsupportedRecord(MetadataError):
    """A record of a kind or version that this release does not know. To skip it could lose a rule that somebody relies on."""


class InconsistentRecord(MetadataError):
    """A record that does not fit the image, such as a partition of a topic that was never created."""
