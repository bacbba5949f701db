"""Types the condition of option `where` for a schema, and finds the rows that meet it.

A comparison casts both sides to the type that Spark casts them to (semantics 13.15). A condition is
refused if that type depends on the session's settings, or if the cast would lose digits.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.arrow import (
    INSTANT,
    MAX_DIGITS,
    Mask,
    name_scalar,
    name_struct_of_spark,
    to_mask,
)
from pyspark_timestream.core.instants import DAY_US, parse_instant
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.options.parsers import format_path
from pyspark_timestream.kafka.options.where import (
    ACCEPTS,
    Constant,
    Name,
    Node,
    Operation,
    Where,
)

ReadColumn = Callable[[str], pa.Array]
_BOOLEAN: Final = pa.bool_()
_DOUBLE: Final = pa.float64()


class _Step(Protocol):
    """A part of a typed condition: a value for each row."""

    @property
    def type(self) -> pa.DataType:
        """The type of its values."""

    def compute(self, read_column: ReadColumn) -> Any:
        """Return its n values, or one scalar for all; `read_column` returns a column by name."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition over columns of known types; it pickles, and no value makes it fail.

    Attributes:
        root: its tree.
        columns: the columns that it reads.
    """

    root: _Step
    columns: tuple[str, ...]

    def find(self, read_column: ReadColumn, rows: int) -> Mask:
        """Return a mask of the `rows` rows that meet it: it is true, neither false nor null."""
        truth = self.root.compute(read_column)
        if isinstance(truth, pa.Scalar):
            return np.full(rows, truth.as_py() is True)
        return to_mask(truth)


# -- the steps -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ColumnStep:
    name: str
    path: tuple[int, ...]
    type: pa.DataType

    def compute(self, read_column: ReadColumn) -> Any:
        column = read_column(self.name)
        for index in self.path:
            # Unlike `struct_field`, flatten makes the fields of a null struct null.
            column = column.flatten()[index]
        return column


@dataclass(frozen=True, slots=True)
class _Value:
    value: Any
    type: pa.DataType

    def compute(self, read_column: ReadColumn) -> Any:
        return pa.scalar(self.value, self.type)


@dataclass(frozen=True, slots=True)
class _Compare:
    """A comparison of values that are cast to `common`."""

    name: str
    left: _Step
    right: _Step
    common: pa.DataType
    type: pa.DataType = _BOOLEAN

    def compute(self, read_column: ReadColumn) -> Any:
        left = _cast_values(self.left.compute(read_column), self.common)
        right = _cast_values(self.right.compute(read_column), self.common)
        match self.name:
            case "=":
                return _equal(left, right)
            case ">":
                return _greater(left, right)
            case "<":
                return _greater(right, left)
            case ">=":
                return pc.invert(_greater(right, left))
            case "<=":
                return pc.invert(_greater(left, right))
        both_null = pc.and_(pc.is_null(left), pc.is_null(right))
        return pc.or_(pc.fill_null(_equal(left, right), False), both_null)


@dataclass(frozen=True, slots=True)
class _In:
    operand: _Step
    values: tuple[Any, ...]
    has_null: bool
    common: pa.DataType
    type: pa.DataType = _BOOLEAN

    def compute(self, read_column: ReadColumn) -> Any:
        operand = _cast_values(self.operand.compute(read_column), self.common)
        if pa.types.is_floating(self.common):
            # Arrow finds -0.0 only where the set has -0.0, and the sum is 0.0.
            operand = pc.add(operand, pa.scalar(0.0, self.common))
        is_member = pc.is_in(operand, value_set=pa.array(self.values, self.common))
        has_value = pc.is_valid(operand)
        is_known = pc.and_(has_value, is_member) if self.has_null else has_value
        return pc.if_else(is_known, is_member, pa.scalar(None, _BOOLEAN))


@dataclass(frozen=True, slots=True)
class _Like:
    """A match with Arrow's function `how`, such as `starts_with`, of `text`."""

    operand: _Step
    how: str
    text: str
    type: pa.DataType = _BOOLEAN

    def compute(self, read_column: ReadColumn) -> Any:
        operand = self.operand.compute(read_column)
        if self.how == "any":
            return pc.if_else(pc.is_valid(operand), True, pa.scalar(None, _BOOLEAN))
        if self.how == "equal":
            return pc.equal(operand, self.text)
        return getattr(pc, self.how)(operand, pattern=self.text)


@dataclass(frozen=True, slots=True)
class _Unary:
    """`not`, `is null`, `is true` or `is false`."""

    name: str
    operand: _Step
    type: pa.DataType = _BOOLEAN

    def compute(self, read_column: ReadColumn) -> Any:
        operand = self.operand.compute(read_column)
        match self.name:
            case "is null":
                return pc.is_null(operand)
            case "not":
                return pc.invert(operand)
            case "is true":
                return pc.fill_null(operand, False)
        return pc.fill_null(pc.invert(operand), False)


@dataclass(frozen=True, slots=True)
class _Chain:
    """`and` or `or` in three-valued logic."""

    inputs: tuple[_Step, ...]
    is_and: bool
    type: pa.DataType = _BOOLEAN

    def compute(self, read_column: ReadColumn) -> Any:
        join = pc.and_kleene if self.is_and else pc.or_kleene
        truth = self.inputs[0].compute(read_column)
        for step in self.inputs[1:]:
            truth = join(truth, step.compute(read_column))
        return truth


def _cast_values(values: Any, data_type: pa.DataType) -> Any:
    if values.type == data_type:
        return values
    if pa.types.is_decimal(values.type) and data_type == _DOUBLE:
        # Arrow's own cast does not always give the nearest double; reading the text does.
        return values.cast(pa.string()).cast(data_type)
    return pc.cast(values, data_type, safe=False)


def _equal(left: Any, right: Any) -> Any:
    result = pc.equal(left, right)
    if not pa.types.is_floating(left.type):
        return result
    return pc.or_(result, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _greater(left: Any, right: Any) -> Any:
    """Compare as Spark does: to it NaN is greater than every other number."""
    result = pc.greater(left, right)
    if not pa.types.is_floating(left.type):
        return result
    return pc.or_(result, pc.and_not(pc.is_nan(left), pc.is_nan(right)))


# -- types -----------------------------------------------------------------------------------------


class _Refused(Exception):
    """The condition cannot be used: the problem, and what to do about it."""

    def __init__(self, problem: str, next_step: str = "correct it, or filter in Spark") -> None:
        super().__init__(problem)
        self.next_step = next_step


def resolve_condition(
    where: Where, columns: Mapping[str, pa.DataType | None], others: Mapping[str, pa.DataType]
) -> Condition:
    """Type a condition.

    Args:
        where: the option's value.
        columns: the names and types of the schema's columns; None for the column with the CTI.
        others: metadata columns that may be named although the schema does not have them.

    Raises:
        OptionError: it names no column, or compares what Spark compares by a session's settings.
    """
    typing = _Typing(columns, others)
    try:
        if isinstance(where.root, Constant) and where.root.kind == "null":
            raise _Refused("it is null, for which Spark finds no type", "name a condition")
        root = typing.condition(where.root)
    except _Refused as error:
        raise OptionError("where", f"'{where.text}': {error}", ACCEPTS, error.next_step) from None
    except RecursionError:
        problem = f"'{where.text[:100]}...' is nested too deeply"
        raise OptionError("where", problem, ACCEPTS, "make it flatter") from None
    return Condition(root, tuple(typing.used))


_INTEGRAL_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_LITERALS: Final = {
    name_scalar(data_type): data_type
    for data_type in (
        *_INTEGRAL_DIGITS,
        *(_BOOLEAN, pa.float32(), _DOUBLE, pa.string(), pa.binary(), pa.null()),
    )
}
_SAME: Final = (_BOOLEAN, pa.string(), pa.binary(), pa.date32(), INSTANT, pa.timestamp("us"))
"""Types other than numbers; their values are compared with values of the same type only."""


class _Typing:
    """Types the parts of a condition; `used` are the columns that it reads, in order."""

    def __init__(
        self, columns: Mapping[str, pa.DataType | None], others: Mapping[str, pa.DataType]
    ) -> None:
        self._columns = columns
        self._others = others
        self.used: dict[str, None] = {}

    def condition(self, node: Node) -> _Step:
        """Type a node that must be true or false."""
        step = self._operand(node)
        if step.type not in (_BOOLEAN, pa.null()):
            raise _Refused(
                f"{_show_node(node)} is {name_scalar(step.type)}, and no condition",
                "compare it with a value",
            )
        return _Value(None, _BOOLEAN) if step.type == pa.null() else step

    def _operand(self, node: Node) -> _Step:
        if isinstance(node, Name):
            return self._column(node.path)
        if isinstance(node, Constant):
            return _make_value(node)
        match node.name:
            case "and" | "or":
                return _Chain(tuple(map(self.condition, node.inputs)), node.name == "and")
            case "is null":
                return _Unary(node.name, self._operand(node.inputs[0]))
            case "not" | "is true" | "is false":
                return _Unary(node.name, self.condition(node.inputs[0]))
            case "in":
                return self._in(node)
            case "like":
                return self._like(node)
        return self._compare(node)

    def _column(self, names: tuple[str, ...]) -> _ColumnStep:
        name = _find_column(names[0], self._columns) or _find_column(names[0], self._others)
        if name is None:
            raise self._unknown(names)
        data_type = self._columns.get(name, self._others.get(name))
        if data_type is None:
            raise _Refused(
                f"it names '{name}', the column with the CTI, which rows of data do not have",
                "leave it out: CTI rows pass any condition",
            )
        self.used[name] = None
        path = []
        for field_name in names[1:]:
            index = _find_field(data_type, field_name)
            if index is None:
                raise self._unknown(names)
            path.append(index)
            data_type = data_type.field(index).type
        return _ColumnStep(name, tuple(path), data_type)

    def _unknown(self, names: tuple[str, ...]) -> _Refused:
        dotted = ".".join(names)
        if len(names) > 1 and _find_column(dotted, self._columns):
            step = f"write `{dotted}` in backquotes, as Spark asks for"
        else:
            step = "name a column of .schema(...), or add it there"
        have = ", ".join(name for name, data_type in self._columns.items() if data_type is not None)
        return _Refused(f"there is no column '{format_path(names)}' among {have}", step)

    def _compare(self, node: Operation) -> _Step:
        left, right = map(self._operand, node.inputs)
        left, right = _fit_text(left, right), _fit_text(right, left)
        if pa.null() in (left.type, right.type):
            return self._compare_null(node, left, right)
        common = _unify_types(left, right)
        left, right = (_cast_value(step, common) for step in (left, right))
        return _Compare(node.name, left, right, common)

    def _compare_null(self, node: Operation, left: _Step, right: _Step) -> _Step:
        operand = right if left.type == pa.null() else left
        if not _is_comparable(operand.type) and operand.type != pa.null():
            raise _Refused(f"{name_scalar(operand.type)} is not compared")
        return _Unary("is null", operand) if node.name == "<=>" else _Value(None, _BOOLEAN)

    def _in(self, node: Operation) -> _Step:
        operand = self._operand(node.inputs[0])
        if not isinstance(operand, _ColumnStep):
            raise _Refused("'in' is not behind a column", "write the column first")
        all_values = [
            _make_value(constant) for constant in node.inputs[1:] if isinstance(constant, Constant)
        ]
        values = [value for value in all_values if value.type != pa.null()]
        common = _find_common(operand, values)
        cast = tuple(_cast_value(value, common).value for value in values)
        if pa.types.is_floating(common):
            cast = tuple(value + 0.0 for value in cast)
        return _In(operand, cast, len(values) < len(all_values), common)

    def _like(self, node: Operation) -> _Step:
        operand = self._operand(node.inputs[0])
        if not isinstance(operand, _ColumnStep) or operand.type != pa.string():
            raise _Refused(
                f"'like' is behind {_show_node(node.inputs[0])}, which is not a column of strings"
            )
        pattern, escape = (
            constant.value for constant in node.inputs[1:] if isinstance(constant, Constant)
        )
        how, text = _read_pattern(pattern, escape)
        return _Like(operand, how, text)


def _cast_value(step: _Step, data_type: pa.DataType) -> Any:
    """Cast a literal once, so that no block casts it again; return other steps as they are."""
    if not isinstance(step, _Value) or step.type == data_type:
        return step
    # Not by Arrow: its first scalar would load pandas, which the driver does without.
    if pa.types.is_decimal(data_type):
        return _Value(Decimal(step.value), data_type)
    return _Value(float(step.value) if data_type == _DOUBLE else step.value, data_type)


def _find_column(name: str, columns: Mapping[str, Any]) -> str | None:
    """Find a column by its name; in any case, if only one column matches."""
    if name in columns:
        return name
    alike = [column for column in columns if column.lower() == name.lower()]
    if len(alike) > 1:
        raise _Refused(f"'{name}' may be {' or '.join(alike)}", "write the name as it is")
    return alike[0] if alike else None


def _find_field(data_type: pa.DataType, name: str) -> int | None:
    if not pa.types.is_struct(data_type) or name_struct_of_spark(data_type):
        return None
    indexes = {child.name: index for index, child in enumerate(data_type)}
    field_name = _find_column(name, indexes)
    return None if field_name is None else indexes[field_name]


def _make_value(node: Constant) -> _Value:
    if node.kind == "decimal":
        _, digits, exponent = node.value.as_tuple()
        assert isinstance(exponent, int)
        return _Value(node.value, pa.decimal128(max(len(digits), -exponent), -exponent))
    if node.kind in ("date", "timestamp", "timestamp_ntz"):
        data_types = {
            "date": pa.date32(),
            "timestamp": INSTANT,
            "timestamp_ntz": pa.timestamp("us"),
        }
        return _read_time(node.value, data_types[node.kind])
    return _Value(node.value, _LITERALS[node.kind])


_DATE: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_MINUTE: Final = r"[ T][0-9]{2}:[0-9]{2}"
_SECOND: Final = r":[0-9]{2}(?:\.[0-9]{1,6})?"
_ZONE: Final = r"(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])"
_TIME_FORMS: Final = {
    pa.date32(): (_DATE, "2024-05-01"),
    INSTANT: (f"{_DATE}{_MINUTE}{_SECOND}{_ZONE}", "2024-05-01T08:30:00Z"),
    pa.timestamp("us"): (f"{_DATE}(?:{_MINUTE}(?:{_SECOND})?)?", "2024-05-01T08:30:00"),
}
"""Type -> a pattern of the texts that mean the same in every session, and an example."""


def _read_time(text: str, data_type: pa.DataType) -> _Value:
    form, example = _TIME_FORMS[data_type]
    problem = f"the text '{text}' is not a {name_scalar(data_type)}"
    if not re.fullmatch(form, text):
        why = " and a zone, which otherwise is the session's" if data_type == INSTANT else ""
        raise _Refused(problem, f"write it with all digits{why}, such as '{example}'")
    second, _, rest = text.partition(".")
    zone = rest.lstrip("0123456789")
    fraction = rest.removesuffix(zone)
    try:
        us = parse_instant(second + zone) + int(fraction.ljust(6, "0"))
    except ValueError:
        step = "write a time that calendar and clock have, in the years 1 to 9999 of UTC"
        raise _Refused(problem, step) from None
    return _Value(us // DAY_US if data_type == pa.date32() else us, data_type)


def _fit_text(step: _Step, other: _Step) -> _Step:
    """Read a text that is compared with a date or time as one, as Spark does in every session."""
    is_time = pa.types.is_date(other.type) or pa.types.is_timestamp(other.type)
    if is_time and isinstance(step, _Value) and step.type == pa.string():
        return _read_time(step.value, other.type)
    return step


def _is_number(data_type: pa.DataType) -> bool:
    return (
        data_type in _INTEGRAL_DIGITS
        or pa.types.is_floating(data_type)
        or pa.types.is_decimal(data_type)
    )


def _is_comparable(data_type: pa.DataType) -> bool:
    return _is_number(data_type) or data_type in _SAME


def _unify_types(left: _Step, right: _Step, *, in_list: bool = False) -> pa.DataType:
    """Return the type that Spark compares two values in, with any settings of the session."""
    pair = (left.type, right.type)
    if left.type == right.type and (left.type in _SAME or _is_number(left.type)):
        return left.type
    if not all(map(_is_number, pair)):
        raise _Refused(
            f"{name_scalar(left.type)} is compared with {name_scalar(right.type)}, which Spark "
            "does by the session's settings, if at all",
            _advise(left, right),
        )
    if all(data_type in _INTEGRAL_DIGITS for data_type in pair):
        return pa.int64()
    if any(map(pa.types.is_floating, pair)):
        _refuse_rounding(left, right)
        return _DOUBLE
    for step in (left, right):
        value = step.value if isinstance(step, _Value) else 0
        if (
            any(data_type in _INTEGRAL_DIGITS for data_type in pair)
            and not -(2**63) <= value < 2**63
        ):
            raise _Refused(
                f"{value} is outside of bigint, beside which Spark takes null for a number"
            )
    return _unify_decimals(*(_as_decimal(step, in_list=in_list) for step in (left, right)))


_NUMBER: Final = re.compile("[+-]?(?:[0-9]+[.]?[0-9]*|[.][0-9]+)")


def _advise(left: _Step, right: _Step) -> str:
    for step, other in ((left, right), (right, left)):
        if not isinstance(step, _Value):
            continue
        if step.type == pa.string() and _is_number(other.type):
            number = step.value.strip()
            has_number = _NUMBER.fullmatch(number) is not None
            return f"write {'the' if has_number else 'a'} number without quotes" + (
                f": {number}" if has_number else ", or compare a column of strings"
            )
        if (step.type, other.type) == (pa.string(), pa.binary()):
            return f"write the bytes in hexadecimal digits: X'{step.value.encode().hex()}'"
        if other.type in _TIME_FORMS:
            _, example = _TIME_FORMS[other.type]
            return f"write it with its type, such as {name_scalar(other.type)}'{example}'"
    return "compare values of one type, or filter in Spark"


def _refuse_rounding(left: _Step, right: _Step) -> None:
    """Refuse to compare a float with a whole number that it cannot hold: sessions differ there."""
    for step, other in ((left, right), (right, left)):
        if step.type != pa.float32() or other.type not in (pa.int32(), pa.int64()):
            continue
        value = other.value if isinstance(other, _Value) else None
        if value is None or int(np.float32(value)) != value:
            raise _Refused(
                f"float is compared with {name_scalar(other.type)}, which Spark does in float or "
                "double, as the session's settings say",
                # A float has fewer digits than the double that holds it here.
                f"write the number as a double, {np.float32(step.value)!s}D"
                if isinstance(step, _Value)
                else "declare the column a double",
            )


def _as_decimal(step: _Step, *, in_list: bool) -> pa.DataType:
    if pa.types.is_decimal(step.type):
        return step.type
    digits = _INTEGRAL_DIGITS[step.type]
    if isinstance(step, _Value) and not in_list:
        digits = len(str(abs(step.value)))
    return pa.decimal128(digits, 0)


def _unify_decimals(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    scale = max(left.scale, right.scale)
    digits = max(left.precision - left.scale, right.precision - right.scale) + scale
    if digits > MAX_DIGITS:
        raise _Refused(
            f"{name_scalar(left)} is compared with {name_scalar(right)}, and Spark would "
            f"round: this takes {digits} digits, and a decimal has {MAX_DIGITS}"
        )
    return pa.decimal128(digits, scale)


def _find_common(operand: _ColumnStep, values: list[_Value]) -> pa.DataType:
    """Return the type in which Spark compares an operand with all values of a list."""
    common: _Step = operand
    for value in values:
        data_type = _unify_types(common, value, in_list=True)
        # This value has been checked; the next ones are checked against the common type so far.
        common = _ColumnStep(operand.name, operand.path, data_type)
    if not _is_comparable(common.type):
        raise _Refused(f"{name_scalar(common.type)} is not compared")
    return common.type


def _read_pattern(pattern: str, escape: str) -> tuple[str, str]:
    """Return Arrow's function for a pattern of `like`, and the text or expression to give it."""
    if len(escape) != 1 or ord(escape) > 0xFFFF:
        raise _Refused(f"'{escape}' behind 'escape' is not one character")
    pieces = list(_split_pattern(pattern, escape))
    texts = [piece for piece in pieces if piece not in (_ANY, _ONE)]
    if not pieces:
        return "equal", ""
    if _ONE not in pieces and len(texts) <= 1:
        text = "".join(map(str, texts))
        match (pieces[0] is _ANY, pieces[-1] is _ANY):
            case (False, False):
                return "equal", text
            case (False, True):
                return "starts_with", text
            case (True, False):
                return "ends_with", text
        return ("match_substring", text) if texts else ("any", "")
    words: dict[str | int, str] = {_ANY: ".*", _ONE: "."}
    expression = "".join(words.get(piece) or _quote_for_re2(str(piece)) for piece in pieces)
    text = rf"(?s)\A{expression}\z"
    try:
        pc.match_substring_regex(pa.array([], pa.string()), pattern=text)
    except pa.ArrowInvalid as error:
        raise _Refused("the pattern of 'like' is too long") from error
    return "match_substring_regex", text


_ANY: Final = 0
_ONE: Final = 1


def _split_pattern(pattern: str, escape: str) -> Iterator[str | int]:
    """Split a pattern into texts, and `_ANY` for % and `_ONE` for _."""
    text, characters = "", iter(pattern)
    for character in characters:
        if character == escape:
            character = next(characters, "")
            if character not in ("%", "_", escape):
                raise _Refused(
                    f"in the pattern '{pattern}' the escape {escape} is not before %, _ or itself"
                )
            text += character
        elif character in "%_":
            if text:
                yield text
            text = ""
            yield _ANY if character == "%" else _ONE
        else:
            text += character
    if text:
        yield text


def _quote_for_re2(text: str) -> str:
    """Quote a text for RE2."""
    return re.sub(r"[^\w]", lambda match: f"\\x{{{ord(match[0]):x}}}", text, flags=re.ASCII)


def _show_node(node: Node) -> str:
    if isinstance(node, Name):
        return f"'{format_path(node.path)}'"
    return f"'{node.value}'" if isinstance(node, Constant) else f"'{node.name}'"
