"""The state of a query's operators that waits for later CTIs, from its progress or its checkpoint.

A query's progress has the size of each operator's state. A Spark session can read the state itself
from the checkpoint: Spark marks the column whose time a watermark is compared with, so a window
waits for a CTI at its end, and a row for one after its time. Where Spark keeps that time elsewhere,
as for joins, only the number of rows is known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark_timestream.core.instants import format_instant

MAX_TIMES: Final = 10
"""This many CTIs are listed for each operator, earliest first."""

_WATERMARK_KEY: Final = "spark.watermarkDelayMs"
"""The metadata key of a column that a watermark is compared with."""


@dataclass(frozen=True, slots=True)
class OperatorState:
    """The state of one operator.

    Attributes:
        operator: its number, and Spark's name for it.
        rows: the number of rows in its state; for an aggregation, of groups.
        memory: the bytes that it uses; None: unknown.
        due: the earliest times that the rows wait for, with the number of rows, in order; empty:
            unknown.
        is_window: True: a CTI at such a time releases the rows; False: only a later one does.
    """

    operator: str
    rows: int
    memory: int | None = None
    due: tuple[tuple[int, int], ...] = ()
    is_window: bool = False


def read_operators(progress: Mapping[str, Any]) -> tuple[OperatorState, ...]:
    """Return the state of a query's operators, from its progress as parsed JSON."""
    return tuple(
        OperatorState(
            f"{place} {each.get('operatorName', '')}".strip(),
            int(each.get("numRowsTotal", 0)),
            int(each.get("memoryUsedBytes", 0)),
        )
        for place, each in enumerate(progress.get("stateOperators") or ())
    )


def describe_state(operators: Sequence[OperatorState]) -> Iterator[str]:
    """Yield the lines about the state of operators.

    State with unknown times may wait for no CTI at all, as without `advance_time`.
    """
    for each in operators:
        size = "1 row" if each.rows == 1 else f"{each.rows} rows"
        memory = "" if each.memory is None else f", {each.memory} bytes"
        yield f"State of operator {each.operator}: {size}{memory}"
        for time_us, rows in each.due[:MAX_TIMES]:
            when = "at" if each.is_window else "after"
            yield f"   {_count_rows(rows)} for a CTI {when} {format_instant(time_us)}"
        rest = each.rows - sum(rows for _, rows in each.due[:MAX_TIMES])
        if each.due and rest > 0:
            yield f"   {_count_rows(rest)} for later ones"


def _count_rows(rows: int) -> str:
    return "1 row waits" if rows == 1 else f"{rows} rows wait"


def read_state_store(spark: Any, location: str) -> tuple[OperatorState, ...]:
    """Read the state in the checkpoint at `location` after its last finished batch.

    This runs two Spark jobs per operator, and leaves out operators with a state that Spark hides.
    """
    stores: dict[tuple[int, str], list[str]] = {}
    for row in spark.read.format("state-metadata").load(location).collect():
        stores.setdefault((row.operatorId, row.operatorName), []).append(row.stateStoreName)
    entries = []
    for (number, name), names in sorted(stores.items()):
        # A join has four stores, and some of them hold a row of one side twice.
        if names == ["default"]:
            try:
                reader = spark.read.format("statestore").option("operatorId", number)
                entries.append(_read_store(reader.load(location), f"{number} {name}"))
            except Exception as error:
                if not _is_refused(error):
                    raise
    return tuple(entries)


def _read_store(rows: Any, operator: str) -> OperatorState:
    total = rows.count()
    time = find_due_time(rows.schema.jsonValue())
    if time is None:
        return OperatorState(operator, total)
    column, is_window = time
    times = rows.selectExpr(f"unix_micros({column}) AS due").where("due IS NOT NULL")
    first = times.groupBy("due").count().orderBy("due").limit(MAX_TIMES).collect()
    due = tuple((int(row["due"]), int(row["count"])) for row in first)
    return OperatorState(operator, total, None, due, is_window)


def find_due_time(schema: Mapping[str, Any]) -> tuple[str, bool] | None:
    """Return the time that a state's rows wait for: an SQL expression, and if it ends a window.

    None if the key, in the schema of what `statestore` reads, has no time to compare the watermark
    with.
    """
    (key,) = [field["type"] for field in schema["fields"] if field["name"] == "key"] or [{}]
    for field in key.get("fields", ()) if isinstance(key, Mapping) else ():
        # Only `advance_time` marks a column without a delay.
        if field.get("metadata", {}).get(_WATERMARK_KEY) != 0:
            continue
        name, kind = field["name"].replace("`", "``"), field["type"]
        if kind == "timestamp":
            return f"key.`{name}`", False
        if isinstance(kind, Mapping) and any(each["name"] == "end" for each in kind["fields"]):
            return f"key.`{name}`.`end`", True
    return None


def _is_refused(error: Exception) -> bool:
    """True if Spark does not show this state, as for `transformWithState`."""
    get_condition = getattr(error, "getCondition", None) or getattr(error, "getErrorClass", None)
    condition = get_condition() if get_condition else None
    return str(condition or "").startswith(("STDS_", "UNSUPPORTED_FEATURE.STATE_STORE"))
