"""Kafka's error codes, and the one exception for malformed bytes from the network.

``ErrorCode`` is the one table: code, message, retriable. Names and codes are Kafka's; retriable means that a client may send the
same request again. Whatever bytes come in, a decoder of this package raises only ``MalformedRequest``, and one that reads the
whole frame at once may refuse to because of its length (``TooLongForOneTurn``).
"""

from enum import IntEnum
from typing import Self


class MalformedRequest(Exception):
    """The bytes do not match their API and version, so the connection cannot be trusted any further."""


class TooLongForOneTurn(Exception):
    """The frame has more elements than may be decoded at once. Nothing is wrong with it so far: decode it in slices."""


class ErrorCode(IntEnum):
    message: str
    is_retriable: bool

    def __new__(cls, code: int, message: str = "", is_retriable: bool = False) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        member.is_retriable = is_retriable
        return member

    UNKNOWN_SERVER_ERROR = -1, "The broker met an error that it did not expect."
    NONE = 0, "No error."
    OFFSET_OUT_OF_RANGE = 1, "The offset is outside of the partition's log."
    CORRUPT_MESSAGE = 2, "The records failed their checksum, have a wrong size, or lack a key on a compacted topic.", True
    UNKNOWN_TOPIC_OR_PARTITION = 3, "This broker does not have the topic or partition.", True
    INVALID_FETCH_SIZE = 4, "The fetch size is invalid."
    LEADER_NOT_AVAILABLE = 5, "The partition has no leader at the moment.", True
    NOT_LEADER_OR_FOLLOWER = 6, "This broker is not the partition's leader, or has no replica of it.", True
    REQUEST_TIMED_OUT = 7, "The request was not done in time.", True
    BROKER_NOT_AVAILABLE = 8, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, "The replica is not available.", True
    MESSAGE_TOO_LARGE = 10, "A batch is larger than max.message.bytes."
    STALE_CONTROLLER_EPOCH = 11, "The controller has moved to another broker."
    OFFSET_METADATA_TOO_LARGE = 12, "The metadata string of a committed offset is too large."
    NETWORK_EXCEPTION = 13, "The connection was lost before the response came.", True
    COORDINATOR_LOAD_IN_PROGRESS = 14, "The coordinator is still loading its state.", True
    COORDINATOR_NOT_AVAILABLE = 15, "The coordinator is not available.", True
    NOT_COORDINATOR = 16, "This broker is not the coordinator.", True
    INVALID_TOPIC_EXCEPTION = 17, "The topic's name is invalid, or the topic does not allow this."
    RECORD_LIST_TOO_LARGE = 18, "A batch is larger than a segment may be."
    NOT_ENOUGH_REPLICAS = 19, "Fewer replicas are in sync than min.insync.replicas; nothing was written.", True
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, "Written, but fewer replicas are in sync than min.insync.replicas.", True
    INVALID_REQUIRED_ACKS = 21, "acks must be 0, 1 or -1 (all)."
    ILLEGAL_GENERATION = 22, "This is not the group's generation."
    INCONSISTENT_GROUP_PROTOCOL = 23, "The member's protocol type or protocols do not fit those of the group."
    INVALID_GROUP_ID = 24, "The group id is invalid."
    UNKNOWN_MEMBER_ID = 25, "The group has no such member."
    INVALID_SESSION_TIMEOUT = 26, "The session timeout is outside of the broker's bounds."
    REBALANCE_IN_PROGRESS = 27, "The group is rebalancing; the member must join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, "The committed offset takes too many bytes."
    TOPIC_AUTHORIZATION_FAILED = 29, "Not authorized for the topic."
    GROUP_AUTHORIZATION_FAILED = 30, "Not authorized for the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, "Not authorized for the cluster."
    INVALID_TIMESTAMP = 32, "A record's timestamp is outside of the topic's bounds."
    UNSUPPORTED_SASL_MECHANISM = 33, "The broker does not have this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, "The request does not fit the state of the SASL exchange."
    UNSUPPORTED_VERSION = 35, "The broker does not have this version of the API."
    TOPIC_ALREADY_EXISTS = 36, "A topic with this name already exists."
    INVALID_PARTITIONS = 37, "The number of partitions is invalid."
    INVALID_REPLICATION_FACTOR = 38, "The replication factor is below 1 or above the number of brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, "The replica assignment is invalid."
    INVALID_CONFIG = 40, "A setting is unknown or its value invalid."
    NOT_CONTROLLER = 41, "This broker is not the controller.", True
    INVALID_REQUEST = 42, "The request makes no sense."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "The format of the log's batches does not support the request."
    POLICY_VIOLATION = 44, "The request breaks a policy of the cluster."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "A sequence number of the producer is missing before this one."
    DUPLICATE_SEQUENCE_NUMBER = 46, "The sequence number was written before, and its offset is no longer known."
    INVALID_PRODUCER_EPOCH = 47, "The producer's epoch is old."
    INVALID_TXN_STATE = 48, "The transaction's state does not allow this."
    INVALID_PRODUCER_ID_MAPPING = 49, "The producer id does not belong to the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, "The transaction timeout is above transaction.max.timeout.ms."
    CONCURRENT_TRANSACTIONS = 51, "Another operation on the same transaction is not finished yet.", True
    TRANSACTION_COORDINATOR_FENCED = 52, "The sender of the transaction marker is no longer the producer's coordinator."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "Not authorized for the transactional id."
    SECURITY_DISABLED = 54, "Security is switched off."
    OPERATION_NOT_ATTEMPTED = 55, "Not tried, because another operation of the same request failed."
    KAFKA_STORAGE_ERROR = 56, "The disk failed under the log.", True
    LOG_DIR_NOT_FOUND = 57, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, "SASL authentication failed."
    UNKNOWN_PRODUCER_ID = 59, "Nothing is known of the producer id; its records may have been deleted."
    REASSIGNMENT_IN_PROGRESS = 60, "A reassignment of the partition is in progress."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "Delegation tokens are switched off."
    DELEGATION_TOKEN_NOT_FOUND = 62, "The delegation token is unknown."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "The principal is neither owner nor renewer of the delegation token."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "Delegation tokens cannot be asked for on such a connection."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "Not authorized for the delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, "The type of the principal is not supported."
    NON_EMPTY_GROUP = 68, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, "The group does not exist."
    FETCH_SESSION_ID_NOT_FOUND = 70, "The fetch session is unknown.", True
    INVALID_FETCH_SESSION_EPOCH = 71, "This is not the next epoch of the fetch session.", True
    LISTENER_NOT_FOUND = 72, "The leader has no listener of the name that the request came in on.", True
    TOPIC_DELETION_DISABLED = 73, "Deleting topics is switched off."
    FENCED_LEADER_EPOCH = 74, "The leader epoch of the request is older than the broker's.", True
    UNKNOWN_LEADER_EPOCH = 75, "The leader epoch of the request is newer than the broker's.", True
    UNSUPPORTED_COMPRESSION_TYPE = 76, "The version of the request does not allow this compression type."
    STALE_BROKER_EPOCH = 77, "The broker epoch has changed."
    OFFSET_NOT_AVAILABLE = 78, "The new leader's high watermark has not caught up yet.", True
    MEMBER_ID_REQUIRED = 79, "Join again, with the member id of this response."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "The preferred leader is not available.", True
    GROUP_MAX_SIZE_REACHED = 81, "The group has as many members as it may have."
    FENCED_INSTANCE_ID = 82, "Another member has taken over the group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "No replica that may lead is available.", True
    ELECTION_NOT_NEEDED = 84, "The partition needs no election.", True
    NO_REASSIGNMENT_IN_PROGRESS = 85, "No reassignment of the partition is in progress."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "The group is subscribed to the topic."
    INVALID_RECORD = 87, "A record is invalid."
    UNSTABLE_OFFSET_COMMIT = 88, "A transaction that commits offsets is still open.", True
    THROTTLING_QUOTA_EXCEEDED = 89, "A quota is exceeded.", True
    PRODUCER_FENCED = 90, "A newer producer has taken over the transactional id."
    RESOURCE_NOT_FOUND = 91, "The request names something that does not exist."
    DUPLICATE_RESOURCE = 92, "The request names the same thing twice."
    UNACCEPTABLE_CREDENTIAL = 93, "The credential is not acceptable."
    INCONSISTENT_VOTER_SET = 94, "Sender or receiver is not one of the expected voters."
    INVALID_UPDATE_VERSION = 95, "The version of the update is invalid."
    FEATURE_UPDATE_FAILED = 96, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "The forwarded principal could not be read."
    SNAPSHOT_NOT_FOUND = 98, "The snapshot does not exist."
    POSITION_OUT_OF_RANGE = 99, "The position is outside of the snapshot."
    UNKNOWN_TOPIC_ID = 100, "This broker does not have the topic id.", True
    DUPLICATE_BROKER_REGISTRATION = 101, "The broker id is in use."
    BROKER_ID_NOT_REGISTERED = 102, "The broker id is not registered."
    INCONSISTENT_TOPIC_ID = 103, "The topic id of the request is not that of the log.", True
    INCONSISTENT_CLUSTER_ID = 104, "The cluster id of the request is not this cluster's."
    TRANSACTIONAL_ID_NOT_FOUND = 105, "The transactional id is unknown."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "The fetch session mixes topic names and topic ids.", True
    INELIGIBLE_REPLICA = 107, "A replica of the new in-sync set may not be in it."
    NEW_LEADER_ELECTED = 108, "The partition was changed, and its leader with it."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "The offset has moved to tiered storage."
    FENCED_MEMBER_EPOCH = 110, "The member's epoch is fenced; it must give up its partitions and join again."
    UNRELEASED_INSTANCE_ID = 111, "Another member still holds the instance id."
    UNSUPPORTED_ASSIGNOR = 112, "The group does not support the assignor."
    STALE_MEMBER_EPOCH = 113, "The member's epoch is stale; it must wait for its next heartbeat's response."
    MISMATCHED_ENDPOINT_TYPE = 114, "The request came to an endpoint of the wrong type."
    UNSUPPORTED_ENDPOINT_TYPE = 115, "The type of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, "The controller id is unknown."
    UNKNOWN_SUBSCRIPTION_ID = 117, "The telemetry subscription is unknown or out of date."
    TELEMETRY_TOO_LARGE = 118, "The telemetry is larger than the broker accepts."
    INVALID_REGISTRATION = 119, "The broker's registration is invalid."
    TRANSACTION_ABORTABLE = 120, "The transaction failed; abort it to go on."
    INVALID_RECORD_STATE = 121, "The record's state does not allow this acknowledgement."
    SHARE_SESSION_NOT_FOUND = 122, "The share session is unknown.", True
    INVALID_SHARE_SESSION_EPOCH = 123, "This is not the next epoch of the share session.", True
    FENCED_STATE_EPOCH = 124, "The state epoch of the share group is not the coordinator's."
    INVALID_VOTER_KEY = 125, "The voter key is not the receiver's."
    DUPLICATE_VOTER = 126, "The voter is one of the voters already."
    VOTER_NOT_FOUND = 127, "The voter is not one of the voters."
    INVALID_REGULAR_EXPRESSION = 128, "The regular expression is invalid."
    REBOOTSTRAP_REQUIRED = 129, "The client's metadata is stale; it must start again from its bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, "The topology is invalid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "The epoch of the topology is invalid."
    STREAMS_TOPOLOGY_FENCED = 132, "The epoch of the topology is out of date."
    SHARE_SESSION_LIMIT_REACHED = 133, "The broker has as many share sessions as it may have.", True


_KNOWN_ERRORS: dict[int, ErrorCode] = {int(error): error for error in ErrorCode}


def known_error(code: int) -> ErrorCode:
    """Return the error of a code from the network. A newer broker may send one that is not in the table."""
    return _KNOWN_ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)
