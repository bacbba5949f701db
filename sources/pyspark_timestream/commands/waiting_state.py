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
from pyspark_timestream.core.report import format_count

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
        times: the number of different times that its rows wait for; 0: unknown.
    """

    operator: str
    rows: int
    memory: int | None = None
    due: tuple[tuple[int, int], ...] = ()
    is_window: bool = False
    times: int = 0


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


def describe_operator(state: OperatorState) -> str:
    """Return the state of an operator in a line: its rows, open windows, and what comes next."""
    told = f"{state.operator}: {format_count(state.rows, 'row')}"
    if not state.due:
        return told
    first_us, rows = state.due[0]
    times = state.times or len(state.due)
    if state.is_window:
        told += f" in {format_count(times, 'open window')}"
        return f"{told}; a CTI at {format_instant(first_us)} releases {format_count(rows, 'row')}"
    after = f"a CTI after {format_instant(first_us)} releases {format_count(rows, 'row')}"
    return f"{told} of {format_count(times, 'time')}; {after}"


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
    place = find_due_place(key)
    if place is None:
        return None
    name = key["fields"][place[1]]["name"].replace("`", "``")
    is_window = len(place) > 2
    return f"key.`{name}`{'.`end`' if is_window else ''}", is_window


def find_due_place(key: Any) -> tuple[int, ...] | None:
    """Return where a key has the time that its row waits for; None if it has none.

    That is how many fields the key has and which one it is; for the end of a window also how many
    fields a window has, and which one is its end.
    """
    fields = key.get("fields", ()) if isinstance(key, Mapping) else ()
    for place, each in enumerate(fields):
        # Only `advance_time` marks a column without a delay.
        if each.get("metadata", {}).get(_WATERMARK_KEY) != 0:
            continue
        if each["type"] == "timestamp":
            return len(fields), place
        if isinstance(each["type"], Mapping):
            names = [inner["name"] for inner in each["type"]["fields"]]
            if "end" in names:
                return len(fields), place, len(names), names.index("end")
    return None


def _is_refused(error: Exception) -> bool:
    """True if Spark does not show this state, as for `transformWithState`."""
    get_condition = getattr(error, "getCondition", None) or getattr(error, "getErrorClass", None)
    condition = get_condition() if get_condition else None
    return str(condition or "").startswith(("STDS_", "UNSUPPORTED_FEATURE.STATE_STORE"))
