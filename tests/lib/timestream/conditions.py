"""Random columns of every type, and random conditions over them as users write them."""

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa

UTC = dt.UTC
_DOUBLES = [0.0, -0.0, 1.0, 1.5, -2.25, math.nan, math.inf, -math.inf, 1e308, 5e-324, 0.1, 2.0**53]
_FLOATS = [float(np.float32(each)) for each in (0, -0.0, 1, 1.5, 0.1, math.nan, math.inf, 16777216)]
_TEXTS = ["", "a", "ab", "abc", "A", "é", "%", "_", "a%b", "a_b", "\\", "a\nb", "😀", "\uffee", "5"]
_TIMES = [
    dt.datetime(2024, 1, 1, tzinfo=UTC),
    dt.datetime(2024, 5, 1, 8, 30, 0, 1, tzinfo=UTC),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    dt.datetime(1, 1, 1, tzinfo=UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
]
_LOCAL = [each.replace(tzinfo=None) for each in _TIMES]
_PLACES = [Decimal(each) for each in ("0.00", "1.00", "1.50", "-2.25", "99.99", "0.01")]
_LONG = [Decimal("0.1"), Decimal("1.5"), Decimal("12345678.901234567890123456789012345678")]

COLUMNS = {
    "b": (pa.bool_(), [True, False]),
    "b2": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [0, 1, -1, 127, -128, 5]),
    "i16": (pa.int16(), [0, 1, 5, 32767]),
    "i32": (pa.int32(), [0, 1, 2, 5, -7, 2**31 - 1, 16777217]),
    "i64": (pa.int64(), [0, 1, 5, 2**53 + 1, 2**53, 2**63 - 1, -(2**63)]),
    "f": (pa.float32(), _FLOATS),
    "d": (pa.float64(), _DOUBLES),
    "d2": (pa.float64(), _DOUBLES),
    "dec": (pa.decimal128(10, 2), _PLACES),
    "dec5": (pa.decimal128(20, 5), _PLACES),
    "big": (pa.decimal128(38, 30), _LONG),
    "s": (pa.string(), _TEXTS),
    "s2": (pa.string(), _TEXTS),
    "bin": (pa.binary(), [b"", b"a", b"\xff", b"\x80", b"ab"]),
    "ts": (pa.timestamp("us", "UTC"), _TIMES),
    "ts2": (pa.timestamp("us", "UTC"), _TIMES),
    "ntz": (pa.timestamp("us"), _LOCAL),
    "day": (pa.date32(), [dt.date(2024, 1, 1), dt.date(1970, 1, 1), dt.date(1, 1, 1)]),
    "st": (
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
        [{"x": 1, "y": "a"}, {"x": None, "y": "b"}, {"x": 5, "y": None}],
    ),
    "Mixed.Name": (pa.int32(), [1, 2, 3]),
    "arr": (pa.list_(pa.int32()), [[1], [], [2, 3]]),
}
"""Name -> the type, and values worth comparing."""

_NUMBERS = [
    "0",
    "1",
    "5",
    "-1",
    "2147483648",
    "9223372036854775807",
    "-9223372036854775808",
    "99999999999999999999",
    "1.5",
    "-2.25",
    "0.10",
    "3.00",
    "1e0",
    "1.5D",
    "0.1D",
    "0.1F",
    "1.5F",
    "5L",
    "5Y",
    "5S",
    "1.5BD",
    "16777217",
    "16777216",
    "-0.0D",
    "-0.0",
    "0e0",
    "null",
    "12345678.901234567890123456789012345678",
]
_QUOTED = ["''", "'a'", "'A'", "'é'", "'it''s'", r"'it\'s'", r"'a\nb'", r"'\\'", r"'\%'", "'5'"]
_PATTERNS = [
    *("''", "'a'", "'a%'", "'%b'", "'%a%'", "'_'", "'a_'", "'%'", "'%%'", "'a%b'", r"'a\_b'"),
    *(r"'a\%b'", r"'10\%'", r"'\\\\'", "'__'", r"'%\n%'", "'A%'", "'a.b'", "'%_%b'", "'[a]'"),
    *("'a!%b' escape '!'", "'a!_b' escape '!'", "'!!' escape '!'", "'é'", "'_é_'", "'😀'", "'%😀'"),
]
_GROUPS = [
    (
        [
            "i8",
            "i16",
            "i32",
            "i64",
            "I32",
            "`mixed.name`",
            "st.x",
            "f",
            "d",
            "d2",
            "dec",
            "dec5",
            "big",
        ],
        _NUMBERS,
    ),
    (["s", "s2", "st.Y"], [*_QUOTED, "null", "'\uffee'", "'😀'"]),
    (["b", "b2"], ["true", "false", "null"]),
    (
        ["ts", "ts2"],
        [
            "timestamp'2024-01-01T00:00:00Z'",
            "timestamp_ltz'0001-01-01T00:00:00Z'",
            "timestamp'2024-01-01 01:00:00+01:00'",
            "'2024-05-01 10:30:00.000001+02:00'",
            "'9999-12-31T23:59:59Z'",
            "null",
        ],
    ),
    (
        ["ntz"],
        [
            "timestamp_ntz'2024-01-01 00:00:00'",
            "'1969-12-31T23:59:59.999999'",
            "'2024-01-01 00:00'",
            "null",
        ],
    ),
    (["day"], ["'2024-01-01'", "date'1970-01-01'", "null"]),
    (["bin"], ["X'61'", "X'ff'", "X''", "null"]),
]
"""Columns that are comparable, and literals that are with them."""

_COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=", "<=>", "==")
_TRUTHS = ("true", "false", "null", "unknown")


def random_table(random, rows):
    """Rows of all COLUMNS, with nulls."""
    return pa.table(
        {
            name: pa.array(
                [random.choice(values) if random.random() < 0.85 else None for _ in range(rows)],
                kind,
            )
            for name, (kind, values) in COLUMNS.items()
        }
    )


def random_condition(random, depth=3):
    """A text; a few compare what is refused."""
    if depth == 0 or random.random() < 0.35:
        return _comparison(random)
    first = random_condition(random, depth - 1)
    match random.choices(("and", "or", "not", "("), (8, 7, 3, 2))[0]:
        case "not":
            return f"{random.choice(('not ', 'NOT ', '!'))}{_comparison(random)}"
        case "(":
            return f"({first})"
        case joint:
            return f"{first} {joint} {random_condition(random, depth - 1)}"


def _comparison(random):
    columns, literals = random.choices(_GROUPS, (6, 3, 2, 2, 1, 1, 1))[0]
    column, negated = random.choice(columns), random.choice(("", "not "))

    def operand():
        return random.choice(columns if random.random() < 0.55 else literals)

    match random.choices(range(7), (32, 10, 18, 10, 10, 4, 6))[0]:
        case 0:
            return f"{operand()} {random.choice(_COMPARISONS)} {operand()}"
        case 1:
            return f"{column} {negated}between {operand()} and {operand()}"
        case 2:
            some = [random.choice(literals) for _ in range(random.choice((1, 2, 3, 14)))]
            return f"{column} {negated}in ({', '.join(some)})"
        case 3:
            column = random.choice(_GROUPS[1][0])
            return f"{column} {negated}like {random.choice(_PATTERNS)}"
        case 4:
            return f"{random.choice((*columns, 'arr', 'st'))} is {negated}null"
        case 5:
            return random.choice(("b", "b2", "true", "false", "null"))
    inner = random_condition(random, 1)
    if random.random() < 0.5:
        return f"({inner}) is {negated}{random.choice(_TRUTHS)}"
    return f"({inner}) {random.choice(_COMPARISONS)} ({random_condition(random, 1)})"
