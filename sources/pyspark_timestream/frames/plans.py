"""Reads Spark's plans below `advance_time`, and detects queries that lose CTIs (semantics 11.14).

A classic plan is an analysed Java object: it resolves views, and its columns have ids. A plan of a
Spark Connect client is a Python object that knows only names; only the server resolves views,
tables and SQL. If a classic plan hides the operators between a source and `advance_time`, a
listener compares the running query's watermark with the CTIs that its streams report.
"""

import copy
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from weakref import WeakSet

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.types import DoubleType, FloatType

from pyspark_timestream.core.arrow import CTI_COLUMN
from pyspark_timestream.core.checkpoint import parse_offset
from pyspark_timestream.core.instants import parse_instant
from pyspark_timestream.core.processes import lazy
from pyspark_timestream.errors import compose_message
from pyspark_timestream.frames.cti_path import (
    FILTER,
    GENERATE,
    JOIN,
    UNION,
    CtiCondition,
    IsNull,
    keep_ctis,
)

LOST_CTIS: Final = (
    "its streams have CTIs, and Spark's watermark stands at 1970: something between a source and "
    "advance_time removes the CTI rows, in which every column but 'cti' is null, so no result "
    "appears"
)
LOST_CTIS_FIX: Final = (
    "call advance_time(df) on what the source delivers, and let filters, joins and functions follow"
)

_LOG: Final = logging.getLogger(__name__)
_watched: WeakSet[SparkSession] = WeakSet()


def loses_ctis(progresses: Sequence[Mapping[str, Any]], *, has_ended: bool = False) -> bool:
    """Return whether a query's watermark has failed to follow the CTIs of its streams.

    Args:
        progresses: the progress reports of one run of a query, as parsed JSON.
        has_ended: the run has ended properly. Before that, a CTI of the last batch may not have
            become the watermark yet, so it does not count.
    """
    if not progresses:
        return False
    watermark = (progresses[-1].get("eventTime") or {}).get("watermark")
    if watermark is None or parse_instant(watermark) > 0:
        return False
    return any(map(_has_ctis, progresses if has_ended else progresses[:-1]))


def _has_ctis(progress: Mapping[str, Any]) -> bool:
    """Return whether all sources are our streams, and each has delivered a CTI after 1970."""
    reports = [parse_offset(source.get("latestOffset")) for source in progress["sources"]]
    ctis = [report.get("cti") if "partitions" in report else None for report in reports]
    return bool(ctis) and all(cti is not None and parse_instant(cti) > 0 for cti in ctis)


def watch_ctis(spark: SparkSession) -> None:
    """Warn once about each query of the session that loses its CTIs.

    If the session takes no listener, only a line in the log says so.
    """
    if spark in _watched:
        return
    _watched.add(spark)
    try:
        spark.streams.addListener(_CtiWatch())
    except Exception as error:  # Spark, py4j and gRPC each have their own errors.
        _LOG.warning(
            "the session takes no listener, so nothing warns of queries that lose their CTI rows "
            "before advance_time; explain_time(query) shows them (%s: %s)",
            type(error).__name__, error,
        )  # fmt: skip


class _CtiWatch(StreamingQueryListener):
    """Compares each query run's watermark with its CTIs."""

    def __init__(self) -> None:
        self._progresses = dict[str, list[Mapping[str, Any]]]()
        self._warned = set[str]()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: a new run has no progress yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: an idle query has no new CTIs."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Compare a batch's watermark with the CTIs of earlier batches."""
        try:
            for line in self._take(json.loads(event.progress.json)):
                _LOG.warning("%s", line)
        except Exception:
            _LOG.debug("a progress cannot be read", exc_info=True)

    def _take(self, progress: Mapping[str, Any]) -> Iterator[str]:
        run = progress["runId"]
        # One earlier batch with a CTI is enough to compare, so keep no more.
        progresses = [*self._progresses.get(run, ()), progress]
        self._progresses[run] = [report for report in progresses if _has_ctis(report)][:1]
        if run not in self._warned and loses_ctis(progresses):
            self._warned.add(run)
            name = progress.get("name") or progress["id"]
            yield compose_message(f"query '{name}': {LOST_CTIS}", None, LOST_CTIS_FIX)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the run."""
        self._progresses.pop(str(event.runId), None)
        self._warned.discard(str(event.runId))


_EXPRESSIONS: Final = {"Project": "projectList", "Aggregate": "aggregateExpressions"}
_CONNECT_NAMES: Final = {
    "ApplyInPandasWithState": "FlatMapGroupsInPandasWithState",
    "CoGroupMap": "FlatMapCoGroupsInPandas",
    "GroupMap": "FlatMapGroupsInPandas",
    "Limit": "GlobalLimit",
    "MapPartitions": "MapInPandas",
    "NADrop": FILTER,
    "TransformWithStateInPandas": "TransformWithStateInPySpark",
    "WithWatermark": "EventTimeWatermark",
}
_SET_OPERATIONS: Final = {"union": UNION, "intersect": "Intersect", "except": "Except"}
_CHILDREN: Final = ("_child", "right", "other", "_other", "_right")
"""The attributes in which Python's plan objects keep the plans below."""

_ANTI: Final = "LEFT_ANTI"
_FUNCTIONS: Final = {
    "==": "EqualTo",
    "and": "And",
    "coalesce": "Coalesce",
    "isnotnull": "IsNotNull",
    "isnull": "IsNull",
    "not": "Not",
    "or": "Or",
}
_UNCHANGING: Final = frozenset(
    {
        "CollectMetrics",
        "DataSource",
        "Drop",
        "Filter",
        "Hint",
        "NADrop",
        "Repartition",
        "RepartitionByExpression",
        "Sort",
        "SubqueryAlias",
    }
)
"""Plans of Spark Connect that pass their input's columns on unchanged."""

_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_ALIAS: Final = re.compile(r"^(.*?)\s+(?:as\s+)?`?([A-Za-z_]\w*)`?\s*$", re.IGNORECASE | re.DOTALL)


def keep_cti_rows(df: DataFrame) -> DataFrame:
    """Widen the filters of `df`, so that the CTI rows of its source come through.

    Raises:
        SchemaRefused: another operator in its plan removes them.
    """
    if not df.isStreaming:
        return df
    if not hasattr(df, "_jdf"):
        # No listener here: its thread would keep a client's process from ending.
        return _keep_connect(df)
    widened, is_sure = _keep_classic(df)
    if not is_sure:
        watch_ctis(df.sparkSession)
    return widened


def _keep_classic(df: DataFrame) -> tuple[DataFrame, bool]:
    spark: Any = df.sparkSession
    try:
        plan = df._jdf.queryExecution().analyzed()
        root = ClassicOperator(plan, spark._jvm)
        columns = [
            attribute
            for attribute in _iterate(plan.output())
            if attribute.name().lower() == CTI_COLUMN
        ]
        widened, is_sure = keep_ctis(root, _read_id(columns[-1]))
        if widened is plan:
            return df, is_sure
        dataset = spark._jvm.org.apache.spark.sql.classic.Dataset
        return DataFrame(dataset.ofRows(df._jdf.sparkSession(), widened), spark), is_sure
    except (Py4JError, TypeError) as error:
        # Spark's Java API is not public and may change; the listener then finds lost CTI rows.
        _LOG.debug("the plan below advance_time cannot be read: %s", error)
        return df, False


def _iterate(items: Any) -> Iterator[Any]:
    iterator = items.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _read_id(attribute: Any) -> str:
    return str(attribute.exprId().toString())


def _list_output_ids(plan: Any) -> list[str]:
    return [_read_id(attribute) for attribute in _iterate(plan.output())]


class ClassicOperator:
    """An operator of a classic plan, and all operators below it.

    Args:
        plan: Spark's object.
        jvm: the session's JVM, to change the plan with; None: it is only read.
        tables: the plan's common table expressions seen so far, by their numbers.
    """

    def __init__(self, plan: Any, jvm: Any = None, tables: dict[int, Any] | None = None) -> None:
        self.plan = plan
        self._jvm = jvm
        self._tables = {} if tables is None else tables
        self.name = str(plan.getClass().getSimpleName())
        children = list(_iterate(plan.children()))
        self._definitions: list[Any] = []
        if self.name == "WithCTE":
            # The table expressions come before the query; a CTERelationRef reads each by number.
            *self._definitions, query = children
            self._tables.update({table.id(): table for table in self._definitions})
            children = [query]
        elif self.name == "CTERelationRef" and plan.cteId() in self._tables:
            children = [self._tables[plan.cteId()]]
        self._children = children

    @lazy
    def inputs(self) -> Sequence["ClassicOperator"]:
        """The operators below."""
        return [ClassicOperator(child, self._jvm, self._tables) for child in self._children]

    @property
    def is_stream(self) -> bool:
        """Whether a stream is among its sources."""
        return bool(self.plan.isStreaming())

    @property
    def watermark(self) -> str | None:
        """The column of a `withWatermark`; None: it is another operator."""
        return str(self.plan.eventTime().name()) if self.name == "EventTimeWatermark" else None

    @property
    def columns(self) -> list[str]:
        """The columns of a streaming source; empty for all others."""
        is_source = self.is_stream and not self._children
        return (
            [str(attribute.name()) for attribute in _iterate(self.plan.output())]
            if is_source
            else []
        )

    def find_origins(self, column: str) -> list[tuple[int, str]]:
        """Match by id where Spark keeps it, by position in a union, else by name."""
        if self.name in _EXPRESSIONS:
            for expression in _iterate(getattr(self.plan, _EXPRESSIONS[self.name])()):
                if _read_id(expression) == column:
                    return [(0, _read_id(used)) for used in _iterate(expression.references())]
        input_ids = [_list_output_ids(child) for child in self._children]
        output_ids = _list_output_ids(self.plan)
        if self.name in (UNION, "CTERelationRef") and column in output_ids:
            return [(index, ids[output_ids.index(column)]) for index, ids in enumerate(input_ids)]
        same = [(index, column) for index, ids in enumerate(input_ids) if column in ids]
        if same or column not in output_ids:
            return same
        name = list(_iterate(self.plan.output()))[output_ids.index(column)].name()
        return [
            (index, _read_id(attribute))
            for index, child in enumerate(self._children)
            for attribute in _iterate(child.output())
            if attribute.name() == name
        ]

    def delivers_ctis(self, column: str) -> bool:
        """Return whether this is a streaming source, and the column has the name of a CTI."""
        names = [
            attribute.name()
            for attribute in _iterate(self.plan.output())
            if _read_id(attribute) == column
        ]
        return bool(self.plan.isStreaming()) and any(
            name.lower().endswith(CTI_COLUMN) for name in names
        )

    def find_same(self, index: int, column: str) -> str | None:
        """Match by id, which Spark keeps while a column is unchanged; by position in a union."""
        if self.name == "Project":
            for item in _iterate(self.plan.projectList()):
                if _read_id(item) == column:
                    name = str(item.getClass().getSimpleName())
                    expression = item.child() if name == "Alias" else item
                    is_column = str(expression.getClass().getSimpleName()) == "AttributeReference"
                    return _read_id(expression) if is_column else None
            return None
        output_ids = _list_output_ids(self.plan)
        if not self._children:
            return column if column in output_ids else None
        input_ids = _list_output_ids(self._children[index])
        if self.name in (UNION, "CTERelationRef"):
            return input_ids[output_ids.index(column)] if column in output_ids else None
        return column if column in input_ids else None

    def keeps_outer(self, index: int, is_null: IsNull) -> bool:
        """Accept joins with a batch DataFrame that keep CTI rows, and outer generators."""
        if self.name == GENERATE:
            return bool(self.plan.outer())
        if self.name != JOIN or self._children[1 - index].isStreaming():
            return False
        how = str(self.plan.joinType().toString())
        if how in ("Inner", "Cross"):
            return bool(self.plan.condition().isEmpty())
        if how == "LeftAnti" and index == 0 and self.plan.condition().isDefined():
            return _read_condition(self.plan.condition().get(), "", is_null).matches_none
        return how in ("FullOuter", ("LeftOuter", "RightOuter")[index])

    def find_condition(self, column: str, is_null: IsNull) -> CtiCondition | None:
        """Return the condition if it names the column."""
        condition = self.plan.condition()
        names_column = any(
            _read_id(attribute) == column for attribute in _iterate(condition.references())
        )
        return _read_condition(condition, column, is_null) if names_column else None

    def widen(self, column: str, child: Any) -> Any:
        """Return a filter on `cti IS NOT NULL OR condition`."""
        (attribute,) = (e for e in _iterate(child.output()) if _read_id(e) == column)
        catalyst = self._jvm.org.apache.spark.sql.catalyst
        is_cti = catalyst.expressions.IsNotNull(attribute)
        condition = catalyst.expressions.Or(is_cti, self.plan.condition())
        return catalyst.plans.logical.Filter(condition, child)

    def rebuild(self, children: Sequence[Any]) -> Any:
        """Return the operator over other children."""
        if self.name == "CTERelationRef":
            self._tables[self.plan.cteId()] = children[0]
            # The copy is another object, so `_rebuild` also rebuilds the operators above it.
            children = []
        if self.name == "WithCTE":
            tables = [self._tables[table.id()] for table in self._definitions]
            children = [*tables, *children]
        return self.plan.withNewChildren(self._jvm.PythonUtils.toSeq(children))


def _read_condition(expression: Any, column: str, is_null: IsNull) -> CtiCondition:
    name = str(expression.getClass().getSimpleName())
    if name == "AttributeReference":
        column_id = _read_id(expression)
        if column_id == column:
            return CtiCondition("CTI")
        return CtiCondition("NULL" if is_null(column_id) else name)
    children = _iterate(expression.children())
    inputs = tuple(_read_condition(child, column, is_null) for child in children)
    value = None
    if name == "Literal":
        value = expression.value()
    elif name == "AtLeastNNonNulls":
        value = expression.n()
    return CtiCondition(name, inputs, value)


def _keep_connect(df: DataFrame) -> DataFrame:
    plan, session = df._plan, df._session
    try:
        widened, _ = keep_ctis(_ConnectOperator(plan, session), CTI_COLUMN)
    except (AttributeError, PySparkException) as error:
        _LOG.debug("the plan below advance_time cannot be read: %s", error)
        return df
    return df if widened is plan else type(df)(widened, session)


class _ConnectOperator:
    """An operator of a Spark Connect plan, in which nothing is resolved yet."""

    def __init__(self, plan: Any, session: Any) -> None:
        self.plan = plan
        self._session = session
        kind = type(plan).__name__
        self.name = _CONNECT_NAMES.get(kind, kind)
        if kind == "SetOperation":
            self.name = _SET_OPERATIONS.get(plan.set_op, kind)
        elif kind == "Deduplicate" and plan.within_watermark:
            self.name = "DeduplicateWithinWatermark"
        self._child_names = [
            name for name in _CHILDREN if hasattr(getattr(plan, name, None), "_plan_id")
        ]
        self.inputs = [_ConnectOperator(getattr(plan, name), session) for name in self._child_names]
        self.is_stream: bool = getattr(plan, "_is_streaming", False) or any(
            operator.is_stream for operator in self.inputs
        )
        self.ids: set[int] = {plan._plan_id}.union(*(operator.ids for operator in self.inputs))
        """The numbers that columns use to refer to this plan and to plans below it."""

    def find_origins(self, column: str) -> list[tuple[int, str]]:
        """Match by name, and follow renamed and computed columns."""
        kind = type(self.plan).__name__
        if kind == "Project":
            return [(0, name) for name in self._find_sources(column)]
        if kind == "WithColumns":
            for name, plan_column in zip(self.plan._columnNames, self.plan._columns, strict=True):
                if name.lower() == column.lower():
                    return [(0, used) for used in _list_names(self._read(plan_column))]
        if kind == "WithColumnsRenamed":
            for old, new in self.plan._colsMap.items():
                if new.lower() == column.lower():
                    return [(0, old)]
        if kind == "ToDF":
            return []
        return [(index, column) for index in range(len(self.inputs))]

    def _find_sources(self, column: str) -> list[str]:
        """Return the input columns that the projection's `column` uses."""
        for plan_column in self.plan._columns:
            expression = self._read(plan_column)
            kind = expression.WhichOneof("expr_type")
            if kind == "unresolved_star":
                return [column]
            if kind == "unresolved_attribute":
                name = _read_name(expression)
            elif kind == "alias":
                name = expression.alias.name[-1]
            elif kind == "expression_string":
                text = expression.expression_string.expression.strip()
                if text == "*":
                    return [column]
                alias = _ALIAS.match(text)
                name = alias.group(2) if alias else text.strip("`")
            else:
                continue
            if name.lower() == column.lower():
                return _list_names(expression)
        return []

    def _read(self, column: Any) -> Any:
        return column.to_plan(self._session.client)

    def delivers_ctis(self, column: str) -> bool:
        """Return whether this is a stream from a format or table, and the column a CTI by name."""
        kind = type(self.plan).__name__
        is_stream = kind == "DataSource" and self.plan._is_streaming
        is_stream = is_stream or (kind == "Read" and self.plan._is_streaming)
        return bool(is_stream) and column.lower().endswith(CTI_COLUMN)

    def find_same(self, index: int, column: str) -> str | None:
        """Match by name, if the client's own steps prove that no other column can have it."""
        kind, lowered = type(self.plan).__name__, column.lower()
        if _WORD.fullmatch(column) is None:
            return None
        if kind == "Project":
            return self._find_same_in_project(column)
        if kind == "WithColumns":
            for name, plan_column in zip(self.plan._columnNames, self.plan._columns, strict=True):
                if name.lower() == lowered:
                    return _read_plain(self._read(plan_column))
            return column
        if kind == "WithColumnsRenamed":
            names = {new.lower(): old for old, new in self.plan._colsMap.items()}
            was_other = lowered in {old.lower() for old in self.plan._colsMap}
            return names.get(lowered, None if was_other else column)
        is_anti = kind == JOIN and self._join_type == _ANTI and index == 0
        return column if kind in _UNCHANGING or is_anti else None

    def _find_same_in_project(self, column: str) -> str | None:
        sources: list[str | None] = []
        has_star = False
        for plan_column in self.plan._columns:
            expression = self._read(plan_column)
            kind = expression.WhichOneof("expr_type")
            if kind == "unresolved_star":
                has_star = True
                continue
            alias = list(expression.alias.name) if kind == "alias" else None
            plain = _read_plain(expression.alias.expr if alias else expression)
            if plain is None and not alias:
                # Spark makes up an expression's name, which could be this one.
                return None
            if column.lower() in map(str.lower, alias or [plain or ""]):
                sources.append(plain)
        if sources:
            return sources[0]
        return column if has_star else None

    @property
    def _join_type(self) -> str:
        from pyspark.sql.connect.proto import Join

        return str(Join.JoinType.Name(self.plan.how)).removeprefix("JOIN_TYPE_")

    def _matches_none(self, is_null: IsNull) -> bool:
        """Return whether the join's condition contains an equality that no CTI row meets."""
        on = self.plan.on if isinstance(self.plan.on, list) else [self.plan.on]
        left_ids = self.inputs[0].ids - self.inputs[1].ids

        def is_null_left(attribute: Any) -> bool:
            # Without a plan id the name may belong to the other side.
            name = _read_plain(attribute)
            identifier = attribute.unresolved_attribute
            is_left = identifier.HasField("plan_id") and identifier.plan_id in left_ids
            return name is not None and is_left and is_null(name)

        return any(
            is_null(key)
            if isinstance(key, str)
            else _read_expression(self._read(key), is_null_left).matches_none
            for key in on
            if key is not None
        )

    def keeps_outer(self, index: int, is_null: IsNull) -> bool:
        """Accept joins with a batch DataFrame that keep CTI rows."""
        if self.name != JOIN or self.inputs[1 - index].is_stream:
            return False
        how = self._join_type
        if how in ("INNER", "CROSS"):
            return self.plan.on is None
        if how == _ANTI and index == 0:
            return self._matches_none(is_null)
        return how in ("FULL_OUTER", ("LEFT_OUTER", "RIGHT_OUTER")[index])

    def find_condition(self, column: str, is_null: IsNull) -> CtiCondition | None:
        """Return the condition if it names the column, or all columns as `na.drop()` does."""
        if type(self.plan).__name__ == "NADrop":
            names = [name.lower() for name in self.plan.cols or ()]
            if names and column.lower() not in names:
                return None
            keeps = self.plan.min_non_nulls == 1
            return CtiCondition("Literal", value=True) if keeps else CtiCondition("NADrop")
        expression = self._read(self.plan.filter)
        if column.lower() not in map(str.lower, _list_names(expression)):
            return None
        if expression.WhichOneof("expr_type") != "expression_string":
            return _read_expression(
                expression,
                lambda attribute: (name := _read_plain(attribute)) is not None and is_null(name),
                column,
            )
        # Only the server can read SQL text, so ask it if two CTI rows pass.
        text = expression.expression_string.expression
        return CtiCondition("Literal", value=True if self._keeps_rows(text, column) else None)

    def _keeps_rows(self, text: str, column: str) -> bool:
        schema = self._read_schema()
        columns = ", ".join(
            f"CAST({'t' if field.name.lower() == column.lower() else 'NULL'} AS "
            f"{field.dataType.simpleString()}) AS `{field.name}`"
            for field in schema.fields
        )
        rows = self._session.sql(
            f"SELECT {columns} FROM VALUES (TIMESTAMP'2001-01-01'), (TIMESTAMP'2201-01-01') AS v(t)"
        )
        return bool(rows.where(text).count() == 2)

    def _read_schema(self) -> Any:
        from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame

        return ConnectDataFrame(self.inputs[0].plan, self._session).schema

    def widen(self, column: str, child: Any) -> Any:
        """Return a filter on `cti IS NOT NULL OR condition`."""
        from pyspark.sql.connect import functions as F
        from pyspark.sql.connect.plan import Filter

        is_cti = F.col(f"`{column}`").isNotNull()
        if type(self.plan).__name__ != "NADrop":
            plan = copy.copy(self.plan)
            plan._child, plan.filter = child, is_cti | self.plan.filter
            return plan
        types = {field.name.lower(): field.dataType for field in self._read_schema().fields}
        columns = []
        for name in self.plan.cols:
            value = F.col(f"`{name}`")
            is_there = value.isNotNull()
            if isinstance(types[name.lower()], (FloatType, DoubleType)):
                is_there = is_there & ~F.isnan(value)
            columns.append(is_there.cast("int"))
        needed = self.plan.min_non_nulls
        non_nulls = sum(columns[1:], columns[0])
        plan = Filter(child, is_cti | (non_nulls >= (len(columns) if needed is None else needed)))
        # The DataFrame's columns refer to its plan by this number.
        plan._root_plan_id = self.plan._root_plan_id
        return plan

    def rebuild(self, children: Sequence[Any]) -> Any:
        """Return the operator over other children, with the same number."""
        plan = copy.copy(self.plan)
        for name, child in zip(self._child_names, children, strict=True):
            setattr(plan, name, child)
            if name == "_child" and hasattr(plan, "left"):
                plan.left = child
        return plan


def _read_name(expression: Any) -> str:
    text = str(expression.unresolved_attribute.unparsed_identifier)
    return text.replace("`", "").rpartition(".")[2]


def _list_names(expression: Any) -> list[str]:
    """List the columns that an expression names; for SQL text, all its words."""
    kind = expression.WhichOneof("expr_type")
    if kind == "unresolved_attribute":
        return [_read_name(expression)]
    if kind == "expression_string":
        return _WORD.findall(expression.expression_string.expression)
    return [name for message in _list_messages(expression) for name in _list_names(message)]


def _list_messages(message: Any) -> Iterator[Any]:
    """Yield the expressions directly below a message of the protocol."""
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        for inner in [value] if hasattr(value, "ListFields") else value:
            if not hasattr(inner, "ListFields"):
                continue
            if hasattr(inner, "WhichOneof") and inner.DESCRIPTOR.name == "Expression":
                yield inner
            else:
                yield from _list_messages(inner)


def _read_plain(expression: Any) -> str | None:
    """Return the name of an expression that is just an input column; None for any other."""
    if expression.WhichOneof("expr_type") != "unresolved_attribute":
        return None
    text = str(expression.unresolved_attribute.unparsed_identifier).strip("`")
    return text if _WORD.fullmatch(text) else None


def _read_expression(
    expression: Any, is_null: Callable[[Any], bool], column: str | None = None
) -> CtiCondition:
    """Read a condition; `is_null` says whether a column that it names is null in CTI rows."""
    kind = expression.WhichOneof("expr_type")
    if kind == "unresolved_attribute":
        if column is not None and _read_name(expression).lower() == column.lower():
            return CtiCondition("CTI")
        return CtiCondition("NULL" if is_null(expression) else kind)
    if kind == "literal":
        is_bool = expression.literal.WhichOneof("literal_type") == "boolean"
        return CtiCondition("Literal", value=expression.literal.boolean if is_bool else None)
    messages = _list_messages(expression)
    inputs = tuple(_read_expression(message, is_null, column) for message in messages)
    if kind == "unresolved_function":
        name = expression.unresolved_function.function_name.lower()
        return CtiCondition(_FUNCTIONS.get(name, name), inputs)
    return CtiCondition(str(kind), inputs)
