"""The options of writes and reads: frozen dataclasses, and the texts that make them."""

import dataclasses
import getpass
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pyspark_timestream.connector.instants import parse_instant
from pyspark_timestream.connector.options import (
    OptionError,
    Reader,
    boolean,
    choice,
    option,
    read_options,
    refuse_catalog_table,
    specs,
    text,
    whole_number,
)
from pyspark_tseries.model.query import (
    EVERYTHING,
    MAX,
    QUERIES,
    Point,
    Query,
    Range,
    parse_anchor,
    parse_span,
)
from pyspark_tseries.model.retention import RetainedRange, parse_range
from pyspark_tseries.storage.location import (
    Pairs,
    Place,
    local_path,
    location_of,
    place_of,
)
from pyspark_tseries.subscribe.position import parse_initial, parse_starts

__all__ = [
    "DURABILITIES",
    "ReadOptions",
    "WriteOptions",
    "local_path",
    "os_user",
    "parse_read",
    "parse_write",
]

T = TypeVar("T", "WriteOptions", "ReadOptions", "SubscribeOptions")

DURABILITIES: Final = ("fsync", "os")
"""What outlives a power loss: every acknowledged commit, or what the operating system has written
to the disk by then."""

_STORAGE: Final = "storageoptions."
"""Options that begin so, in any case, say how an object store is reached."""


def os_user() -> str:
    """Who writes where nobody is named: the user of the operating system."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        return str(os.getuid())


def _series_names(value: str) -> tuple[str, ...]:
    if not value.lstrip().startswith("["):
        return (value,)
    names = json.loads(value)
    if not all(isinstance(name, str) for name in names):
        raise ValueError("every element of the list must be a text")
    return tuple(names)


def _fixed_location(value: str) -> str:
    """Where a store lies, whatever the working directory of the process is."""
    location = location_of(value)
    if not location.startswith(("/", "s3://")):
        raise ValueError(
            "a relative path would be taken from the working directory of Spark's processes, which "
            f"need not be your program's: give os.path.abspath({value!r})"
        )
    return location


_PATH: Final = Reader(
    _fixed_location,
    "an absolute local path, a file: URI, or an s3: URI",
    wrong_type="gs://bucket/a",
    out_of_range="trips/store",
)
_NAME: Final = Reader(str, "the name of a column")
_RANGE: Final = Reader(
    parse_range,
    "'limit N', 'last DURATION' or both (DURATION such as 30S, 5M, 1D), or 'unlimited'",
    wrong_type="last 5 parsecs",
    out_of_range="limit 0",
)
_POINTS: Final = "'start', 'sequence N', an ISO-8601 time, 'last N', 'last DURATION'"
_ANCHOR: Final = Reader(parse_anchor, _POINTS, wrong_type="next 4", out_of_range="last -1")
_SPAN: Final = Reader(
    parse_span,
    f"{_POINTS}, 'next N', 'next DURATION', 'previous N', 'previous DURATION'",
    wrong_type="some day",
    out_of_range="sequence -1",
)
_MOMENT: Final = Reader(parse_instant, "an ISO-8601 time with a zone", wrong_type="yesterday")
_SERIES: Final = Reader(
    _series_names,
    'one name, or a JSON list of names such as ["a", "b"]',
    wrong_type="[1, 2]",
)


_INITIAL: Final = Reader(
    parse_initial,
    "'limit N', 'last DURATION', both, 'unlimited', or 'none'",
    wrong_type="some",
    out_of_range="limit 0",
)
_STARTS: Final = Reader(
    parse_starts, 'JSON such as {"series": 7}', wrong_type="[7]", out_of_range='{"a": -1}'
)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a DataFrame is added to a store.

    Column names are None where the option was not given: the default name is then used if the
    DataFrame has such a column.
    """

    path: str = option("path", _PATH, help="name the store in .start(path) or .save(path)")
    series_column: str | None = option("seriesColumn", _NAME, None, excludes=("seriesName",))
    series_name: str | None = option("seriesName", text, None)
    timestamp_column: str | None = option("timestampColumn", _NAME, None)
    edit_of_column: str | None = option("editOfColumn", _NAME, None)
    author_column: str | None = option("authorColumn", _NAME, None)
    author: str | None = option("author", text, None)
    retained_range: RetainedRange | None = option("retainedRange", _RANGE, None)
    subscription_range: RetainedRange | None = option("subscriptionRange", _INITIAL, None)
    out_of_order: str = option("outOfOrder", choice("fail", "drop", "adjust"), "fail")
    missing_original: str = option("missingOriginal", choice("fail", "drop"), "fail")
    clock: str = option("clock", choice("wall", "event"), "wall")
    merge_schema: bool = option("mergeSchema", boolean, False)
    auto_compact: bool = option("autoCompact", boolean, True)
    durability: str = option("durability", choice(*DURABILITIES), "fsync")
    txn_app_id: str | None = option("txnAppId", text, None, needs=("txnVersion",))
    txn_version: int | None = option("txnVersion", whole_number(), None, needs=("txnAppId",))
    principal: str | None = option("principal", text, None)

    storage: Pairs = field(default=(), repr=False)

    @property
    def place(self) -> Place:
        """Where the store lies."""
        return _place(self.path, self.storage)

    @property
    def synced(self) -> bool:
        """Whether a commit outlives a power loss once it is acknowledged."""
        return self.durability == "fsync"

    def who(self) -> tuple[str, str]:
        """The author of rows that name none, and the principal."""
        principal = os_user() if self.principal is None else self.principal
        return principal if self.author is None else self.author, principal


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Which events a batch read gives; `series` is None for all, a range's end for its default."""

    path: str = option("path", _PATH, help="name the store in .load(path)")
    query: str = option("query", choice(*QUERIES), "values")
    series: tuple[str, ...] | None = option("series", _SERIES, None)
    view_from: Point | None = option("from", _ANCHOR, None)
    view_to: Point | None = option("to", _SPAN, None)
    edit_from: Point | None = option("editFrom", _ANCHOR, None)
    edit_to: Point | None = option("editTo", _SPAN, None)
    limit: int | None = option("limit", whole_number(), None)
    as_of: int | None = option("asOf", _MOMENT, None)
    principal: str | None = option("principal", text, None)
    storage: Pairs = field(default=(), repr=False)

    @property
    def place(self) -> Place:
        """Where the store lies."""
        return _place(self.path, self.storage)

    def asked(self) -> Query:
        """The query that the options say."""
        return Query(
            self.query,
            _range(self.view_from, self.view_to),
            _range(self.edit_from, self.edit_to),
            MAX if self.limit is None else self.limit,
        )


def _range(anchor: Point | None, span: Point | None) -> Range:
    return Range(anchor or EVERYTHING.anchor, span or EVERYTHING.span)


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """How a streaming query follows a store."""

    path: str = option("path", _PATH, help="name the store in .load(path)")
    subscription_range: RetainedRange | None = option("subscriptionRange", _INITIAL, None)
    starting_sequence: Mapping[str, int] | None = option("startingSequence", _STARTS, None)
    max_events: int | None = option("maxEventsPerTrigger", whole_number(at_least=1), None)
    principal: str | None = option("principal", text, None)
    storage: Pairs = field(default=(), repr=False)

    @property
    def place(self) -> Place:
        """Where the store lies."""
        return _place(self.path, self.storage)


def parse_write(raw: Mapping[str, str]) -> WriteOptions:
    """The write options of Spark's map; raises OptionError before anything is written."""
    return _parse(WriteOptions, raw)


def parse_read(raw: Mapping[str, str]) -> ReadOptions:
    """The read options of Spark's map; raises OptionError before anything is read."""
    return _parse(ReadOptions, raw)


def parse_subscribe(raw: Mapping[str, str]) -> SubscribeOptions:
    """The options of a subscription in Spark's map; raises OptionError before anything is read."""
    return _parse(SubscribeOptions, raw)


def read_place(raw: Mapping[str, str]) -> Place:
    """The place of a read that may be a subscription; raises OptionError where it is neither."""
    both = {spec.name.lower() for spec in specs(ReadOptions).values()}
    only_streams = {spec.name.lower() for spec in specs(SubscribeOptions).values()} - both
    streams = only_streams & {name.lower() for name in raw}
    return parse_subscribe(raw).place if streams else parse_read(raw).place


_BELONGS: Final = {
    WriteOptions: "belongs to writes",
    ReadOptions: "belongs to spark.read",
    SubscribeOptions: "belongs to spark.readStream",
}


_VIEW: Final = "CREATE TEMPORARY VIEW name USING tseries OPTIONS (path '/data/trips')"
"""What SQL makes of a store, in place of a table."""


def _parse(mine: type[T], raw: Mapping[str, str]) -> T:
    refuse_catalog_table(raw, "tseries", _VIEW)
    if not raw:
        raise OptionError(
            "path",
            "it is missing, as it always is for a table of Spark's catalog (CREATE TABLE, "
            "saveAsTable): Spark tells a Python source no options of such a table",
            _PATH.accepts,
            "name the store in .load(path), .save(path) or .start(path); DROP such a table, and "
            f"{_VIEW} instead",
        )
    foreign = {
        spec.name: belongs
        for other, belongs in _BELONGS.items()
        if other is not mine
        for spec in specs(other).values()
    }
    read = read_options(mine, raw, foreign=foreign, prefixes=(_STORAGE,))
    given = {key[len(_STORAGE) :]: raw[key] for key in raw if key.lower().startswith(_STORAGE)}
    return dataclasses.replace(read, storage=place_of(read.path, given).options)


def _place(path: str, storage: Pairs) -> Place:
    return place_of(path, dict(storage))
