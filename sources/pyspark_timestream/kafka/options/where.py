"""Reads the text of option `where`, an SQL condition, as a tree of plain values (semantics 13.15).

sqlglot parses the text. This module accepts only what means the same in Spark under all settings of
a session, and refuses everything else by name. The tree pickles, and using it needs no parser.
"""

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from pyspark_timestream.core.arrow import MAX_DIGITS
from pyspark_timestream.core.declarations import Parser
from pyspark_timestream.errors import MissingExtra


class Name(NamedTuple):
    """A column, or a field inside a struct: the names that lead there."""

    path: tuple[str, ...]


class Constant(NamedTuple):
    """A literal.

    Attributes:
        kind: Spark's name of its type; `null` for NULL.
        value: int, Decimal, float, str, bytes, bool or None; for a date or timestamp its text.
    """

    kind: str
    value: Any = None


class Operation(NamedTuple):
    """An operator over its inputs.

    Attributes:
        name: `and`, `or`, `not`, `is null`, `is true`, `is false`, `in`, `like`, or a comparison:
            `=`, `<`, `<=`, `>`, `>=`, `<=>`.
        inputs: for `in` the operand and the list; for `like` the operand, pattern and escape.
    """

    name: str
    inputs: tuple["Node", ...]


Node: TypeAlias = Name | Constant | Operation


class Where(NamedTuple):
    """A condition: its text, and the tree that it stands for."""

    text: str
    root: Node

    def __str__(self) -> str:
        """Return the option's text."""
        return self.text


ACCEPTS: Final = (
    "=, <>, <, <=, >, >=, <=>, in, between, like, is null, is true, and, or, not over columns and "
    "literals, such as `kind = 'bid' and price > 100`"
)

_COMPARISONS: Final = {
    "eq": "=",
    "lt": "<",
    "lte": "<=",
    "gt": ">",
    "gte": ">=",
    "nullsafeeq": "<=>",
}
_NEGATED: Final = {"neq": "=", "nullsafeneq": "<=>"}
_CONDITIONS: Final = frozenset(
    (*_COMPARISONS, *_NEGATED, "and", "or", "not", "between", "in", "like", "escape", "is")
)
"""sqlglot's names of all that is true or false."""

_OTHERS: Final = {
    "subquery": "a subquery",
    "select": "a subquery",
    "exists": "a subquery",
    "cast": "a cast",
    "trycast": "a cast",
    "case": "case",
    "if": "if",
    "add": "arithmetic (+)",
    "sub": "arithmetic (-)",
    "mul": "arithmetic (*)",
    "div": "arithmetic (/)",
    "intdiv": "arithmetic (div)",
    "mod": "arithmetic (%)",
    "neg": "arithmetic (-)",
    "concat": "two texts side by side",
    "dpipe": "the operator ||",
    "bracket": "an item of an array or map",
    "ilike": "ilike",
    "regexplike": "rlike",
    "tuple": "several columns in one pair of parentheses",
    "interval": "an interval",
    "placeholder": "a parameter",
    "parameter": "a parameter",
    "rawstring": "a text with the letter r before it",
    "national": "a text with the letter n before it",
    "star": "*",
}
"""sqlglot's name of a refused expression -> ours."""

_QUOTED: Final = re.compile(
    r"""
    (?P<name>`(?:[^`]|``)*`)
    | (?P<hex>\bx'[^']*')
    | (?P<text>'(?:[^'\\]|\\.|'')*')
    | (?P<double>")
    | (?P<comment>--|/\*)
    | (?P<cast>::|\b(?:try_)?cast\s*\()
    | (?P<number>\b0x\w+)
    | (?P<bracket>[\[\]{}])
    | (?P<other>[^ -~\t\r\n])
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_REFUSED: Final = {
    "double": "\" is a text or a name, as the session's settings say: write a text in '...', and a "
    "name in `...`",
    "comment": "a comment",
    "cast": "a cast",
    "number": "a number in hexadecimal digits",
    "bracket": "an item of an array or map, or braces",
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "\\": "\\", "'": "'", '"': '"'}
_KEPT_ESCAPES: Final = ("%", "_")
"""Spark keeps the backslash before them, for `like`."""

_NEEDS_PARENTHESES: Final = "a condition inside another one needs parentheses around it"

_PREDICATES: Final = {
    "EQ": ("=", "=="),
    "NEQ": ("<>", "!="),
    "LT": ("<",),
    "LTE": ("<=",),
    "GT": (">",),
    "GTE": (">=",),
    "NULLSAFE_EQ": ("<=>",),
    "IN": ("in",),
    "BETWEEN": ("between",),
    "LIKE": ("like",),
    "IS": ("is",),
}
"""sqlglot's name of a predicate -> how Spark spells it."""

_PREFIXES: Final = ("NOT", "PLUS", "DASH", "DOT", "DISTINCT", "FROM")
_BEFORE_NOT: Final = ("", "L_PAREN", "AND", "OR", "NOT", "IS")

_INTEGRALS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_TYPED: Final = {
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp_ntz",
}
_TYPES: Final = ("date", "timestamp", "timestamp_ltz", "timestamp_ntz")
"""How Spark spells them; sqlglot knows the names of other dialects too."""


def _parse_where(text: str) -> Where:
    if not text.strip():
        raise ValueError("it is empty")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("it has half of a character, a surrogate") from error
    texts: list[str] = []
    plain = _QUOTED.sub(lambda match: _set_aside(match, texts), text)
    try:
        parsed, tokens = _parse_condition(plain)
        root = _Reader(texts).read(parsed)
        _Order().check(tokens)
        return Where(text, root)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _parse_condition(text: str) -> tuple[Any, list[Any]]:
    """Return sqlglot's tree of a condition, and its tokens."""
    try:
        import sqlglot
        from sqlglot import expressions
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sqlglot":
            raise
        raise MissingExtra.create("option 'where'", "sqlglot", "where", "the driver") from error
    try:
        parsed = sqlglot.parse_one(text, read="spark", into=expressions.Condition)
        return parsed, list(sqlglot.tokenize(text, read="spark"))
    except RecursionError:
        raise
    except Exception as error:
        # Some texts end in an IndexError, and not in an error of sqlglot's own.
        raise ValueError(_describe_syntax_error(error)) from error


WHERE: Final = Parser(_parse_where, f"an SQL condition: {ACCEPTS}")


def _set_aside(match: re.Match[str], texts: list[str]) -> str:
    """Replace a text by its index in `texts`: sqlglot does not read all escapes as Spark does."""
    kind = match.lastgroup
    if kind == "other":
        raise ValueError(f"it has {match[0]!r} outside of quotes: write such a name in `...`")
    if kind in _REFUSED:
        raise ValueError(f"it has {_REFUSED[kind]}")
    if kind != "text":
        return match[0]
    texts.append(_unescape(match[0][1:-1]))
    return f"'t{len(texts) - 1}'"


def _unescape(text: str) -> str:
    """Read the text between quotes as Spark reads it."""

    def replace(match: re.Match[str]) -> str:
        letter = match[0][1:]
        if match[0] == "''":
            return "'"
        if letter in _KEPT_ESCAPES:
            return match[0]
        if letter not in _ESCAPES:
            raise ValueError(f"the escape \\{letter} in a text is not supported")
        return _ESCAPES[letter]

    return re.sub(r"\\.|''", replace, text, flags=re.DOTALL)


def _describe_syntax_error(error: Exception) -> str:
    """Say where the text is not a condition, if the parser tells it."""
    for entry in getattr(error, "errors", []):
        if entry.get("highlight"):
            return f"it is not a condition of SQL: unexpected '{entry['highlight']}'"
    return "it is not a condition of SQL"


class _Order:
    """Refuses an order of tokens that sqlglot accepts, and Spark refuses or reads differently.

    sqlglot forgives much: it drops a `+`, does without the `and` of `between`, knows words of other
    dialects such as `isnull` (to Spark, `b isnull` is `b` by another name), and itself puts
    parentheses around a condition inside another one.
    """

    def __init__(self) -> None:
        self._is_after_operand = False
        self._before = ""
        self._predicates: list[str] = [""]
        """For each open parenthesis, the predicate since its last `and`, `or` or comma."""

    def check(self, tokens: Iterable[Any]) -> None:
        """Check all tokens of a condition that has been read."""
        pairs = [(token.token_type.name, token.text) for token in tokens]
        for (name, text), (following, _) in zip(pairs, [*pairs[1:], ("", "")], strict=True):
            take = self._take_operator if self._is_after_operand else self._take_operand
            self._before = take(name, text, following)

    def _take_operand(self, name: str, text: str, following: str) -> str:
        if name == "L_PAREN":
            self._predicates.append("")
        elif name in ("COMMA", "R_PAREN"):
            raise ValueError(f"it has '{text}' where a column or literal should be")
        elif name == "PLUS" and following not in ("NUMBER", "DOT"):
            raise ValueError(f"it has {_OTHERS['add']}")
        elif name == "NOT" and self._before not in _BEFORE_NOT:
            raise ValueError(_NEEDS_PARENTHESES)
        elif name not in _PREFIXES or self._before == "DOT":
            is_type = name in _TYPED and following == "STRING"
            if is_type and text.lower() not in _TYPES:
                raise ValueError(f"it has the type '{text}' before a text")
            self._is_after_operand = not is_type
        return name

    def _take_operator(self, name: str, text: str, following: str) -> str:
        if name == "R_PAREN":
            self._predicates.pop()
            return name
        if text.lower() == "not" and following in ("IN", "BETWEEN", "LIKE"):
            return name
        self._is_after_operand = False
        if name == "AND" and self._predicates[-1] == "BETWEEN":
            self._predicates[-1] = name
            return "BETWEEN"
        if name in ("AND", "OR", "COMMA"):
            self._predicates[-1] = ""
        elif text.lower() in _PREDICATES.get(name, ()):
            if self._predicates[-1]:
                raise ValueError(_NEEDS_PARENTHESES)
            self._predicates[-1] = name
        elif name not in ("ESCAPE", "DOT", "DCOLON"):
            raise ValueError(f"it has '{text}' where an operator should be")
        return name


class _Reader:
    """Reads sqlglot's tree; `texts` are the texts that `_set_aside` replaced."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def read(self, node: Any) -> Node:
        """Read a condition."""
        match node.key:
            case "paren":
                return self.read(*_take_arguments(node, "this"))
            case "and" | "or":
                return self._read_chain(node)
            case "not":
                return _negate(self.read(*_take_arguments(node, "this")))
            case "between":
                return self._read_between(node)
            case "in":
                return self._read_in(node)
            case "like":
                return self._read_like(node)
            case "escape":
                return self._read_escape(node)
            case "is":
                return self._read_is(node)
            case key if key in _COMPARISONS:
                return Operation(_COMPARISONS[key], self._read_pair(node))
            case key if key in _NEGATED:
                return _negate(Operation(_NEGATED[key], self._read_pair(node)))
        return self._read_operand(node)

    def _read_pair(self, node: Any) -> tuple[Node, ...]:
        return tuple(map(self._read_operand, _take_arguments(node, "this", "expression")))

    def _read_chain(self, root: Any) -> Operation:
        """Read `and` or `or`, without recursion along a long chain."""
        inputs, waiting = [], [root]
        while waiting:
            node = waiting.pop()
            if node.key == root.key:
                waiting += reversed(_take_arguments(node, "this", "expression"))
            else:
                inputs.append(self.read(node))
        return Operation(root.key, tuple(inputs))

    def _read_between(self, node: Any) -> Node:
        operand, low, high = map(self._read_operand, _take_arguments(node, "this", "low", "high"))
        bounds = (Operation(">=", (operand, low)), Operation("<=", (operand, high)))
        return Operation("and", bounds)

    def _read_in(self, node: Any) -> Node:
        if node.args.get("query") is not None:
            raise _refuse(node.args["query"])
        operand, items = _take_arguments(node, "this", "expressions")
        values = tuple(map(self._read_operand, items))
        if not values or not all(isinstance(value, Constant) for value in values):
            raise ValueError("a list of 'in' has something else than literals")
        return Operation("in", (self._read_operand(operand), *values))

    def _read_escape(self, node: Any) -> Node:
        like, escape = _take_arguments(node, "this", "expression")
        if like.key != "like":
            raise _refuse(like)
        return self._read_like(like, escape)

    def _read_like(self, node: Any, escape: Any = None) -> Node:
        negated = bool(node.args.get("negate"))
        operand, pattern = _take_arguments(node, "this", "expression", ignored=("negate",))
        for text_node in (pattern, escape):
            if text_node is not None and (
                text_node.key != "literal" or not text_node.args["is_string"]
            ):
                raise ValueError("'like' needs a text as its pattern and as its escape")
        character = Constant("string", "\\") if escape is None else self._read_operand(escape)
        texts = (self._read_operand(pattern), character)
        like = Operation("like", (self._read_operand(operand), *texts))
        return _negate(like) if negated else like

    def _read_is(self, node: Any) -> Node:
        operand, value = _take_arguments(node, "this", "expression")
        inputs = (self._read_operand(operand),)
        if value.key == "null":
            return Operation("is null", inputs)
        if value.key == "boolean":
            return Operation(f"is {str(value.args['this']).lower()}", inputs)
        raise _refuse(value)

    def _read_operand(self, node: Any) -> Node:
        match node.key:
            case "paren":
                return self.read(*_take_arguments(node, "this"))
            case "column" | "dot" | "identifier":
                return Name(_read_name(node))
            case "null":
                return Constant("null")
            case "boolean":
                return Constant("boolean", bool(node.args["this"]))
            case "literal" if node.args["is_string"]:
                return Constant("string", self._take_text(node))
            case "hexstring":
                return Constant("binary", _read_hex(node.args["this"]))
            case "literal" | "neg":
                return _read_number(node)
            case "cast" | "trycast":
                return self._read_typed(node)
        if node.key in _CONDITIONS:
            raise ValueError(_NEEDS_PARENTHESES)
        raise _refuse(node)

    def _read_typed(self, node: Any) -> Constant:
        """Read a literal with its type: a text after `date`, or a number with a suffix."""
        value, kind = node.args["this"], _name_type(node)
        if kind in _TYPED and value.key == "literal" and value.args["is_string"]:
            return Constant(_TYPED[kind], self._take_text(value))
        return _read_number(node)

    def _take_text(self, node: Any) -> str:
        """Return the text that `_set_aside` replaced."""
        return self._texts[int(node.args["this"].removeprefix("t"))]


def _take_arguments(node: Any, *names: str, ignored: tuple[str, ...] = ()) -> list[Any]:
    """Return the arguments of sqlglot's node; refuse it if it has others."""
    accepted = (*names, *ignored)
    others = [name for name, value in node.args.items() if value and name not in accepted]
    if others or any(node.args.get(name) is None for name in names):
        detail = f" with {', '.join(others)}" if others else ""
        raise ValueError(f"it has '{node.key}'{detail}")
    return [node.args[name] for name in names]


def _negate(node: Node) -> Operation:
    return Operation("not", (node,))


def _refuse(node: Any) -> ValueError:
    name = _OTHERS.get(node.key)
    if name is None:
        called = node.name if node.key == "anonymous" else node.key
        name = f"'{called}', a function or another operator"
    return ValueError(f"it has {name}")


def _read_name(node: Any) -> tuple[str, ...]:
    if node.key == "identifier":
        return (node.args["this"],)
    if node.key == "dot":
        left, right = _take_arguments(node, "this", "expression")
        if right.key != "identifier":
            raise _refuse(right)
        return (*_read_name(left), *_read_name(right))
    if node.key != "column" or node.args["this"].key != "identifier":
        raise _refuse(node.args["this"] if node.key == "column" else node)
    nodes = (node.args.get(name) for name in ("catalog", "db", "table", "this"))
    return tuple(name_node.args["this"] for name_node in nodes if name_node is not None)


def _read_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ValueError(f"X'{text}' is not made of pairs of hexadecimal digits") from error


def _name_type(node: Any) -> str:
    kind = node.args["to"].args["this"]
    return str(getattr(kind, "name", kind))


def _read_number(node: Any) -> Constant:
    negative = node.key == "neg"
    if negative:
        (node,) = _take_arguments(node, "this")
    suffix = ""
    if node.key in ("cast", "trycast"):
        # sqlglot reads the suffix of 5L or 1.5BD as a cast.
        suffix = _name_type(node)
        node = node.args["this"]
    if node.key in ("column", "paren"):
        raise ValueError(f"it has {_OTHERS['neg']}")
    if node.key != "literal":
        raise _refuse(node)
    text = ("-" if negative else "") + node.args["this"]
    if not re.fullmatch(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", text):
        raise ValueError("it has a text where a number should be")
    return _type_number(text, suffix)


def _type_number(text: str, suffix: str) -> Constant:
    """Give a number the type that Spark gives it.

    >>> _type_number("5", ""), _type_number("2.50", "")
    (Constant(kind='int', value=5), Constant(kind='decimal', value=Decimal('2.50')))
    """
    name = {"BIGINT": "bigint", "SMALLINT": "smallint", "TINYINT": "tinyint"}.get(suffix)
    if suffix in ("DOUBLE", "FLOAT") or (not suffix and "e" in text.lower()):
        kind = "float" if suffix == "FLOAT" else "double"
        # Arrow rounds a text to a float once; Python would round to a double before.
        is_float = kind == "float"
        number = pa.scalar(text).cast(pa.float32()).as_py() if is_float else float(text)
        if not math.isfinite(number):
            raise ValueError(f"{text} is outside of the range of {kind}")
        return Constant(kind, number)
    if name is None and (suffix == "DECIMAL" or "." in text):
        return _check_decimal(Decimal(text), text)
    if not re.fullmatch(r"-?[0-9]+", text):
        raise ValueError(f"{text} is not a whole number")
    integer = int(text)
    for kind in [name] if name else ["int", "bigint"]:
        if -(2 ** (_INTEGRALS[kind] - 1)) <= integer < 2 ** (_INTEGRALS[kind] - 1):
            return Constant(kind, integer)
    if name:
        raise ValueError(f"{text} is outside of the range of {name}")
    return _check_decimal(Decimal(integer), text)


def _check_decimal(value: Decimal, text: str) -> Constant:
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    if exponent > 0 and value.adjusted() < MAX_DIGITS:
        # As in Spark, 1E5 is 100000.
        value, exponent = Decimal(int(value)), 0
    digits = max(len(value.as_tuple().digits), -exponent)
    if exponent > 0 or digits > MAX_DIGITS:
        raise ValueError(f"{text} has more than {MAX_DIGITS} digits")
    return Constant("decimal", value)
