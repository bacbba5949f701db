"""Define the options of writes and reads as frozen dataclasses, and parse them from texts."""

import contextlib
import dataclasses
import functools
import getpass
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pyarrow as pa

from pyspark_timestream.core.declarations import (
    BOOLEAN,
    TEXT,
    Parser,
    choice,
    option,
    option_specs,
    read_options,
    whole_number,
)
from pyspark_timestream.core.instants import (
    MAX_DURATION,
    MAX_DURATION_US,
    format_duration,
    parse_duration,
    parse_instant,
)
from pyspark_timestream.core.policies import Action, name_any
from pyspark_timestream.errors import OptionError, compose_message
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.buckets import Buckets, parse_buckets
from pyspark_tseries.model.downsampling import (
    FILLS,
    Downsampling,
    parse_aggregate_list,
    plan_downsampling,
)
from pyspark_tseries.model.ranges import (
    FULL_RANGE,
    NO_LIMIT,
    QUERY_KINDS,
    Point,
    Query,
    Range,
    RetainedRange,
    parse_anchor,
    parse_initial,
    parse_range,
    parse_span,
    parse_start_sequences,
)
from pyspark_tseries.storage.location import (
    Location,
    OptionPairs,
    normalize_location,
    parse_location,
)

DURABILITIES: Final = ("fsync", "os")
"""`fsync`: every acknowledged commit survives a power loss. `os`: only those commits survive that
the operating system has already written to the disk."""

STORE_POLICIES: Final[Mapping[str, Action]] = {
    "fail": Action.FAIL,
    "drop": Action.DROP,
    "adjust": Action.MOVE_START,
}
"""A store's policies for late rows (semantics 17)."""

LEAVE_OUT_POLICIES: Final = {
    name: action for name, action in STORE_POLICIES.items() if action.moves is None
}
"""The policies for rows that cannot be adjusted: too far ahead, or edits without an original."""


def name_lenient(policies: Mapping[str, Action]) -> str:
    """Return the policies of a store that refuse no batch, for a message that advises them."""
    return name_any(name for name, action in policies.items() if action is not Action.FAIL)


def os_user() -> str:
    """Return the user of the operating system, the default author and principal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        return str(os.getuid())


def author_or_user(name: str | None) -> str:
    """Return the author or principal `name`; None stands for the user of the operating system."""
    return os_user() if name is None else name


def _parse_series(value: str) -> tuple[str, ...]:
    if not value.lstrip().startswith("["):
        return (value,)
    names = json.loads(value)
    if not all(isinstance(name, str) for name in names):
        raise ValueError("every element of the list must be a text")
    return tuple(names)


def _parse_columns(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise ValueError("a name is empty")
    if len(set(names)) < len(names):
        raise ValueError("a column is named twice")
    return names


def _parse_path(value: str) -> str:
    """Return the location; raise ValueError if it depends on the process's working directory."""
    location = normalize_location(value)
    if not location.startswith(("/", "s3://")):
        raise ValueError(
            "a relative path would be taken from the working directory of Spark's processes, which "
            f"need not be your program's: give os.path.abspath({value!r})"
        )
    return location


_PATH: Final = Parser(_parse_path, "an absolute local path, a file: URI, or an s3: URI")
_NAME: Final = Parser(str, "the name of a column")
_RANGE: Final = Parser(
    parse_range, "'limit N', 'last DURATION' or both (DURATION such as 30S, 5M, 1D), or 'unlimited'"
)
_POINTS: Final = "'start', 'sequence N', an ISO-8601 time, 'last N', 'last DURATION'"
_ANCHOR: Final = Parser(parse_anchor, _POINTS)
_SPAN: Final = Parser(
    parse_span, f"{_POINTS}, 'next N', 'next DURATION', 'previous N', 'previous DURATION'"
)
_ISO_INSTANT: Final = Parser(parse_instant, "an ISO-8601 time with a zone")
_SERIES: Final = Parser(_parse_series, 'one name, or a JSON list of names such as ["a", "b"]')
_COLUMNS: Final = Parser(
    _parse_columns, "names of columns, separated by commas, such as 'timestamp, celsius'"
)


def _parse_delay(value: str) -> int:
    us = parse_duration(value)
    if not 0 <= us <= MAX_DURATION_US:
        raise ValueError(f"it must be at least 0 and at most {MAX_DURATION}")
    return us


def _parse_cti(value: str) -> str:
    word = value.strip().lower()
    if word in ("true", "false"):
        return "cti" if word == "true" else ""
    if not value.strip():
        raise ValueError("it is empty")
    return value


NO_MAX_US: Final = 2**62
"""Stands for `maxFuture` = `none`."""

_DELAY: Final = Parser(
    _parse_delay, "a duration such as '1 hour', at least '0 seconds'", format=format_duration
)
_FUTURE: Final = Parser(
    lambda value: NO_MAX_US if value.strip().lower() == "none" else _parse_delay(value),
    "a duration such as '1 day', at least '0 seconds', or 'none'",
    format=lambda us: "none" if us == NO_MAX_US else format_duration(us),
)
_CTI: Final = Parser(
    _parse_cti, "'true', 'false' or the name of a column", format=lambda column: column or "false"
)


def _parse_buckets(value: str, timezone: str | None = None) -> Buckets:
    try:
        return parse_buckets(value, timezone)
    except InvalidQuery as error:
        raise ValueError(error.problem) from None


def _parse_zone(value: str) -> str:
    _parse_buckets("1 day", value)
    return value


def _parse_fill(value: str) -> Any:
    """Return one of the words, or a whole number, a decimal number, or the text itself."""
    word = value.strip().lower()
    if word in FILLS:
        return word
    for convert in (int, float):
        with contextlib.suppress(ValueError):
            return convert(value)
    return value


_EVERY: Final = Parser(
    lambda value: (_parse_buckets(value), value)[1],
    "a duration such as '15 minutes' or '1 day', or whole months, quarters or years",
)
_ZONE: Final = Parser(_parse_zone, "an IANA name such as 'Europe/Berlin'")
_AGGREGATES: Final = Parser(
    parse_aggregate_list,
    "a list such as 'celsius mean, hottest = celsius max, p95 = celsius 0.95, n = count'",
)
_FILL: Final = Parser(_parse_fill, "'null', 'previous', 'linear', or a value")
_INITIAL: Final = Parser(parse_initial, "'limit N', 'last DURATION', both, 'unlimited', or 'none'")
_STARTS: Final = Parser(parse_start_sequences, 'JSON such as {"series": 7}')


class _Located:
    """The base of options that name a store."""

    __slots__ = ()
    path: str
    storage: OptionPairs

    @property
    def location(self) -> Location:
        """The location of the store."""
        return parse_location(self.path, dict(self.storage))


_batch_option: Final = functools.partial(option, effect="batch")
_stream_option: Final = functools.partial(option, effect="stream")


@dataclass(frozen=True, slots=True)
class WriteOptions(_Located):
    """The options of writing a DataFrame to a store.

    A column name is None if the option was not given; then the default name applies if the
    DataFrame has such a column.
    """

    path: str = option(
        "path",
        _PATH,
        description=(
            "the store; `.start(path)` or `.save(path)`; an absolute path or a URI, since Spark's "
            "processes have their own working directories"
        ),
        help="name the store in .start(path) or .save(path)",
    )
    series_column: str | None = option(
        "seriesColumn",
        _NAME,
        None,
        description="the column that names the series; none: `series`",
        excludes=("seriesName",),
    )
    series_name: str | None = option(
        "seriesName", TEXT, None, description="one constant series instead"
    )
    timestamp_column: str | None = option(
        "timestampColumn",
        _NAME,
        None,
        description=(
            "event time; none: `timestamp` if there is one; null or absent: assigned at commit"
        ),
    )
    edit_of_column: str | None = option(
        "editOfColumn",
        _NAME,
        None,
        description=(
            "none: `edit_of` if there is one; its sequence makes a row an edit of that original of "
            "its series, null an append"
        ),
    )
    cti_column: str | None = option(
        "ctiColumn",
        _NAME,
        None,
        description=(
            "CTIs: a row in which it is set is not stored, and moves the CTI that the query "
            "commits with; none: `cti` if there is a timestamp column of that name, and no such "
            "value column in the store"
        ),
    )
    cti_delay_us: int | None = option(
        "ctiDelay",
        _DELAY,
        None,
        description=(
            "a stream commits its CTI with each batch: that of `ctiColumn`, else Spark's watermark "
            "in a checkpoint on this machine, minus this; `0 seconds` for the end of a window as "
            "`timestamp`, the window's length for its start; none: only what `ctiColumn` has"
        ),
        effect="stream",
    )
    author_column: str | None = option(
        "authorColumn", _NAME, None, description="who wrote the row; none: `author` if there is one"
    )
    author: str | None = option(
        "author",
        TEXT,
        None,
        description=(
            "who wrote rows without an author; none: the OS user of the driver's Python worker"
        ),
    )
    retained_range: RetainedRange | None = option(
        "retainedRange",
        _RANGE,
        None,
        description=(
            "how much a series keeps, set when the store is created: `limit 10`, `last 30D`, both, "
            "or `unlimited`; none: `limit 10`"
        ),
    )
    subscription_range: RetainedRange | None = option(
        "subscriptionRange",
        _INITIAL,
        None,
        description=(
            "what subscribers get first unless they ask for something else, set when the store is "
            "created; none: `limit 1`"
        ),
    )
    out_of_order: str = option(
        "outOfOrder",
        choice(*STORE_POLICIES),
        "fail",
        description=(
            "a timestamp before the series' newest of earlier commits: `fail`, `drop`, `adjust` "
            "(raised to the newest)"
        ),
    )
    max_future_us: int | None = option(
        "maxFuture",
        _FUTURE,
        None,
        description=(
            "how far a timestamp may lie after the time of its commit, or `none`; none: in a store "
            "whose retained range has `last`, that duration, at least `1 day`"
        ),
    )
    future_policy: str = option(
        "futurePolicy",
        choice(*LEAVE_OUT_POLICIES),
        "fail",
        description=(
            "rows that are further ahead: `fail`, or `drop`, which leaves them out and counts them"
        ),
    )
    missing_original: str = option(
        "missingOriginal",
        choice(*LEAVE_OUT_POLICIES),
        "fail",
        description=(
            "an edit whose original does not exist, is itself an edit or was discarded: `fail`, "
            "`drop`"
        ),
    )
    clock: str = option(
        "clock",
        choice("wall", "event"),
        "wall",
        description=(
            "assigned timestamps (none given; every edit): `wall` = commit time, or the series' "
            "newest where that is later; `event` = the series' newest"
        ),
    )
    merge_schema: bool = option(
        "mergeSchema",
        BOOLEAN,
        False,
        description=(
            "a value column, or a field of a struct, that the store lacks is added to it, before "
            "anything is written; earlier events have nulls there"
        ),
    )
    auto_compact: bool = option(
        "autoCompact",
        BOOLEAN,
        True,
        description=(
            "every 32 commits a background process merges small files and cleans log, staging and "
            "head files"
        ),
    )
    durability: str = option(
        "durability",
        choice(*DURABILITIES),
        "fsync",
        description=(
            "`fsync`: on a local path a commit is on the disk, and survives a power loss, when it "
            "is acknowledged; `os`: the operating system writes it there later, usually within "
            "half a minute"
        ),
    )
    txn_app_id: str | None = option(
        "txnAppId",
        TEXT,
        None,
        description="with `txnVersion`: a batch write of that number happens once",
        effect="batch",
        needs=("txnVersion",),
    )
    txn_version: int | None = option(
        "txnVersion",
        whole_number(),
        None,
        description="with `txnAppId`: the number, not below 0",
        effect="batch",
        needs=("txnAppId",),
    )
    principal: str | None = option(
        "principal",
        TEXT,
        None,
        description=(
            "who writes, where the store has a policy: then the author too; none: the OS user of "
            "the driver's Python worker"
        ),
    )

    storage: OptionPairs = field(default=(), repr=False)

    @property
    def synced(self) -> bool:
        """Whether an acknowledged commit survives a power loss."""
        return self.durability == "fsync"


@dataclass(frozen=True, slots=True)
class ReadOptions(_Located):
    """The options of a batch read; None: all series, or the default end of a range."""

    path: str = _batch_option(
        "path", _PATH, description="the store; `.load(path)`", help="name the store in .load(path)"
    )
    query: str = _batch_option(
        "query",
        choice(*QUERY_KINDS),
        "values",
        description=(
            "`values`: originals, each replaced by its latest edit, in the order of the originals "
            "and at their times (`edit_timestamp` is the edit's); "
            "`allEdits`: originals and all their edits, `latestEdits`: originals and the latest "
            "edit of each, both in the order of sequences"
        ),
    )
    series: tuple[str, ...] | None = _batch_option(
        "series", _SERIES, None, description="one name, or a JSON list of names; none: all"
    )
    view_from: Point | None = _batch_option(
        "from",
        _ANCHOR,
        None,
        description=(
            "where the view range, which originals, begins: `start`, `sequence N`, an ISO-8601 "
            "time, `last N`, `last DURATION`; none: `start`"
        ),
    )
    view_to: Point | None = _batch_option(
        "to",
        _SPAN,
        None,
        description=(
            "where it ends, inclusive: the same, where `last` leaves off that much, or `next N`, "
            "`next DURATION`, `previous N`, `previous DURATION`; none: `last 0`"
        ),
    )
    edit_from: Point | None = _batch_option(
        "editFrom",
        _ANCHOR,
        None,
        description=(
            "where the edit range begins; no event outside of it is in the result; none: `start`"
        ),
    )
    edit_to: Point | None = _batch_option(
        "editTo", _SPAN, None, description="where it ends, inclusive; none: `last 0`"
    )
    limit: int | None = _batch_option(
        "limit",
        whole_number(),
        None,
        description="at most this many events a series, the last of the query's order; none: all",
    )
    columns: tuple[str, ...] | None = _batch_option(
        "columns",
        _COLUMNS,
        None,
        description=(
            "names of columns, separated by commas, such as `timestamp, celsius`: only these are "
            "read, in this order; none: all"
        ),
    )
    latest: int | None = _batch_option(
        "latest",
        whole_number(at_least=1),
        None,
        description=(
            "the newest originals of each series, this many, each replaced by its latest edit; "
            "none: all"
        ),
        excludes=("from", "to", "limit", "every"),
    )
    every: str | None = _batch_option(
        "every",
        _EVERY,
        None,
        description=(
            "the width of buckets, such as `15 minutes`, `1 day` or `1 month`: a row for each "
            "bucket of each series with an event, `series`, `timestamp` (its start) and the "
            "columns of `aggregate`; none: events"
        ),
        excludes=("columns",),
        needs=("aggregate",),
    )
    timezone: str | None = _batch_option(
        "timezone",
        _ZONE,
        None,
        description="buckets begin by the clock of this time zone; none: by UTC",
        needs=("every",),
    )
    aggregates: tuple[tuple[str, str, str | float], ...] | None = _batch_option(
        "aggregate",
        _AGGREGATES,
        None,
        description=(
            "the columns of buckets: `COLUMN FUNCTION`, or `NAME = COLUMN FUNCTION`, separated by "
            "commas, such as `celsius mean, hottest = celsius max, n = count`; functions are "
            "`mean`, `min`, `max`, `sum`, `count`, `first`, `last`, `median`, "
            "`time_weighted_mean` and quantiles such as `0.95`; a bare `count` counts events"
        ),
        needs=("every",),
    )
    fill: Any = _batch_option(
        "fill",
        _FILL,
        None,
        description=(
            "adds a row for each bucket without an event: `null`, `previous` (the row before), "
            "`linear`, or a value; none: no such rows"
        ),
        needs=("every",),
    )
    as_of: int | None = _batch_option(
        "asOf",
        _ISO_INSTANT,
        None,
        description=(
            "the store, its retained range included, as it was at that commit time (ISO-8601), "
            "while its rows exist; else an error names the oldest possible time; none: now"
        ),
    )
    principal: str | None = _batch_option(
        "principal",
        TEXT,
        None,
        description=(
            "who reads, where the store has a policy; none: the OS user of the driver's Python "
            "worker"
        ),
    )
    storage: OptionPairs = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("latest", self.latest)):
            if value is not None and self.query != "values":
                raise OptionError(
                    name,
                    f"'{value}' is asked of a query of {self.query}",
                    "it with queries of 'values': originals, each replaced by its latest edit",
                    f"leave 'query' out, or '{name}'",
                )
        if self.every is not None and self.timezone is not None:
            try:
                _parse_buckets(self.every, self.timezone)
            except ValueError as error:
                raise option_specs(ReadOptions)["every"].error(str(error)) from None

    def plan_buckets(self, schema: pa.Schema) -> Downsampling | None:
        """Return what to aggregate of a store with the value columns `schema`; None for events.

        Raises:
            InvalidQuery: a column is unknown, or does not have such an aggregate or fill.
        """
        if self.every is None:
            return None
        return plan_downsampling(
            schema,
            _parse_buckets(self.every, self.timezone),
            {name: (column, function) for name, column, function in self.aggregates or ()},
            fill=self.fill,
            is_filled=self.fill is not None,
        )

    def to_query(self) -> Query:
        """Return the query that the options describe."""
        newest = None if self.latest is None else Point("last_count", self.latest)
        return Query(
            self.query,
            _make_range(newest or self.view_from, self.view_to),
            _make_range(self.edit_from, self.edit_to),
            NO_LIMIT if self.limit is None else self.limit,
        )


def _make_range(anchor: Point | None, span: Point | None) -> Range:
    return Range(anchor or FULL_RANGE.anchor, span or FULL_RANGE.span)


@dataclass(frozen=True, slots=True)
class SubscribeOptions(_Located):
    """The options of a streaming query that subscribes to a store."""

    path: str = _stream_option(
        "path", _PATH, description="the store; `.load(path)`", help="name the store in .load(path)"
    )
    subscription_range: RetainedRange | None = _stream_option(
        "subscriptionRange",
        _INITIAL,
        None,
        description=(
            "the initial events: `limit N`, `last DURATION` (before the series' newest original), "
            "both, `unlimited`, or `none`; none given: as the store was created"
        ),
    )
    starting_sequence: Mapping[str, int] | None = _stream_option(
        "startingSequence",
        _STARTS,
        None,
        description=(
            'JSON `{"series": n}`: of that series every event from `n` on instead, if it still '
            "exists"
        ),
    )
    max_events: int | None = _stream_option(
        "maxEventsPerTrigger",
        whole_number(at_least=1),
        None,
        description="the most events of a batch; initial events come by whole series",
    )
    max_driver_events: int = _stream_option(
        "maxDriverEvents",
        whole_number(at_least=0),
        10_000,
        description=(
            "a batch of at most this many events, in one task, is read on the driver, in Spark's "
            "Python process of the source, so that its task starts no Python; 0: tasks read all"
        ),
    )
    cti: str = _stream_option(
        "cti",
        _CTI,
        "",
        description=(
            "`true`, or a name: adds a column `cti`, or of that name, and rows in which it alone "
            "is set: CTIs, before which no further original comes"
        ),
    )
    principal: str | None = _stream_option(
        "principal",
        TEXT,
        None,
        description=(
            "who subscribes, where the store has a policy; none: the OS user of the driver's "
            "Python worker"
        ),
    )
    storage: OptionPairs = field(default=(), repr=False)


T = TypeVar("T", WriteOptions, ReadOptions, SubscribeOptions)

_STORAGE: Final = "storageoptions."
"""Options with this prefix, in any case, are the `STORAGE_OPTIONS` of an object store."""


def parse_any_read(raw: Mapping[str, str]) -> ReadOptions | SubscribeOptions:
    """Return the options of a read or a subscription; raise OptionError if it is neither."""
    of_reads, of_streams = (
        {spec.name.lower() for spec in option_specs(options).values()}
        for options in (ReadOptions, SubscribeOptions)
    )
    is_stream = not (of_streams - of_reads).isdisjoint(name.lower() for name in raw)
    return parse_options(SubscribeOptions, raw) if is_stream else parse_options(ReadOptions, raw)


def parse_argument(name: str, value: str) -> Any:
    """Return an argument of the client, read as the write option that has this field.

    Raises:
        ValueError: the option does not accept it.
    """
    parser = option_specs(WriteOptions)[name].parser
    try:
        return parser.parse(value)
    except AttributeError:  # A value without `strip` is not a text.
        problem = "it is not a text"
    except ValueError as error:
        problem = str(error)
    raise ValueError(
        compose_message(
            f"cannot read {name} {value!r} ({problem})", parser.accepts, f"correct {name}"
        )
    )


def parse_optional(name: str, value: str | None) -> Any:
    """Return what `parse_argument` returns; None for None."""
    return None if value is None else parse_argument(name, value)


_BELONGS: Final = {
    WriteOptions: "belongs to writes",
    ReadOptions: "belongs to spark.read",
    SubscribeOptions: "belongs to spark.readStream",
}


VIEW: Final = "CREATE TEMPORARY VIEW name USING tseries OPTIONS (path '/data/trips')"
"""The SQL statement to use if a table cannot have the options."""


def parse_options(options_class: type[T], raw: Mapping[str, str]) -> T:
    """Return the options in Spark's map; raise OptionError before anything is read or written."""
    if not raw:
        raise OptionError(
            "path",
            "it is missing, as it always is in a write to a table of Spark's catalog, and in a "
            "read of one that was created with columns (CREATE TABLE, saveAsTable): Spark passes a "
            "Python source no options of such a table",
            _PATH.accepts,
            "name the store in .load(path), .save(path) or .start(path), in SQL INSERT INTO name "
            "WITH (path '/data/trips'); to read a table, DROP such a table and create it without "
            f"columns, or {VIEW} instead",
        )
    foreign = {
        spec.name: belongs
        for other_class, belongs in _BELONGS.items()
        if other_class is not options_class
        for spec in option_specs(other_class).values()
    }
    parsed = read_options(options_class, raw, foreign=foreign, prefixes=(_STORAGE,))
    storage = {key[len(_STORAGE) :]: raw[key] for key in raw if key.lower().startswith(_STORAGE)}
    return dataclasses.replace(parsed, storage=parse_location(parsed.path, storage).options)
