"""Follows CTI rows through a plan from a source to `advance_time` (semantics 11.14).

Every column of a CTI row is null but the CTI itself. So a filter on another column removes the row,
a join finds no match for it, and a deduplication takes it for a duplicate of the previous one.
Without CTI rows time stands still and no result appears. This module widens filters so that CTI
rows pass, and refuses by name any other operator that removes them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Protocol

from pyspark_timestream.errors import SchemaRefused

FILTER: Final = "Filter"
JOIN: Final = "Join"
UNION: Final = "Union"
GENERATE: Final = "Generate"


class PlanOperator(Protocol):
    """One operator of a plan, classic or of Spark Connect.

    Attributes:
        name: Spark's name for it in a classic plan.
        plan: Spark's own object.
    """

    name: str
    plan: Any

    @property
    def inputs(self) -> Sequence["PlanOperator"]:
        """The operators below, which deliver its rows."""

    def find_origins(self, column: str) -> list[tuple[int, str]]:
        """Return the input columns that make up the output's `column`.

        Each comes behind the index of its input in `inputs`.
        """

    def delivers_ctis(self, column: str) -> bool:
        """Return whether this is a streaming source and `column` its CTI."""

    def find_same(self, index: int, column: str) -> str | None:
        """Return the column of input `index` that becomes the output's `column` unchanged.

        For a source, return the column itself. None: nothing proves that there is such a column.
        """

    def keeps_outer(self, index: int, is_null: "IsNull") -> bool:
        """Return whether this join or generator keeps every CTI row of input `index`."""

    def find_condition(self, column: str, is_null: "IsNull") -> "CtiCondition | None":
        """Return the condition of a filter; None if it does not name `column`."""

    def widen(self, column: str, child: Any) -> Any:
        """Return the plan of this filter over `child`, changed to pass rows with `column` too."""

    def rebuild(self, children: Sequence[Any]) -> Any:
        """Return the operator's plan over other inputs."""


IsNull = Callable[[str], bool]
"""Returns whether a column of an operator's input is certainly null in a CTI row."""


@dataclass(frozen=True, slots=True)
class CtiCondition:
    """The parts of an expression that decide if a CTI row passes.

    Attributes:
        name: Spark's name for the expression; `CTI` for the column with the CTI, `NULL` for a
            column that is null in CTI rows.
        inputs: its arguments.
        value: the value of a literal, or the number of `AtLeastNNonNulls`.
    """

    name: str
    inputs: tuple["CtiCondition", ...] = ()
    value: Any = None

    @property
    def truth(self) -> bool | None:
        """The value for every CTI row; None: unknown, or not the same for all."""
        values = [argument.truth for argument in self.inputs]
        match self.name:
            case "Literal":
                return self.value if isinstance(self.value, bool) else None
            case "IsNotNull" if self.inputs[0].is_set or self.inputs[0].is_null:
                return self.inputs[0].is_set
            case "IsNull" if self.inputs[0].is_set or self.inputs[0].is_null:
                return not self.inputs[0].is_set
            case "Not" if values[0] is not None:
                return not values[0]
            # As in SQL, one side decides if the other one is unknown.
            case "Or" if True in values or None not in values:
                return True in values
            case "And" if False in values or None not in values:
                return False not in values
            case "AtLeastNNonNulls" if sum(item.is_set for item in self.inputs) >= self.value:
                return True
        return None

    @property
    def is_set(self) -> bool:
        """Whether it is never null in a CTI row."""
        if self.name == "Coalesce":
            return any(argument.is_set for argument in self.inputs)
        return self.name == "CTI" or (self.name == "Literal" and self.value is not None)

    @property
    def is_null(self) -> bool:
        """Whether it is always null in a CTI row."""
        return self.name == "NULL" or (self.name == "Cast" and self.inputs[0].is_null)

    @property
    def matches_none(self) -> bool:
        """True if, as the condition of a join, it never holds for a CTI row."""
        if self.name == "And":
            return any(argument.matches_none for argument in self.inputs)
        return self.name == "EqualTo" and any(argument.is_null for argument in self.inputs)


class _Effect(StrEnum):
    """The effect of an operator on CTI rows; the text is part of the message."""

    REMOVES = "removes CTI rows, in which every column but 'cti' is null"
    MAY_REMOVE = "runs your own function, and nothing shows that CTI rows come through it"
    SECOND = "sets a second watermark, and Spark takes the older of the two"
    MIXES = "mixes two streams with CTIs, and the greater CTI would drop rows of the slower stream"
    CHOOSES = "does not keep all CTI rows, in which that column is set"


_REMOVERS: Final = {
    "Aggregate": "groupBy",
    "AsOfJoin": "an as-of join",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "Except": "exceptAll or subtract",
    "FlatMapCoGroupsInArrow": "applyInArrow",
    "FlatMapCoGroupsInPandas": "applyInPandas",
    "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapGroupsInPandas": "applyInPandas",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    GENERATE: "explode",
    "GlobalLimit": "limit",
    "Intersect": "intersect",
    JOIN: "join",
    "LateralJoin": "lateralJoin",
    "LocalLimit": "limit",
    "TransformWithStateInPySpark": "transformWithState",
}
"""Operators that remove CTI rows -> the user's words for them.

Spark itself refuses to sample a stream, and other operators that make no sense there.
"""

_FUNCTIONS: Final = {
    "MapInArrow": "mapInArrow",
    "MapInPandas": "mapInPandas",
    "PythonMapInArrow": "mapInArrow",
}
_WATERMARK: Final = "EventTimeWatermark"
_HARMLESS: Final = frozenset(
    {
        "CTERelationDef",
        "CTERelationRef",
        "CollectMetrics",
        "Drop",
        "Hint",
        "NAFill",
        "NAReplace",
        "Project",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sort",
        "SubqueryAlias",
        "View",
        "WithCTE",
        "WithColumns",
        "WithColumnsRenamed",
    }
)
"""Operators that keep every row, in a classic plan or one of Spark Connect."""


@dataclass(frozen=True, slots=True)
class _Loss:
    """An operator that removes CTI rows, in the user's words, and its effect on them."""

    operator: str
    effect: _Effect = _Effect.REMOVES

    @property
    def next_step(self) -> str:
        """The advice to the user."""
        match self.effect:
            case _Effect.SECOND:
                return "leave it out: advance_time(df) takes its place"
            case _Effect.MIXES:
                return (
                    "call advance_time on each stream, and unite the results; import_ctis(slow, "
                    "fast) gives one stream the CTIs of another"
                )
            case _Effect.CHOOSES:
                return (
                    "leave 'cti' out of it, since advance_time(df) itself leaves CTI rows out; "
                    "na.drop() takes every column: name those that you mean in "
                    "na.drop(subset=...), or give the source the condition, as option 'where'"
                )
            case _Effect.MAY_REMOVE:
                return (
                    f"call rows = advance_time(df) first and rows.{self.operator} then, with a "
                    "schema made of rows.schema, whose event time is marked for Spark's watermark"
                )
        return f"call advance_time(df) first, and apply {self.operator} to its result"


@dataclass(frozen=True, slots=True)
class _CtiPath:
    """The fate of a source's CTI rows, from the source up to an operator.

    Attributes:
        plan: the operator's plan, with filters widened.
        comes: CTI rows come through, unless an unknown operator removes them.
        loss: the operator that removed them; None: none did, or there are no CTI rows.
        sure: all operators on the way are known.
        column: the source's column with the CTI.
        trail: the operators that CTI rows came through, the source first, each with the index of
            the input that delivered them.
    """

    plan: Any
    comes: bool = False
    loss: _Loss | None = None
    sure: bool = True
    column: str = ""
    trail: tuple[tuple[PlanOperator, int], ...] = ()

    def is_null(self, column: str) -> bool:
        """Return whether `column` is a source column, unchanged, that is null in CTI rows."""
        null_column = column if self.sure else None
        for operator, index in reversed(self.trail):
            null_column = None if null_column is None else operator.find_same(index, null_column)
        return null_column is not None and null_column.lower() != self.column.lower()


def keep_ctis(root: PlanOperator, column: str) -> tuple[Any, bool]:
    """Widen the filters in the plan of `root` so that CTI rows pass.

    A filter on the CTI column itself that keeps all CTI rows stays as it is.

    Returns:
        The plan, the same object if no filter was in the way, and whether CTI rows certainly come
        through.

    Raises:
        SchemaRefused: an operator removes CTI rows, or mixes the CTIs of two streams.
    """
    path = _follow(root, column)
    if path.loss is not None:
        raise SchemaRefused(
            f"{path.loss.operator} comes before advance_time and {path.loss.effect}",
            "a stream as its source delivers it; filters, select with 'cti', and joins with a "
            "table (left, or left_anti by equal columns of the source) may come before",
            path.loss.next_step,
        )
    return path.plan, path.comes and path.sure


def _follow(operator: PlanOperator, column: str) -> _CtiPath:
    if not operator.inputs:
        comes = operator.delivers_ctis(column)
        return _CtiPath(operator.plan, comes, column=column, trail=((operator, 0),))
    if operator.name == UNION:
        return _unite(operator, column)
    for index, input_column in operator.find_origins(column):
        path = _follow(operator.inputs[index], input_column)
        # This origin is not a CTI column, and a later one may be.
        if not path.comes and path.loss is None:
            continue
        return _pass(operator, index, input_column, path)
    return _CtiPath(operator.plan)


def _pass(operator: PlanOperator, index: int, input_column: str, path: _CtiPath) -> _CtiPath:
    """Extend `path` by `operator`, which gets CTIs in `input_column` of its input `index`."""
    if path.loss is not None:
        return _CtiPath(operator.plan, loss=path.loss)
    if operator.name == FILTER:
        return _pass_filter(operator, input_column, path)
    if operator.name in _REMOVERS and not operator.keeps_outer(index, path.is_null):
        return _CtiPath(operator.plan, loss=_Loss(_REMOVERS[operator.name]))
    if operator.name in _FUNCTIONS:
        return _CtiPath(operator.plan, loss=_Loss(_FUNCTIONS[operator.name], _Effect.MAY_REMOVE))
    if operator.name == _WATERMARK:
        return _CtiPath(operator.plan, loss=_Loss("withWatermark", _Effect.SECOND))
    sure = path.sure and (operator.name in _HARMLESS or operator.name in _REMOVERS)
    return _extend(path, operator, index, _rebuild(operator, {index: path}), sure=sure)


def _extend(
    path: _CtiPath, operator: PlanOperator, index: int, plan: Any, *, sure: bool
) -> _CtiPath:
    """Extend `path` by an operator that CTI rows pass; `plan` replaces its plan."""
    return replace(path, plan=plan, sure=sure, trail=(*path.trail, (operator, index)))


def _pass_filter(operator: PlanOperator, input_column: str, path: _CtiPath) -> _CtiPath:
    condition = operator.find_condition(input_column, path.is_null)
    if condition is not None:
        # A filter on the CTI column is deliberate: import_ctis drops a stream's own CTIs like that.
        if condition.truth:
            return _extend(path, operator, 0, _rebuild(operator, {0: path}), sure=path.sure)
        return _CtiPath(operator.plan, loss=_Loss("a filter on column 'cti'", _Effect.CHOOSES))
    return _extend(path, operator, 0, operator.widen(input_column, path.plan), sure=path.sure)


def _unite(operator: PlanOperator, column: str) -> _CtiPath:
    """Unite the rows of several inputs; only one of them may deliver CTIs."""
    paths = {
        index: _follow(operator.inputs[index], input_column)
        for index, input_column in operator.find_origins(column)
    }
    coming = {index: path for index, path in paths.items() if path.comes}
    if len(coming) > 1:
        return _CtiPath(operator.plan, loss=_Loss("union", _Effect.MIXES))
    for index, path in coming.items():
        return _extend(path, operator, index, _rebuild(operator, coming), sure=path.sure)
    losses = [path.loss for path in paths.values()]
    return _CtiPath(operator.plan, loss=losses[0] if losses and all(losses) else None)


def _rebuild(operator: PlanOperator, paths: dict[int, _CtiPath]) -> Any:
    plans = [input_.plan for input_ in operator.inputs]
    changed = [paths[index].plan if index in paths else plan for index, plan in enumerate(plans)]
    if all(new is old for new, old in zip(changed, plans, strict=True)):
        return operator.plan
    return operator.rebuild(changed)
