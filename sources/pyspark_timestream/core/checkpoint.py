"""Reads the checkpoint of a streaming query: where it is, and what Spark planned for each batch.

The directory `offsets`, the *offset log*, has one file per batch, named by its number, and
`commits` one per finished batch. Spark writes a file elsewhere and renames it, so only an
incomplete copy has half-written files. Semantics 29.2 and 30.1 say what sinks take from it. Every
offset of this package holds a format version and settings besides a position (semantics 8.5).

Text that this package wrote has the types that its classes declare. A checkpoint that a disk, a
copy or a person has damaged may still be JSON, and would cause an error far from here that names
neither. So code that reads a checkpoint first calls `find_mistake`, which checks the annotations of
a class.
"""

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar
from urllib.parse import unquote, urlsplit

from pyspark_timestream.core.instants import FINAL_US, MIN_US
from pyspark_timestream.errors import (
    NEW_CHECKPOINT,
    CheckpointMismatch,
    CheckpointUnreadable,
    show_value,
)

WATERMARK_KEY: Final = "spark.watermarkDelayMs"
"""Spark marks the watermark's column with this metadata key, in a plan and in the schemas of a
checkpoint's state."""

T = TypeVar("T")

_Find: TypeAlias = Callable[[Any], str | None]
"""Returns what is wrong with a value; None if nothing is."""


def find_mistake(value: Any) -> str | None:
    """Return which field of a dataclass or named tuple has another type than declared.

    Whole numbers have at most 64 bits, and those whose name ends in `_us` lie in years 1 to 9999.

    >>> from pyspark_timestream.rules.ticks import Ticks
    >>> find_mistake(Ticks(3, "4")), find_mistake(Ticks(3, 4))
    ("end_exclusive is '4' and not a whole number", None)
    """
    kind: Any = type(value)
    return _check_of(kind, "")(value)


def is_instant(value: Any) -> TypeGuard[int]:
    """Return whether a value is an instant of the years 1 to 9999, in microseconds.

    >>> [is_instant(each) for each in (0, True, 2**62, "0", None)]
    [True, False, False, False, False]
    """
    return type(value) is int and MIN_US <= value <= FINAL_US


def build_frozen(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a frozen dataclass without slots; fields that `values` lacks must have defaults.

    It sets the fields in `values`, and nothing else. The class's own constructor calls a function
    for each field; that was most of the work of reading an offset of a thousand partitions.

    Raises:
        TypeError: the class has no such field.
    """
    if not values.keys() <= kind.__annotations__.keys():
        unknown = sorted(values.keys() - kind.__annotations__.keys())
        raise TypeError(f"{kind.__name__} has no field {unknown[0]!r}")
    built = object.__new__(kind)
    vars(built).update(values)
    return built


@cache
def _check_of(kind: Any, name: str) -> _Find:
    """Return the check of a type; `name` is the field's."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return _check_of_fields(kind)
    if origin in (types.UnionType, typing.Union):
        return _check_of_union([_check_of(member, name) for member in inner])
    if origin is tuple:
        return _check_of_tuple(inner, name)
    if origin is not None and issubclass(origin, Mapping):
        return _check_of_mapping(_check_of(inner[0], f"a key of {name}"), _check_of(inner[1], name))
    if kind is int:
        return _check_of_number(name)
    expected = {str: "a text", bool: "true or false", types.NoneType: "null"}.get(kind, str(kind))
    return lambda value: (
        None if isinstance(value, kind) else _describe_mismatch(name, value, expected)
    )


def _describe_mismatch(name: str, value: Any, expected: str) -> str:
    quoted = repr(value)
    return f"{name} is {quoted if len(quoted) <= 40 else f'{quoted[:37]}...'} and not {expected}"


def _check_of_number(name: str) -> _Find:
    low, high = (MIN_US, FINAL_US) if name.endswith("_us") else (-(2**63), 2**63 - 1)

    def find(value: Any) -> str | None:
        if type(value) is int and low <= value <= high:
            return None
        return _describe_mismatch(
            name, value, "a whole number" if type(value) is not int else "in range"
        )

    return find


def _check_of_fields(kind: Any) -> _Find:
    @cache
    def make_checks() -> dict[str, _Find]:
        # At the first value, because a class may have fields of its own type.
        hints = typing.get_type_hints(kind)
        names = getattr(kind, "_fields", None) or [field.name for field in dataclasses.fields(kind)]
        return {name: _check_of(hints[name], name) for name in names}

    def find(value: Any) -> str | None:
        if not isinstance(value, kind):
            return _describe_mismatch("an entry", value, f"a {kind.__name__}")
        checks = make_checks()
        # A field that `build_frozen` did not set has the class's default, which is right.
        for name in getattr(value, "__dict__", checks):
            if (wrong := checks[name](getattr(value, name))) is not None:
                return wrong
        return None

    return find


def _check_of_union(checks: list[_Find]) -> _Find:
    def find(value: Any) -> str | None:
        first_mistake = None
        for check in checks:
            if (wrong := check(value)) is None:
                return None
            first_mistake = first_mistake or wrong
        return first_mistake

    return find


def _check_of_tuple(inner: tuple[Any, ...], name: str) -> _Find:
    item_checks = [_check_of(kind, name) for kind in inner if kind is not Ellipsis]
    is_long = Ellipsis in inner

    def find(value: Any) -> str | None:
        if not isinstance(value, tuple) or not (is_long or len(value) == len(item_checks)):
            return _describe_mismatch(name, value, "a list as it was written")
        checks = item_checks * len(value) if is_long else item_checks
        for check, item in zip(checks, value, strict=True):
            if (wrong := check(item)) is not None:
                return wrong
        return None

    return find


def _check_of_mapping(check_key: _Find, check_value: _Find) -> _Find:
    def find(value: Any) -> str | None:
        if not isinstance(value, Mapping):
            return _describe_mismatch("an entry", value, "an object")
        for key, item in value.items():
            wrong = check_key(key) or check_value(item)
            if wrong is not None:
                return wrong
        return None

    return find


LOG_VERSIONS: Final = ("v1", "v2")
"""A file of Spark's offset log begins with one of these if this code can read it.

Version 2 belongs to named sources: the source's name, or its number, precedes each offset.
"""

_OPTION: Final = "checkpointlocation"
_SOURCE_NAME: Final = re.compile(r"\w+", re.ASCII)


def find_location(options: Mapping[str, str]) -> str | None:
    """Return a query's option `checkpointLocation`; a sink does not see the session's default."""
    return next((text for name, text in options.items() if name.lower() == _OPTION), None)


def resolve_directory(location: str) -> Path:
    """Return the path that `location`, a path or a `file:` URI, names.

    Raises:
        CheckpointUnreadable: it is empty, or not on this machine.

    >>> str(resolve_directory("file:///tmp/a%20b")), str(resolve_directory("/tmp/a b"))
    ('/tmp/a b', '/tmp/a b')
    """
    if not location:
        raise CheckpointUnreadable(
            "an empty text does not name a checkpoint",
            "a local directory or a file: URI",
            "pass the directory that the query had as option 'checkpointLocation'",
        )
    uri = urlsplit(location)
    if uri.scheme == "file":
        # Spark's paths have no escapes, no query and no fragment.
        written = Path("/" + location.partition(":")[2].lstrip("/"))
        return written if written.exists() else Path(unquote(uri.path))
    if "://" in location or (uri.scheme and not Path(location).exists()):
        raise CheckpointUnreadable(
            f"'{location}' is not on this machine",
            "a local directory or a file: URI",
            "copy the checkpoint's directories 'offsets' and 'commits' here",
        )
    return Path(location)


def batch_entry_path(checkpoint: Path, batch: int) -> Path:
    """Return the file of the offset log that plans a batch."""
    return checkpoint / "offsets" / str(batch)


class LogEntry:
    """Spark's notes before it ran a batch; each property raises ValueError if it is torn.

    Args:
        text: the content of a file of the offset log, of version 1 or 2.

    Raises:
        ValueError: it is not one, or is torn.
    """

    def __init__(self, text: str) -> None:
        version, *lines = text.splitlines() or [""]
        if version.strip() not in LOG_VERSIONS:
            beginning = repr(version.strip()[:20]) if version.strip() else "nothing"
            raise ValueError(f"it begins with {beginning} and not with {' or '.join(LOG_VERSIONS)}")
        self._has_names = version.strip() == "v2"
        self._metadata = json.loads(lines[0]) if lines else None
        self._lines = lines[1:]

    @property
    def planned_us(self) -> int:
        """The wall clock when the batch was planned."""
        planned_us = self._read_ms("batchTimestampMs") * 1_000
        if not is_instant(planned_us):
            raise ValueError("its batchTimestampMs is not in the years 1 to 9999")
        return planned_us

    @property
    def watermark_us(self) -> int | None:
        """The watermark that the batch evicts state with; None while it stands at 1970, its start.

        In output mode append, batches up to this one contain all windows that end at or before it.
        A watermark in the last millisecond before the final CTI counts as the final CTI: if rows at
        exactly a CTI stay legal, Spark's watermark is a millisecond before it.
        """
        watermark_ms = self._read_ms("batchWatermarkMs")
        if watermark_ms <= 0:
            return None
        return FINAL_US if (watermark_ms + 1) * 1_000 >= FINAL_US else watermark_ms * 1_000

    @property
    def settings(self) -> dict[str, str]:
        """The settings of Spark that bind the query, if the entry notes them."""
        conf = self._metadata.get("conf") if isinstance(self._metadata, dict) else None
        return {str(name): str(text) for name, text in conf.items()} if conf else {}

    @property
    def offsets(self) -> tuple[Any, ...]:
        """The offset of each source as parsed JSON; None for a source that had none."""
        if not self._lines:
            raise ValueError("it ends before the first source's offset")
        texts = _strip_source_names(self._lines) if self._has_names else self._lines
        return tuple(None if text.strip() == "-" else json.loads(text) for text in texts)

    def _read_ms(self, name: str) -> int:
        value = self._metadata.get(name) if isinstance(self._metadata, dict) else None
        if type(value) is not int:
            raise ValueError(f"its second line has no {name}")
        return value


def _strip_source_names(lines: Iterable[str]) -> list[str]:
    """Return the offsets of `NAME:OFFSET` lines; unnamed sources in the order of the sources.

    Spark writes these lines from a map, which keeps the order of sources only up to four.
    """
    entries = [line.partition(":") for line in lines]
    for name, colon, _ in entries:
        if not colon or not _SOURCE_NAME.fullmatch(name):
            raise ValueError(f"a line begins with {name[:20]!r} and not with a source's name")
    if all(name.isdecimal() for name, _, _ in entries):
        entries.sort(key=lambda entry: int(entry[0]))
    return [offset for _, _, offset in entries]


def read_batch_entry(checkpoint: Path, batch: int) -> LogEntry:
    """Return the entry that Spark writes before it runs a batch.

    Raises:
        OSError: it cannot be read.
        ValueError: it is torn, or not an entry.
    """
    return LogEntry(batch_entry_path(checkpoint, batch).read_text(encoding="utf-8"))


_TOPIC_FILE: Final = Path("sinks", "timestream.json")


def note_written_topic(checkpoint: Path, topic: str) -> None:
    """Note in a checkpoint which topic its query writes, so that `watch` can draw the chain."""
    if read_written_topic(checkpoint) == topic:
        return
    path = checkpoint / _TOPIC_FILE
    try:
        path.parent.mkdir(exist_ok=True)
        new_file = Path(f"{path}.new")
        new_file.write_text(json.dumps({"topic": topic, "version": OFFSET_VERSION}), "utf-8")
        new_file.replace(path)
    except OSError:
        return  # Nothing relies on it.


def read_written_topic(checkpoint: Path) -> str | None:
    """Return the topic that the query of a checkpoint writes; None if it is not noted there."""
    try:
        fields = json.loads((checkpoint / _TOPIC_FILE).read_text(encoding="utf-8"))
        return str(fields["topic"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


CTI_SETTINGS: Final = ("ctiFrequency", "ctiHeader", "ctiImport")
"""A stream makes CTIs while it runs if the settings in its offset have one of these."""


def parse_offset(value: Any) -> dict[str, Any]:
    """Return an offset, or a report, from a query's progress as an object.

    It comes as text or as parsed JSON, depending on Spark's version and client. The result is empty
    for a source without one, or with one that is not a JSON object.
    """
    try:
        offset = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return offset if isinstance(offset, dict) else {}


OFFSET_VERSION: Final = 1
"""The version of both transports' offsets."""

INITIAL_OFFSET: Final[dict[str, Any]] = {"version": OFFSET_VERSION}
"""The constant initial offset, which means "nothing is decided yet".

Spark asks for it again at each restart and never stores it; the first real offset holds every
decision.
"""

_CLIENT_PREFIX: Final = "kafka."
"""The prefix of the names of client settings."""


def is_initial_offset(offset: object) -> bool:
    """Return whether `offset` is the constant initial offset."""
    return isinstance(offset, Mapping) and set(offset) == {"version"}


def find_other_source(offset: object, entry: str) -> tuple[str, str, str] | None:
    """Return problem, accepted value and next step if another source wrote `offset`; else None.

    Args:
        offset: what Spark found in the checkpoint, which may be of any source.
        entry: what every offset of this source has, but for the initial one.
    """
    is_own = isinstance(offset, Mapping) and "version" in offset and entry in offset
    if is_own or is_initial_offset(offset):
        return None
    return (
        f"another source wrote the checkpoint's offset {show_value(offset)}",
        "a checkpoint that this source began, with the same sources in the same order",
        f"go on with the source that this one is of, or {NEW_CHECKPOINT}",
    )


def damaged_offset(problem: str, stream: object = None) -> CheckpointUnreadable:
    """Return the error about an offset that is not as this package writes them."""
    owner = f" of stream {stream!r}" if isinstance(stream, str) else ""
    return CheckpointUnreadable(
        f"an offset{owner} is damaged: {problem}",
        "offsets as timestream wrote them",
        "copy the checkpoint again, or restore a backup of it",
    )


def check_offset(
    offset: Mapping[str, Any],
    settings: Mapping[str, str],
    topic_settings: Collection[str] = (),
    advise: Callable[[str, Mapping[str, str]], str | None] = lambda name, stored: "",
) -> None:
    """Refuse an offset that this code or these settings cannot continue.

    Args:
        offset: the offset in the checkpoint; its `settings` are option name -> text.
        settings: today's options that define time and records, by option name.
        topic_settings: the names of settings that option `timeSettings` gives.
        advise: gets the name of an option that differs, and the stored settings; it returns more
            advice, or None to accept the difference.

    Raises:
        CheckpointMismatch: another source wrote it, or the format version or the value of an option
            in `settings` differs.
        CheckpointUnreadable: its settings are not texts.
    """
    if other_source := find_other_source(offset, "settings"):
        raise CheckpointMismatch(*other_source)
    version = offset.get("version")
    if version != OFFSET_VERSION:
        raise CheckpointMismatch(
            f"the checkpoint's offsets have format version {version}; this timestream reads "
            f"version {OFFSET_VERSION}: install the timestream release that wrote the checkpoint"
        )
    stored = offset.get("settings", settings)
    texts = stored.values() if isinstance(stored, Mapping) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise damaged_offset("its settings are not texts")
    for name in sorted({*stored, *settings}):
        if stored.get(name, _NOT_SET) != settings.get(name, _NOT_SET):
            advice = advise(name, stored)
            if advice is not None:
                change = _describe_change(name, stored, settings, is_topics=name in topic_settings)
                raise CheckpointMismatch(f"{change}{advice} or {NEW_CHECKPOINT}")


_NOT_SET: Final = "not set"


def _describe_change(
    name: str, stored: Mapping[str, str], settings: Mapping[str, str], *, is_topics: bool
) -> str:
    """Describe the new value of an option, and how to go back; `is_topics`: topics gave it."""
    old, new = stored.get(name, _NOT_SET), settings.get(name, _NOT_SET)
    is_client_key = name.startswith(_CLIENT_PREFIX)
    subject = "which records there are" if is_client_key else "the stream's time or rows"
    origin = ""
    back = f"set it back to '{old}'" if name in stored else "leave it out"
    if is_topics:
        origin = " by option 'timeSettings'"
        back = (
            f"set it to '{old}' in the query"
            if name in stored
            else "leave 'timeSettings' out and set the other options in the query"
        )
    return (
        f"option '{name}' was '{old}' when this checkpoint was made and is '{new}' now"
        f"{origin}; it defines {subject}, so {back}"
    )
