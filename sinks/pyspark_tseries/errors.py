"""Errors of a store, one class for each kind of next step; and the kinds of its damage.

Every message names the column, series or store, the problem, the accepted values, and the next
step. Wrong options are `OptionError`s.

A damaged store has one of the kinds of damage in the table here (semantics 26): `verify`, `repair`,
`rebuild`, their commands and the errors share it.
"""

import importlib
import shlex
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from pyspark_timestream.errors import ReasonedError, compose_message, escape_controls


def import_library(module: str, problem: str, next_step: str) -> Any:
    """Return a library that is not always installed.

    Raises:
        ModuleNotFoundError: it is not; the message has the problem and the next step.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        message = compose_message(problem, next_step=next_step)
        raise ModuleNotFoundError(message, name=module) from None


class TseriesError(ReasonedError):
    """Base class of this package's errors; only its subclasses are raised.

    Attributes:
        kind: a word for what happened, where a class has several; None else.
        path: of the file that it is about; None else.
    """

    def __init__(
        self,
        problem: str,
        accepts: str | None = None,
        next_step: str | None = None,
        *,
        kind: str | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(problem, accepts, next_step)
        self.kind = kind
        self.path = path

    def with_next_step(self, next_step: str) -> Self:
        """The same error with another next step, one that the caller's interface offers."""
        return type(self)(self.problem, self.accepts, next_step, kind=self.kind, path=self.path)


class UpdateFailed(TseriesError):
    """A row may not be added to its series; nothing of its batch is stored."""


class OutOfOrder(UpdateFailed):
    """A row is before its series' newest event, and option `outOfOrder` is `fail`."""


class ReplayDiffers(UpdateFailed):
    """A batch lies before the last one of its query, or is that one with other rows."""


class FutureEvent(UpdateFailed):
    """A timestamp is further after the time of its commit than option `maxFuture` allows."""


class ConditionFailed(UpdateFailed):
    """The condition of an append does not hold; nothing is stored.

    Attributes:
        sequence: the highest sequence of the series that was found, -1 if it has no event; None if
            unknown.
    """

    sequence: int | None = None


class NoSuchEvent(TseriesError):
    """An edit names an event that is not an original of its series; nothing is stored."""


class IncompatibleValue(TseriesError):
    """A column does not have the name or the type of the store's, or a value does not fit it."""


class InvalidQuery(TseriesError, ValueError):
    """A range query that cannot be built, or that does not fit a series."""


class NoSuchStore(TseriesError):
    """No store exists at this path."""


class PermissionDenied(TseriesError):
    """The store's policy does not allow it; nothing is stored and nothing is read."""


class UnusableStore(TseriesError):
    """The path holds something other than a store, or a store that this version cannot open."""


class StorageFailed(TseriesError, OSError):
    """The disk, mount or file system refuses: it is full, read-only, away, or of other rights.

    Remove the cause that the message names, then do it again. A commit is stored whole or not at
    all.

    Attributes:
        code: the operating system's number of the failure, such as `errno.ENOSPC`; None if unknown.
    """

    code: int | None = None


class StoreBusy(TseriesError):
    """Other writers won every attempt to commit; nothing of the batch is stored."""


class WrongClock(TseriesError):
    """The clock of this machine, or of an earlier writer, is far ahead; nothing is stored."""


class StoreMismatch(TseriesError):
    """A query's checkpoint belongs to a different store; nothing is stored."""


class HistoryChanged(TseriesError):
    """The store lacks a commit that a checkpoint has seen: an older state of it was put back."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A kind of damage.

    Attributes:
        found: the check that finds it.
        mended: what `repair` does; None if it does nothing.
        costs: what the repair loses.
        accepts: what the store should have there.
        next_step: advice to the user; `{root}` stands for the store, as a shell reads it.
    """

    found: str
    mended: str | None
    costs: str
    accepts: str | None
    next_step: str


_PREVIEW: Final = (
    "see what would be lost with: python -m pyspark_tseries repair --dry-run {root}, then leave "
    "--dry-run out"
)
_REPAIR: Final = "python -m pyspark_tseries repair {root}"
_WHOLE: Final = "a store as it was written"
_COPIED: Final = "a store copied whole, '_tseries' included"

FROM_A_COPY: Final = "put what is broken back from a copy of the store"
"""The next step if `repair` cannot repair the damage."""

DAMAGES: Final = {
    "log entry": Damage(
        "its checksum, at each opening",
        "makes it again if every event is there then; else goes back to the last whole commit",
        "commits that were not synced; with `--give-up` all from there on",
        _WHOLE,
        _PREVIEW,
    ),
    "checkpoint": Damage(
        "its checksum, at each opening",
        "sets it aside",
        "nothing",
        _WHOLE,
        _PREVIEW,
    ),
    "file": Damage(
        "its size at an opening; its checksums at each read; all of it by `verify`",
        "goes back to the commit before, if no whole one came after it",
        "its commit; with `--give-up` all from there on",
        _WHOLE,
        _PREVIEW,
    ),
    "foreign change": Damage(
        "the log, at each opening",
        "undoes it",
        "what the other tool wrote; a copy of it is kept",
        "events that are added through tseries (OPTIMIZE, z-order and VACUUM change none)",
        f"undo it with: {_REPAIR}",
    ),
    "unknown changes": Damage(
        "the log, at each opening",
        "accepts them if all else is sound",
        "nothing",
        "a log that says who changed what",
        f"let every event be checked with: {_REPAIR}",
    ),
    "outside file": Damage(
        "the log, at each opening",
        "removes the file from the log",
        "nothing",
        "relative paths below the store, without '..' and escapes; it was not read",
        f"find out who wrote that, and undo it with: {_REPAIR}",
    ),
    "bounds": Damage(
        "the rows of the file, by `verify`",
        "logs the file again",
        "nothing",
        None,
        _REPAIR,
    ),
    "head": Damage(
        "its checksum, at each opening",
        "rebuilds it from the events",
        "counts, policy and a changed range since the newest head that can be read",
        _COPIED,
        f"copy it again, restore that file, or mend the store with: {_REPAIR}",
    ),
    "clock": Damage(
        "the time of the last commit, at each write",
        "corrects the times of commits in the future, or accepts the clock of now",
        "the times that the wrong clock gave",
        None,
        _REPAIR,
    ),
    "types": Damage(
        "the files beside the columns, by `verify`",
        None,
        "nothing: every value is read as it is",
        "files with the types of the columns, which other tools ask for",
        "finish the change that was ended in the middle: call widen_columns with this column and "
        "type again",
    ),
    "erasure record": Damage(
        "each read of it, and `verify`",
        None,
        "who erased what, and when; the values stay erased",
        _COPIED,
        "restore that file from a copy; the values stay erased without it",
    ),
    "store": Damage("each opening", None, "", None, FROM_A_COPY),
    "sequence": Damage("the events, by `verify`", None, "", None, FROM_A_COPY),
    "timestamp": Damage("the events, by `verify`", None, "", None, FROM_A_COPY),
    "commit": Damage("the events, by `verify`", None, "", None, FROM_A_COPY),
    "edit": Damage("the events, by `verify`", None, "", None, FROM_A_COPY),
    "state": Damage("the head beside the events, by `verify`", None, "", None, FROM_A_COPY),
}
"""By kind. `repair` looks for those with `mended` in this order."""


def damage_error(kind: str, root: str, problem: str, path: str | None = None) -> UnusableStore:
    """Return the error of the store at `root` for damage of this kind."""
    damage = DAMAGES[kind]
    step = damage.next_step.format(root=shlex.quote(root))
    return UnusableStore(problem, damage.accepts, step, kind=kind, path=path)


@dataclass(frozen=True, slots=True)
class Finding:
    """One case of damage in a store; `str()` describes it in a sentence.

    Attributes:
        kind: one of `DAMAGES`.
        problem: what is wrong.
        accepts: what should be there.
        next_step: what to do.
        path: the path of the damaged file or log entry; None if it is not a single one.
        series: the name of the damaged series; None if it is not a single one.
        sequences: the first and the last damaged sequence of that series; None if the finding is
            not about sequences.
        mended: how `repair` repaired it; None if it did not.
    """

    kind: str
    problem: str
    accepts: str | None = None
    next_step: str | None = None
    path: str | None = None
    series: str | None = None
    sequences: tuple[int, int] | None = None
    mended: str | None = None

    @staticmethod
    def of(error: TseriesError) -> "Finding":
        """Return what `error` says about a store."""
        kind = error.kind or "store"
        return Finding(kind, error.problem, error.accepts, error.next_step, error.path)

    def with_advice(self, root: str) -> "Finding":
        """Return the finding with the next step of its kind, unless it has one."""
        if self.next_step is not None:
            return self
        return replace(self, next_step=DAMAGES[self.kind].next_step.format(root=shlex.quote(root)))

    def __str__(self) -> str:
        if self.mended is not None:
            return escape_controls(f"{self.problem}. {self.mended}")
        return compose_message(self.problem, self.accepts, self.next_step)
