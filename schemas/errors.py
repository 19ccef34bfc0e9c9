"""Every error that leaves this project, as one tree.

A caller catches the class that it can handle: a shell retries `LogUnavailable`, a command prints any
`SlimeEventsError` as one line and exits non-zero, and no code catches `Exception` to continue silently.

    SlimeEventsError
    ├── SchemaError
    │   └── DamagedEvent / UnknownEventType / UnknownSchemaVersion / UnwritableEvent / InvalidSubject
    ├── StorageError
    │   ├── Conflict / AccessDenied / FolderInUse / EventTooLarge / BlobMissing / BlobDamaged
    │   ├── LogDamaged / ArchiveDamaged / WeightsDamaged / StoreUnavailable / NoSpace
    │   └── LogUnavailable
    │       └── InboxFull / RunIsOver
    ├── ConfigError
    │   ├── UnknownFlag / ImpossibleCombination / RunIsOn / RunHasEnded
    │   └── InvalidValue
    │       └── UnknownGrader / UntrustedText
    ├── DataError
    │   └── TooManyBadLines / BadQuery / UngradableSample
    ├── PlugPointError
    │   └── PlugPointMissing / NameTaken / GenerateDiffers / ToolInterrupted / ToolFailed
    ├── TrainerError
    │   └── RankLost
    ├── EngineError
    │   └── RequestRefused / EngineLost
    └── CheckpointMismatch / MissingPart / DeadlineExceeded / RunNotFound
"""

from schemas.redaction import shown
from schemas.text import MESSAGE_CHARACTERS, message_text, raised_text, valid_text

ERROR_CHARACTERS = 16_000
"""Most characters in an error's text: enough for a list of every problem in some settings."""


def shown_text(text: str, limit: int = MESSAGE_CHARACTERS) -> str:
    """Return a message for an event, error or answer: valid Unicode, at most `limit` characters, without secrets."""
    return valid_text(shown(text, limit))


def reason_of(error: BaseException) -> str:
    """Return the reason for a failure, for an event or answer: the text, with the type if the error is not ours."""
    text = message_text if isinstance(error, SlimeEventsError) else raised_text
    return shown_text(text(error, 2 * MESSAGE_CHARACTERS))


class SlimeEventsError(Exception):
    """Root of the tree. The message says what happened, where, and what to do. It never contains a secret.

    The message may quote text from outside, so it is always made valid Unicode and cut to a bounded length.
    """

    def __str__(self) -> str:
        try:
            text = str.__str__(super().__str__())
        except BaseException as error:  # raised by the `__str__` of an argument
            text = message_text(error)
        return shown_text(text, ERROR_CHARACTERS)


class SchemaError(SlimeEventsError):
    """A record, event or subject that cannot be decoded or encoded."""


class DamagedEvent(SchemaError):
    """Bytes that do not decode to an event."""


class UnknownEventType(SchemaError):
    """A well-formed event of a type that this code does not know."""


class UnknownSchemaVersion(SchemaError):
    """A known type in a schema version newer than this code."""


class UnwritableEvent(SchemaError):
    """An event that holds a value of no known type, a number above 64 bits or text that is not Unicode."""


class InvalidSubject(SchemaError):
    """A run name, entity or subject with characters that a NATS subject token cannot have."""


class StorageError(SlimeEventsError):
    """Something that cannot be stored or found."""


class Conflict(StorageError):
    """An append lost its fence: the entity has moved since the writer last looked.

    `subject` is the filter of the fence. `expected` and `actual` are log positions (0: no event); `actual` is None if
    the back-end does not report it.
    """

    def __init__(self, message: str, *, subject: str, expected: int, actual: int | None = None) -> None:
        super().__init__(message)
        self.subject = subject
        self.expected = expected
        self.actual = actual


class LogUnavailable(StorageError):
    """The log did not answer within the deadline."""


class InboxFull(LogUnavailable):
    """The most prompts from outside that a run accepts are waiting. Try again later."""


class RunIsOver(LogUnavailable):
    """The run has made all its steps and accepts no more input. A retry does not help; the message says what does."""


class AccessDenied(StorageError):
    """The NATS server does not accept the credentials, or they lack the permission for the request."""


class FolderInUse(StorageError):
    """Another NATS server, or a reader, has the log of the folder open."""


class EventTooLarge(StorageError):
    """An encoded event, or the sum of one atomic call, exceeds the limit. Put large payloads into the blob store."""


class BlobMissing(StorageError):
    """No blob with that digest."""


class BlobDamaged(StorageError):
    """A blob whose bytes do not have the digest that names it."""


class LogDamaged(StorageError):
    """The log has a gap, or was replaced by another log: acked events are lost."""


class ArchiveDamaged(StorageError):
    """An archive segment or manifest that does not have its digest."""


class WeightsDamaged(StorageError):
    """A weight file that does not fit its manifest."""


class StoreUnavailable(StorageError):
    """The object store or file system of blobs, archive or weights did not answer, or refused the request."""


class NoSpace(StorageError):
    """The disk or bucket is full."""


class ConfigError(SlimeEventsError):
    """Settings that cannot be used."""


class UnknownFlag(ConfigError):
    """An unknown flag; the message carries the nearest names."""


class InvalidValue(ConfigError):
    """An invalid value of a flag or field."""


class UntrustedText(InvalidValue):
    """An address, function or command that only an archive names. The message says how to confirm it."""


class UnknownGrader(InvalidValue, NotImplementedError):
    """No grader has that name; the message lists the known ones. slime raises NotImplementedError here."""


class ImpossibleCombination(ConfigError):
    """Settings that exclude each other; the message says which and why."""


class RunIsOn(ConfigError):
    """The run is already running: the message names the launcher."""


class RunHasEnded(ConfigError):
    """The processes of a killed launcher finished the run while it was being resumed."""


class DataError(SlimeEventsError):
    """Data or SQL from the user that cannot be used."""


class TooManyBadLines(DataError):
    """More malformed prompt lines than --max-bad-lines allows."""


class BadQuery(DataError):
    """SQL that is not one SELECT over existing tables; the message has the line and the nearest names."""


class UngradableSample(DataError):
    """A sample that lacks a field its grader needs, or names an unknown grader; the message says which."""


class PlugPointError(SlimeEventsError):
    """A user's function raised an error, or returned a value of the wrong type."""


class PlugPointMissing(PlugPointError):
    """The dotted path or file:function does not lead to a callable."""


class NameTaken(PlugPointError):
    """A user's module has the name of one of our packages."""


class GenerateDiffers(PlugPointError):
    """A generate function that runs again after a crash makes another request than the log has."""


class ToolInterrupted(PlugPointError):
    """A tool call was in flight when its engine was lost, and the tool is not marked as repeatable."""


class ToolFailed(PlugPointError):
    """A tool raised an error. A call that is answered from the log raises it again with the same message."""


class CheckpointMismatch(SlimeEventsError):
    """A checkpoint does not fit the model: the message names the tensor and both shapes."""


class EngineError(SlimeEventsError):
    """The rollout engine failed."""


class RequestRefused(EngineError):
    """No engine can serve the request. The message has an engine's reason, or says that the request ended engines."""


class EngineLost(EngineError):
    """An engine has ended. requests: samples that may be the cause; empty if it was ended from outside."""

    def __init__(self, message: str, requests: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.requests = requests


class TrainerError(SlimeEventsError):
    """The trainer failed."""


class RankLost(TrainerError):
    """The process of a trainer rank has ended, so the other ranks cannot continue."""


class MissingPart(SlimeEventsError):
    """A binary or package is missing; the message says how to install it."""


class DeadlineExceeded(SlimeEventsError):
    """A wait timed out: the message names the awaited event and the seconds."""


class RunNotFound(SlimeEventsError):
    """No run has that folder, or the run has no object of that name."""
