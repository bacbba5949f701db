"""Declare a rollup, fold the changes of its buckets, and say why one is edited (semantics 36).

A rollup's settings are a property of its table. A *change* is an original that came to a bucket
which the rollup has, an edit, or an erasure; of several changes of a bucket the last one counts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import format_duration, format_instant
from pyspark_tseries.errors import InvalidQuery, UnusableStore
from pyspark_tseries.model.arrays import BoolArray, Int64Array, encode_names, is_same, to_int64
from pyspark_tseries.model.buckets import Buckets
from pyspark_tseries.model.columns import INSTANT, RESERVED_NAMES
from pyspark_tseries.model.downsampling import Aggregate, Downsampling, result_fields

PROPERTY: Final = "tseries.rollup"
"""The property of a rollup's table with its settings, as JSON."""

COVERED: Final = "tseries:rollup"
"""The transaction whose version is the source's commit up to which the rollup has all buckets."""

BEGUN: Final = "tseries:rollup:begun"
"""The same of a first run that has not ended: the buckets that are there are of that commit."""

REASON: Final = pa.field("reason", pa.string())
"""The value column that says why a bucket was edited; null in its original."""

CHANGES: Final = pa.schema(
    [
        pa.field("series", pa.string()),
        pa.field("timestamp", INSTANT),
        pa.field("commit", pa.int64()),
        pa.field("sequence", pa.int64()),
        pa.field("original", pa.int64()),
        pa.field("author", pa.string()),
        pa.field("because", pa.string()),
        pa.field("count", pa.int64()),
    ]
)
"""Changes of buckets: the series and start of the bucket, the commit, the sequence of the event
that was added or erased, that of its original, who did it, the reason of an erasure, and how many
changes the row stands for."""

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RollupSettings:
    """What a rollup has; it never changes.

    Attributes:
        source: the id of the source store.
        buckets: the buckets.
        aggregates: its value columns, beside `reason`.
    """

    source: str
    buckets: Buckets
    aggregates: tuple[Aggregate, ...]

    @property
    def downsampling(self) -> Downsampling:
        """The query by buckets whose rows are the rollup's events."""
        return Downsampling(self.buckets, self.aggregates)

    def values(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the value columns of the rollup of a store with the value columns `schema`."""
        return [*list(result_fields(schema, self.downsampling))[2:], REASON]

    def to_json(self) -> str:
        """Return the text of `PROPERTY`; `parse_settings` reads it back."""
        buckets = self.buckets
        aggregates = {
            each.name: [each.column, each.function if each.quantile is None else each.quantile]
            for each in self.aggregates
        }
        told = {
            "version": _VERSION,
            "source": self.source,
            "microseconds": buckets.us,
            "months": buckets.months,
            "timezone": buckets.zone,
            "origin": buckets.origin_us,
            "aggregates": aggregates,
        }
        return json.dumps(told, ensure_ascii=False)

    def describe(self) -> dict[str, str]:
        """Return the settings for people, by their names."""
        buckets = self.buckets
        months = "1 month" if buckets.months == 1 else f"{buckets.months} months"
        shown = [f"{each.name} = {_describe(each)}" for each in self.aggregates]
        return {
            "every": format_duration(buckets.us) if buckets.us else months,
            "timezone": buckets.zone or "UTC",
            "origin": format_instant(buckets.origin_us).removesuffix("Z"),
            "aggregates": ", ".join(shown),
        }


def _describe(aggregate: Aggregate) -> str:
    function = aggregate.function if aggregate.quantile is None else f"{aggregate.quantile:g}"
    return f"{aggregate.column} {function}"


def parse_settings(properties: Mapping[str, str], root: str) -> RollupSettings | None:
    """Return the settings in the properties of the store at `root`; None if it is no rollup.

    Raises:
        UnusableStore: they are of another version.
    """
    text = properties.get(PROPERTY)
    if text is None:
        return None
    told = json.loads(text)
    if told["version"] != _VERSION:
        raise UnusableStore(
            f"the rollup '{root}' has settings of version {told['version']}",
            str(_VERSION),
            "go on with the version of this package that wrote them",
        )
    aggregates = tuple(
        Aggregate(name, column, function)
        if isinstance(function, str)
        else Aggregate(name, column, "quantile", float(function))
        for name, (column, function) in told["aggregates"].items()
    )
    buckets = Buckets(told["microseconds"], told["months"], told["timezone"], told["origin"])
    return RollupSettings(told["source"], buckets, aggregates)


def check_aggregates(aggregates: Sequence[Aggregate]) -> None:
    """Refuse aggregates that no rollup has.

    Raises:
        InvalidQuery: one depends on events before its bucket, or has a name that it cannot have.
    """
    for aggregate in aggregates:
        if aggregate.function == "time_weighted_mean":
            raise InvalidQuery(
                f"{aggregate.name}: a rollup has no time_weighted_mean, which depends on values "
                "from before the bucket",
                "aggregates of the bucket's own events",
                "take 'mean', or ask the source with every()",
            )
        name = aggregate.name.lower()
        if name in (REASON.name, "edit_of", *RESERVED_NAMES):
            raise InvalidQuery(
                f"a rollup has a column '{name}' anyway", "another name", "rename the aggregate"
            )
        if [each.name.lower() for each in aggregates].count(name) > 1:
            raise InvalidQuery(
                f"two aggregates have the name '{name}' in a store",
                "names that differ in more than case",
                "rename one of them",
            )


def fold_changes(changes: pa.Table) -> pa.Table:
    """Return the last change of each bucket, by series and start, with the number of all."""
    if not changes.num_rows:
        return changes
    _, codes = encode_names(changes["series"].combine_chunks())
    starts, commit, sequence, counts = (
        to_int64(changes[name]) for name in ("timestamp", "commit", "sequence", "count")
    )
    order = np.lexsort((sequence, commit, starts, codes))
    first = np.flatnonzero(_begins(codes[order], starts[order]))
    last = order[np.append(first[1:], len(order)) - 1]
    folded = changes.take(pa.array(last))
    sums = np.add.reduceat(counts[order], first)
    return folded.set_column(folded.schema.get_field_index("count"), "count", pa.array(sums))


def _begins(codes: Int64Array, starts: Int64Array) -> BoolArray:
    begins = np.ones(len(codes), bool)
    begins[1:] = (codes[1:] != codes[:-1]) | (starts[1:] != starts[:-1])
    return begins


def tell_reasons(changes: pa.Table) -> pa.Array:
    """Return the text of column `reason` for each row of changes."""
    return pa.array([_tell_reason(**row) for row in changes.to_pylist()], pa.string())


def _tell_reason(
    author: str, sequence: int, original: int, because: str | None, count: int, **_: Any
) -> str:
    what = f"event {sequence}"
    if because is not None:
        edit = "" if sequence == original else f", an edit of event {original}"
        said = f"{author} erased {what}{edit}: {because}"
    elif sequence == original:
        said = f"{author} added {what}"
    else:
        said = f"{author} edited event {original} by {what}"
    return said if count == 1 else f"{said}; the last of {count} changes"


def merge_ranges(lows: Int64Array, highs: Int64Array, most: int) -> list[tuple[int, int]]:
    """Return at most `most` disjoint ranges, rising, that cover all; lows are inclusive."""
    if not len(lows):
        return []
    order = np.argsort(lows, kind="stable")
    lows, reach = lows[order], np.maximum.accumulate(highs[order])
    gaps = lows[1:] - reach[:-1]
    open_ = np.flatnonzero(gaps > 0)
    # Close the smallest gaps: reading a little too much is cheaper than many small reads.
    widest = open_[np.argsort(-gaps[open_], kind="stable")[: most - 1]]
    cuts = np.sort(widest)
    firsts, lasts = np.append(0, cuts + 1), np.append(cuts, len(lows) - 1)
    return list(zip(lows[firsts].tolist(), reach[lasts].tolist(), strict=True))


def flag_changed(old: pa.Table, new: pa.Table) -> BoolArray:
    """Flag the rows in which two tables of the same columns differ; a NaN equals a NaN."""
    changed = np.zeros(new.num_rows, bool)
    for name in new.column_names:
        changed |= ~_flag_same(old[name].combine_chunks(), new[name].combine_chunks())
    return changed


def _flag_same(old: pa.Array, new: pa.Array) -> BoolArray:
    if pa.types.is_nested(new.type):
        pairs = zip(old.to_pylist(), new.to_pylist(), strict=True)
        return np.array([is_same(*pair) for pair in pairs], bool)
    same = pc.fill_null(pc.equal(old, new), False)
    same = pc.or_(same, pc.and_(pc.is_null(old), pc.is_null(new)))
    if pa.types.is_floating(new.type):
        both = pc.and_(pc.is_nan(old), pc.is_nan(new))
        same = pc.or_(same, pc.fill_null(both, False))
    flags: BoolArray = np.asarray(same, bool)
    return flags
