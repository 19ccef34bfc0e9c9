"""`ErrorCode`: the error codes of JetStream's API that this package handles, under the server's own names.

All codes: https://github.com/nats-io/nats-server/blob/main/server/errors.json.
"""

import enum


class ErrorCode(enum.IntEnum):
    """Value of `err_code` in an answer of JetStream."""

    JSClusterNoPeersErrF = 10005  # too few nodes are known for the requested replicas
    JSClusterNotAvailErr = 10008  # the cluster has no leader yet
    JSClusterNotLeaderErr = 10009  # the cluster is not ready
    JSConsumerNotFoundErr = 10014
    JSInsufficientResourcesErr = 10023
    JSNoMessageFoundErr = 10037
    JSNotEnabledForAccountErr = 10039
    JSStorageResourcesExceededErr = 10047
    JSStreamNameExistErr = 10058  # a stream of the name exists with another configuration
    JSStreamNotFoundErr = 10059
    JSStreamNotMatchErr = 10060  # the stream is not the expected one
    JSStreamWrongLastMsgIDErrF = 10070
    JSStreamWrongLastSequenceErrF = 10071  # a fence failed
    JSStreamReplicasNotSupportedErr = 10074  # replicas need a cluster
    JSNotEnabledErr = 10076
    JSStreamStoreFailedF = 10077  # the stream's size limit is reached
    JSStreamDuplicateMessageConflict = 10158  # another writer is sending the same event
    JSStreamWrongLastSequenceConstantErr = 10164  # a fence failed in a cluster
    JSStreamTooManyRequests = 10167
    JSAtomicPublishIncompleteBatchErr = 10176  # the first part of the batch is missing
    JSAtomicPublishContainsDuplicateMessageErr = 10201  # a message id is stored already
    JSAtomicPublishTooManyInflight = 10210  # too many atomic batches are open; older servers answer 10176


NO_ROOM = frozenset(
    {
        ErrorCode.JSInsufficientResourcesErr,
        ErrorCode.JSStorageResourcesExceededErr,
        ErrorCode.JSStreamStoreFailedF,
    }
)
"""The server has no room to store more."""

TEMPORARY = frozenset(
    {
        ErrorCode.JSClusterNoPeersErrF,
        ErrorCode.JSClusterNotAvailErr,
        ErrorCode.JSClusterNotLeaderErr,
        ErrorCode.JSStreamDuplicateMessageConflict,
        ErrorCode.JSStreamTooManyRequests,
    }
)
"""The same request may succeed later."""

NOT_ENABLED = frozenset({ErrorCode.JSNotEnabledErr, ErrorCode.JSNotEnabledForAccountErr})
"""The server or the account has no JetStream."""

TOO_MANY_BATCHES = frozenset({ErrorCode.JSAtomicPublishIncompleteBatchErr, ErrorCode.JSAtomicPublishTooManyInflight})
"""An atomic batch was dropped, mostly because the stream has too many open ones."""

FENCE_FAILED = frozenset({ErrorCode.JSStreamWrongLastSequenceErrF, ErrorCode.JSStreamWrongLastSequenceConstantErr})
"""The last position is not the expected one."""
