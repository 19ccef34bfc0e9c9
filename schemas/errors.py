"""Every error that leaves this project, as one tree.

A caller can catch at the height it can act on: a shell retries `LogUnavailable`, a command prints any
`SlimeEventsError` as one line and exits non-zero, nothing catches `Exception` to go on in silence.

    SlimeEventsError
    ├── SchemaError                what was said cannot be understood
    │   ├── DamagedEvent           the bytes are not an event
    │   ├── UnknownEventType       an event of a type this code has never heard of
    │   ├── UnknownSchemaVersion   a newer schema of a known type
    │   ├── UnwritableEvent        an event with a value that has no place on the wire
    │   └── InvalidSubject         a run, entity or subject that NATS could not carry
    ├── StorageError               what was said cannot be kept or found
    │   ├── Conflict               the fence: another writer moved the entity first
    │   ├── LogUnavailable         the log did not answer within the deadline
    │   ├── FolderInUse            a live server holds the folder of the log
    │   ├── EventTooLarge          one event, or one atomic call, above what the server takes
    │   ├── BlobMissing / BlobDamaged
    │   ├── LogDamaged             the log has a hole: events were taken out from under us
    │   ├── ArchiveDamaged         a segment or manifest that is not what its digest says
    │   ├── WeightsDamaged         a weight file that is not what its manifest says
    │   ├── StoreUnavailable       the object store did not answer, or refused
    │   └── NoSpace                the disk is full
    ├── ConfigError                what was asked for cannot be
    │   ├── UnknownFlag            with the nearest names
    │   ├── InvalidValue           a flag or field with a value it cannot have
    │   │   └── UnknownGrader      no grader of that name (a NotImplementedError too, as in slime)
    │   ├── ImpossibleCombination  two settings that exclude each other, and why
    │   ├── RunIsOn                another launcher has the run
    │   └── RunHasEnded            what a killed launcher left came to the run's end just now
    ├── DataError                  what was given cannot be used
    │   ├── TooManyBadLines        more of them than --max-bad-lines
    │   └── BadQuery               SQL that cannot be answered: its line, and the nearest names
    ├── PlugPointError             a user's function that is missing, misnamed, or broke
    │   ├── PlugPointMissing
    │   ├── NameTaken              a user's module that bears one of our package names
    │   ├── GenerateDiffers        a generate function that, run again, asks for something else than before
    │   ├── ToolInterrupted        a tool call was in flight at a crash and may not be repeated
    │   └── ToolFailed             a tool raised
    ├── CheckpointMismatch         a checkpoint that does not fit the model (which tensor, which shapes)
    ├── EngineError                the rollout engine failed
    ├── TrainerError               the trainer failed
    │   └── RankLost               the process of a rank is gone
    ├── MissingPart                a binary or package is not there, and how to get it
    ├── DeadlineExceeded           a wait that ended without what it waited for
    └── RunNotFound                no such run folder, step, group, sample or version
"""


class SlimeEventsError(Exception):
    """Root of the tree. The message says what happened, where, and what to do."""


class SchemaError(SlimeEventsError):
    """What was said cannot be understood."""


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
    """What was said cannot be kept or found."""


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


class FolderInUse(StorageError):
    """Another NATS server lives in the folder and has its log."""


class EventTooLarge(StorageError):
    """One encoded event, or all of one atomic call, is above the limit; large payloads belong into the blob store."""


class BlobMissing(StorageError):
    """No blob with that digest."""


class BlobDamaged(StorageError):
    """A blob whose bytes do not have the digest that names it."""


class LogDamaged(StorageError):
    """The log has a hole, or another log stands where this one was: what was acked has been taken away."""


class ArchiveDamaged(StorageError):
    """An archive segment or manifest that is not what its digest says."""


class WeightsDamaged(StorageError):
    """A weight file that is not what its manifest says."""


class StoreUnavailable(StorageError):
    """The object store (or file system) of blobs, archive or weights did not answer, or refused."""


class NoSpace(StorageError):
    """The disk or bucket is full."""


class ConfigError(SlimeEventsError):
    """What was asked for cannot be."""


class UnknownFlag(ConfigError):
    """A flag nobody knows; the message carries the nearest names."""


class InvalidValue(ConfigError):
    """A flag or field with a value that it cannot have."""


class UnknownGrader(InvalidValue, NotImplementedError):
    """No grader of that name; the message lists those there are. slime raises NotImplementedError here."""


class ImpossibleCombination(ConfigError):
    """Settings that exclude each other; the message says which and why."""


class RunIsOn(ConfigError):
    """The run is launched already: the message says by whom."""


class RunHasEnded(ConfigError):
    """What a killed launcher left came to the run's end while it was being resumed."""


class DataError(SlimeEventsError):
    """What was given cannot be used."""


class TooManyBadLines(DataError):
    """More malformed prompt lines than --max-bad-lines allows."""


class BadQuery(DataError):
    """SQL that is not one SELECT over the tables there are; the message carries its line and the nearest names."""


class PlugPointError(SlimeEventsError):
    """A user's function is broken: it raised, or returned what its slot cannot take."""


class PlugPointMissing(PlugPointError):
    """The dotted path or file:function does not lead to a callable."""


class NameTaken(PlugPointError):
    """A user's module bears the name of one of our packages."""


class GenerateDiffers(PlugPointError):
    """A generate function that was run again after a crash asks for something else than what the log says it did."""


class ToolInterrupted(PlugPointError):
    """A tool call was in flight when its engine was lost, and the tool does not say that it may be repeated."""


class ToolFailed(PlugPointError):
    """A tool raised: live and when the call is answered from the log, with the same message."""


class CheckpointMismatch(SlimeEventsError):
    """A checkpoint does not fit the model: the message names the tensor and both shapes."""


class EngineError(SlimeEventsError):
    """The rollout engine failed."""


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
