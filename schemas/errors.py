"""Every error that leaves this project, as one tree.

A caller can catch at the height it can act on: a shell retries `LogUnavailable`, a command prints any
`SlimeEventsError` as one line and exits non-zero, nothing catches `Exception` to go on in silence.

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
"""Characters of an error's text that are kept: a list of all that is wrong with some settings fits."""


def shown_text(text: str, limit: int = MESSAGE_CHARACTERS) -> str:
    """Return a message as an event, an error or an answer may have it: valid, of `limit` characters, and no secret."""
    return valid_text(shown(text, limit))


def reason_of(error: BaseException) -> str:
    """Return why something failed, for an event or an answer: an error of ours by its text, another by its type too."""
    text = message_text if isinstance(error, SlimeEventsError) else raised_text
    return shown_text(text(error, 2 * MESSAGE_CHARACTERS))


class SlimeEventsError(Exception):
    """Root of the tree. The message says what happened, where, and what to do; it never says a secret.

    It may quote what came from outside. So its text is always valid Unicode and bounded.
    """

    def __str__(self) -> str:
        try:
            text = str.__str__(super().__str__())
        except BaseException as error:  # of an argument that cannot be written
            text = message_text(error)
        return shown_text(text, ERROR_CHARACTERS)


class SchemaError(SlimeEventsError):
    """A record, an event or a subject that cannot be understood, or written."""


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

    `subject` is the filter that was fenced on, `expected` and `actual` are log positions (0 = nothing there;
    `actual` is None where the back-end cannot tell).
    """

    def __init__(self, message: str, *, subject: str, expected: int, actual: int | None = None) -> None:
        super().__init__(message)
        self.subject = subject
        self.expected = expected
        self.actual = actual


class LogUnavailable(StorageError):
    """The log did not answer within the deadline."""


class InboxFull(LogUnavailable):
    """As many prompts from outside wait as a run takes: it will take more later."""


class RunIsOver(LogUnavailable):
    """The run has made all its steps, and takes nothing more. The message says what to do instead of asking again."""


class AccessDenied(StorageError):
    """The NATS server does not admit the credentials, or does not let them do what was asked."""


class FolderInUse(StorageError):
    """Another NATS server lives in the folder and has its log, or somebody reads it."""


class EventTooLarge(StorageError):
    """One encoded event, or all of one atomic call, is above the limit; large payloads belong into the blob store."""


class BlobMissing(StorageError):
    """No blob with that digest."""


class BlobDamaged(StorageError):
    """A blob whose bytes do not have the digest that names it."""


class LogDamaged(StorageError):
    """The log has a hole, or another log has taken its place: acked events are gone."""


class ArchiveDamaged(StorageError):
    """An archive segment or manifest that does not have its digest."""


class WeightsDamaged(StorageError):
    """A weight file that does not fit its manifest."""


class StoreUnavailable(StorageError):
    """The object store (or file system) of blobs, archive or weights did not answer, or refused."""


class NoSpace(StorageError):
    """The disk or bucket is full."""


class ConfigError(SlimeEventsError):
    """Settings that cannot be used."""


class UnknownFlag(ConfigError):
    """An unknown flag; the message carries the nearest names."""


class InvalidValue(ConfigError):
    """A flag or field with a value that it cannot have."""


class UntrustedText(InvalidValue):
    """An address, a function or a command that only an archive names; the message says how to name it oneself."""


class UnknownGrader(InvalidValue, NotImplementedError):
    """No grader of that name; the message lists those there are. slime raises NotImplementedError here."""


class ImpossibleCombination(ConfigError):
    """Settings that exclude each other; the message says which and why."""


class RunIsOn(ConfigError):
    """The run is launched already: the message says by whom."""


class RunHasEnded(ConfigError):
    """The processes of a killed launcher finished the run while it was being resumed."""


class DataError(SlimeEventsError):
    """Data or SQL from the user that cannot be used."""


class TooManyBadLines(DataError):
    """More malformed prompt lines than --max-bad-lines allows."""


class BadQuery(DataError):
    """SQL that is not one SELECT over the tables there are; the message carries its line and the nearest names."""


class UngradableSample(DataError):
    """A sample that does not say what its grader needs, or names one that cannot be had; the message says which."""


class PlugPointError(SlimeEventsError):
    """A user's function is broken: it raised, or returned what its slot cannot take."""


class PlugPointMissing(PlugPointError):
    """The dotted path or file:function does not lead to a callable."""


class NameTaken(PlugPointError):
    """A user's module has the name of one of our packages."""


class GenerateDiffers(PlugPointError):
    """A generate function that was run again after a crash asks for something else than it did according to the log."""


class ToolInterrupted(PlugPointError):
    """A tool call was in flight when its engine was lost, and the tool is not marked as repeatable."""


class ToolFailed(PlugPointError):
    """A tool raised: live and when the call is answered from the log, with the same message."""


class CheckpointMismatch(SlimeEventsError):
    """A checkpoint does not fit the model: the message names the tensor and both shapes."""


class EngineError(SlimeEventsError):
    """The rollout engine failed."""


class RequestRefused(EngineError):
    """No engine makes this request: the message has an engine's own reason, or says that it ended engines."""


class EngineLost(EngineError):
    """An engine has ended. requests: the samples that may be why, where nobody outside has ended it."""

    def __init__(self, message: str, requests: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.requests = requests


class TrainerError(SlimeEventsError):
    """The trainer failed."""


class RankLost(TrainerError):
    """The process of a trainer rank is gone; the others cannot go on without it."""


class MissingPart(SlimeEventsError):
    """A binary or package is not there; the message says how to get it."""


class DeadlineExceeded(SlimeEventsError):
    """A wait ended without what it waited for: the message names it and the seconds."""


class RunNotFound(SlimeEventsError):
    """No such run folder, or nothing of that name in the run."""
