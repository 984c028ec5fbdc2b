"""Exceptions become error codes here and nowhere else.

The most derived exception type in the table decides. An exception that is not in the table is a fault of the broker: the client
gets UNKNOWN_SERVER_ERROR without details, and the broker reports the exception.
"""

from tidelog.broker.metadata_log import MetadataLogUnreadable, MetadataLogUnwritable
from tidelog.controller.errors import ApiError
from tidelog.coordinator import errors as coordinator_errors
from tidelog.log import errors as log_errors
from tidelog.raft import errors as raft_errors
from tidelog.replication import errors as replication_errors
from tidelog.wire.errors import ErrorCode

_CODES: dict[type[BaseException], ErrorCode] = {
    log_errors.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    log_errors.CorruptRecord: ErrorCode.CORRUPT_MESSAGE,
    log_errors.UnsupportedRecordFormat: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    log_errors.InvalidRecord: ErrorCode.INVALID_RECORD,
    log_errors.RecordsRefused: ErrorCode.INVALID_RECORD,
    log_errors.RecordTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    log_errors.InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    log_errors.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    log_errors.InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    log_errors.UnknownProducer: ErrorCode.UNKNOWN_PRODUCER_ID,
    log_errors.InvalidTransactionState: ErrorCode.INVALID_TXN_STATE,
    log_errors.TransactionCoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    log_errors.StaleLeaderEpoch: ErrorCode.FENCED_LEADER_EPOCH,
    log_errors.StorageError: ErrorCode.KAFKA_STORAGE_ERROR,
    # A Kafka broker that has not created its replica yet gives this answer too: clients refresh their metadata and retry.
    log_errors.StillBeingDeleted: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    log_errors.LogOffline: ErrorCode.KAFKA_STORAGE_ERROR,
    log_errors.CorruptLog: ErrorCode.KAFKA_STORAGE_ERROR,
    log_errors.CorruptIndex: ErrorCode.KAFKA_STORAGE_ERROR,
    replication_errors.NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    replication_errors.FencedLeaderEpoch: ErrorCode.FENCED_LEADER_EPOCH,
    replication_errors.UnknownLeaderEpoch: ErrorCode.UNKNOWN_LEADER_EPOCH,
    replication_errors.NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
    replication_errors.NotEnoughReplicasAfterAppend: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    replication_errors.OffsetNotAvailable: ErrorCode.OFFSET_NOT_AVAILABLE,
    # A follower refreshes its metadata after these.
    replication_errors.NotReplica: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    replication_errors.StaleBrokerEpoch: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    raft_errors.NotQuorumLeader: ErrorCode.NOT_CONTROLLER,
    # Whether the decision is in the log is for the next leader to say.
    raft_errors.LeadershipLost: ErrorCode.REQUEST_TIMED_OUT,
    raft_errors.TooManyProposals: ErrorCode.REQUEST_TIMED_OUT,
    MetadataLogUnreadable: ErrorCode.KAFKA_STORAGE_ERROR,
    MetadataLogUnwritable: ErrorCode.KAFKA_STORAGE_ERROR,
    coordinator_errors.CoordinatorLoading: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    coordinator_errors.CoordinatorNotAvailable: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    coordinator_errors.NotCoordinator: ErrorCode.NOT_COORDINATOR,
    coordinator_errors.DecisionTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    OSError: ErrorCode.KAFKA_STORAGE_ERROR,
}


def error_code_of(error: BaseException) -> tuple[ErrorCode, str]:
    """Return (code, message for the client)."""
    if isinstance(error, ApiError):
        return error.code, str(error)
    for known in type(error).__mro__:
        code = _CODES.get(known)
        if code is not None:
            return code, str(error)
    return ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR.message
