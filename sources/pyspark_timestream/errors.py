"""The exceptions of this package, split by who has to act; each docstring says what to do."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Self, TypeAlias, TypeVar

C = TypeVar("C", bound=type)


LOGIN: Final = re.compile(
    r"(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://(?:[^\s'\"/@]*|[^\s'\"/@:]+:[^\s'\"@]*)@"
)
"""Finds the part of an address with a user's name or password; in Azure's it is a container."""


_CONTROLS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Characters that move a cursor, end a line, turn the direction of writing, or are not text."""


def escape_controls(text: str) -> str:
    r"""Escape control characters; the spaces and joiners of any language stay.

    >>> print(escape_controls("\x1b[31mred \u202egreen"))
    \x1b[31mred \u202egreen
    """
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def compose_message(problem: str, accepts: str | None = None, next_step: str | None = None) -> str:
    """The text of an error: the problem, the accepted values, the next step.

    A login in an address that the text quotes is hidden. Names in it may come from any producer, so
    control characters are escaped: they would end a line of a log, or move a terminal's cursor.

    >>> compose_message("'s3://me:hush@bucket' is empty", "a name", "set it")
    "'s3://[hidden]@bucket' is empty; accepted: a name; next step: set it"
    """
    clauses = [problem]
    if accepts is not None:
        clauses.append(f"accepted: {accepts}")
    if next_step is not None:
        clauses.append(f"next step: {next_step}")
    return escape_controls(_hide_logins("; ".join(clauses)))


def _hide_logins(text: str) -> str:
    return LOGIN.sub("://[hidden]@", text)


_MAX_SHOWN: Final = 80
"""A message shows at most this many characters of a value."""


def name_topics(topics: Iterable[str]) -> str:
    """Return topics for a message, sorted: `topic 'a', topic 'b'`."""
    return ", ".join(f"topic '{topic}'" for topic in sorted(topics))


def shorten(text: str) -> str:
    """Return the beginning of a text, for a message."""
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def show_value(value: object) -> str:
    """Return a value as text of bounded length."""
    return shorten(repr(value))


def walk_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Return `error` and its causes, each once; those that Spark found in Java among them."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        java_cause = getattr(error, "_cause", None)
        error = (
            java_cause
            if isinstance(java_cause, BaseException)
            else error.__cause__ or error.__context__
        )


Explain: TypeAlias = Callable[[Any, Exception], Exception | None]
"""Returns the exception to raise in place of one of an object's method; None leaves that one."""


def wrap_methods(explain: Explain, before: Callable[[], object] = lambda: None) -> Callable[[C], C]:
    """A class decorator: `explain` explains the errors of public methods and `__init__`.

    It also explains errors in the steps of a returned generator. `before` runs before each method.
    Static and class methods stay as they are.
    """

    def wrap(owner: C) -> C:
        for name, method in list(vars(owner).items()):
            if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
                setattr(owner, name, _wrap_method(method, explain, before))
        return owner

    return wrap


def _wrap_method(
    method: Callable[..., Any], explain: Explain, before: Callable[[], object]
) -> Callable[..., Any]:
    @functools.wraps(method)
    def entry(self: Any, *arguments: Any, **keywords: Any) -> Any:
        before()
        try:
            result = method(self, *arguments, **keywords)
        except Exception as error:
            explained = explain(self, error)
            if explained is None:
                raise
            raise explained from error
        if inspect.isgenerator(result):
            return _wrap_items(result, functools.partial(explain, self))
        return result

    return entry


def _wrap_items(
    items: Iterator[Any], explain: Callable[[Exception], Exception | None]
) -> Iterator[Any]:
    try:
        yield from items
    except Exception as error:
        explained = explain(error)
        if explained is None:
            raise
        raise explained from error


class OptionError(ValueError):
    """An option cannot be used as given. Nothing has been read or written: correct it and restart.

    Args:
        list_last: `accepts` is long, and goes after the next step in the message.

    Attributes:
        name: the option.
        problem: its value and what is wrong with it.
        accepts: the accepted values.
        next_step: what the user can do.
    """

    __module__ = "pyspark_timestream"  # As users import it.

    def __init__(
        self, name: str, problem: str, accepts: str, next_step: str, *, list_last: bool = False
    ) -> None:
        what = f"option '{name}': {problem}"
        if list_last:
            text = f"{compose_message(what, None, next_step)}; accepted: {accepts}"
        else:
            text = compose_message(what, accepts, next_step)
        super().__init__(text)
        self.name = name
        # Whoever shows an attribute shows no login either.
        self.problem, self.accepts, self.next_step = map(
            _hide_logins, (problem, accepts, next_step)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the text as it is: Spark sends errors between its processes."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class ReasonedError(Exception):
    """The base of both packages' errors.

    Attributes:
        problem: what happened, without the next step.
        accepts: what is accepted, if the message should say so.
        next_step: what to do.
    """

    def __init_subclass__(cls) -> None:
        """Show the class under the name that users import."""
        cls.__module__ = cls.__module__.partition(".")[0]

    def __init__(
        self, problem: str, accepts: str | None = None, next_step: str | None = None
    ) -> None:
        if type(self).__base__ is ReasonedError:
            raise TypeError(f"raise a subclass of {type(self).__name__}")
        super().__init__(compose_message(problem, accepts, next_step))
        self.problem = _hide_logins(problem)
        self.accepts = None if accepts is None else _hide_logins(accepts)
        self.next_step = None if next_step is None else _hide_logins(next_step)


class TimestreamError(ReasonedError):
    """The base class of all others but OptionError: catch it to handle any of them."""

    def locate(self, location: str) -> Self:
        """Return this error with the location of its record in front."""
        located = type(self)(f"{location}: {self.problem}", self.accepts, self.next_step)
        located.__dict__.update({**self.__dict__, "problem": located.problem})
        return located


class CheckpointMismatch(TimestreamError):
    """The checkpoint belongs to other settings, or to newer code.

    Restore the settings that it names or install that release, or start with a new checkpoint and,
    if the query writes to a store, a new path.
    """


class CheckpointUnreadable(TimestreamError):
    """The directory is not a checkpoint, or nothing in it can be read.

    Give the directory that the query had as `checkpointLocation`, or a complete copy of it.
    """


class SchemaRefused(TimestreamError):
    """The schema or DataFrame lacks a column, or has one that the options cannot fill.

    Change the schema, or set the option that the message names.

    Attributes:
        row: the first record of a block with a refused schema of its own; None if it is another's.
    """

    row: int | None = None


class SettingRefused(TimestreamError):
    """A setting of the Spark session breaks a helper's promise: change it as the message says."""


class ViolationFound(TimestreamError):
    """A record is late or malformed, and `violationPolicy` is `fail` or `parseMode` is `FAILFAST`.

    Correct the producer, or choose another policy or mode with a new checkpoint.
    """


NEW_CHECKPOINT: Final = (
    "start with a new checkpoint, and with a new path if the query writes to a store, which would "
    "get all of the input again"
)
"""The next step that leaves a checkpoint behind."""

LOSS_ADVICE: Final = (
    "Some data may have been lost: set option 'failOnDataLoss' to 'false' to go on with what is "
    f"left, or {NEW_CHECKPOINT}"
)
"""The next step of every message about lost records."""


class DataLost(TimestreamError):
    """Records that the checkpoint has yet to read are gone from the broker.

    Set option `failOnDataLoss` to `false` to go on with what is left, or start a new checkpoint.
    """


class BrokerUnreachable(TimestreamError):
    """The broker does not answer, or answers with a permanent error.

    Check the addresses and credentials in the message, then restart: the query resumes.

    Attributes:
        may_repeat: a new client may reach it, because this one was connected before.
    """

    may_repeat = False


class SchemaRegistryError(TimestreamError):
    """The schema registry does not answer, refuses, or lacks a schema that records name.

    Check the address and credentials in the message, then restart: the query resumes.

    Attributes:
        is_missing: the registry answered that it lacks the schema, the subject or the version.
        row: the first record of a block that names the schema; None if a query asked for it.
    """

    is_missing = False
    row: int | None = None


class DeliveryFailed(TimestreamError):
    """The producer could not deliver a record or a mark: produce again what the message names.

    Attributes:
        may_repeat: a new producer may deliver the same, because this one failed by a fault that
            passes: brokers that restart, or a client library that has not returned.
    """

    may_repeat = False


class ReplayDiffers(TimestreamError):
    """A batch already in the topic is written again, with other rows or an older checkpoint.

    Restore the query's checkpoint, input, code and tasks, or start with a new writer.
    """


class MissingExtra(TimestreamError):
    """A library of an optional extra is not installed: run the pip command of the message."""

    @classmethod
    def create(
        cls, purpose: str, library: str, extra: str, where: str = "the driver and all executors"
    ) -> "MissingExtra":
        """Create the error.

        Args:
            purpose: what needs the library, such as `reading Avro`.
            library: its name.
            extra: the extra that brings it.
            where: the machines that need it.
        """
        return cls(
            f"{purpose} needs {library}, which is not installed",
            next_step=f"pip install 'pyspark-timestream[{extra}]' on {where}",
        )


class WrongInterpreter(TimestreamError):
    """Spark starts its Python workers with a Python that lacks this package.

    Set PYSPARK_PYTHON before Spark starts, or leave it unset and call `configure_spark`.
    """
