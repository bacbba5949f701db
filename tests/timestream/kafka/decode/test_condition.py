"""Option `where` over columns: what it finds, and what it refuses for a schema."""

import pickle
import random

import numpy as np
import pyarrow as pa
import pytest
from timestream.builders import INSTANT, options, projection
from timestream.conditions import COLUMNS, random_condition, random_table

from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.decode.condition import resolve_condition
from pyspark_timestream.kafka.options.where import WHERE

KINDS = {name: kind for name, (kind, _) in COLUMNS.items()}


def found(text, **columns):
    """The rows that meet a condition."""
    table = pa.table(columns)
    kinds = dict(zip(table.schema.names, table.schema.types, strict=True))
    condition = pickle.loads(pickle.dumps(resolve_condition(WHERE.parse(text), kinds, {})))
    read = lambda name: table[name].combine_chunks()  # noqa: E731
    return np.flatnonzero(condition.find(read, len(table))).tolist()


NAN, INF = float("nan"), float("inf")
DOUBLES = pa.array([0.0, -0.0, 1.5, NAN, INF, None])
TEXTS = pa.array(["a", "A", "a%b", "a_b", "axb", "", None, "a\nb", "é", "😀"])


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("d = 0", [0, 1]),
        ("d <> 0", [2, 3, 4]),
        ("d > 1", [2, 3, 4]),
        ("d >= 1.5", [2, 3, 4]),
        ("d <= 1e300", [0, 1, 2]),
        ("d = d", [0, 1, 2, 3, 4]),
        ("d < d", []),
        ("d <=> null", [5]),
        ("d in (0.0, 1.5)", [0, 1, 2]),
        ("d in (-0.0D)", [0, 1]),
        ("d not in (0, null)", []),
        ("d in (0, null) or d is null", [0, 1, 5]),
        ("not (d > 1) ", [0, 1]),
        ("(d > 1) is not true", [0, 1, 5]),
        ("d > 1 or null", [2, 3, 4]),
        ("d > 1 and null", []),
        ("true", [0, 1, 2, 3, 4, 5]),
        ("false", []),
    ],
)
def test_numbers_are_compared_as_in_spark(text, rows):
    assert found(text, d=DOUBLES) == rows


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("s like 'a%'", [0, 2, 3, 4, 7]),
        ("s like 'a_b'", [2, 3, 4, 7]),
        (r"s like 'a\_b'", [3]),
        (r"s like 'a\%b'", [2]),
        ("s like 'a!%b' escape '!'", [2]),
        ("s like '%b'", [2, 3, 4, 7]),
        ("s like '_'", [0, 1, 8, 9]),
        ("s like ''", [5]),
        ("s like '%'", [0, 1, 2, 3, 4, 5, 7, 8, 9]),
        ("s not like '%'", []),
        ("s like 'a.b'", []),
        ("s > 'é'", [9]),
        ("s in ('a', '', 'b')", [0, 5]),
    ],
)
def test_texts_are_compared_as_in_spark(text, rows):
    assert found(text, s=TEXTS) == rows


def test_a_decimal_is_compared_without_rounding():
    cents = pa.array(["0.10", "0.11", None], pa.string()).cast(pa.decimal128(10, 2))
    assert found("c = 0.1 or c > 0.105", c=cents) == [0, 1]
    assert found("c > 0", c=cents) == [0, 1]
    assert found("c in (0.1, 5)", c=cents) == [0]
    assert found("c = 0.1D", c=cents) == [0]


def test_instants_are_compared_to_the_microsecond():
    times = pa.array([0, 1, None], pa.int64()).cast(INSTANT)
    assert found("t > '1970-01-01T01:00:00+01:00'", t=times) == [1]
    assert found("t between '1970-01-01 00:00:00Z' and '1970-01-01T00:00:00.0Z'", t=times) == [0]


def test_a_condition_may_name_any_microsecond_of_the_calendar():
    """The last second's too, which comes after the end of time, but not after Spark's times."""
    last_us = 253_402_300_799_000_000
    times = pa.array([last_us, last_us + 500_000, last_us + 999_999], pa.int64())
    zoned, plain = times.cast(INSTANT), times.cast(pa.timestamp("us"))
    assert found("t <= '9999-12-31T23:59:59.5Z'", t=zoned) == [0, 1]
    assert found("t = '9999-12-31 22:59:59.999999-01:00'", t=zoned) == [2]
    assert found("t > timestamp_ntz'9999-12-31T23:59:59.5'", t=plain) == [2]
    assert found("t > '0001-01-01T00:00:00.000001Z'", t=zoned) == [0, 1, 2]


def test_a_field_of_a_null_struct_is_null():
    structs = pa.array([{"X": 1}, None, {"X": None}], pa.struct([("X", pa.int32())]))
    assert found("t.x = 1", t=structs) == [0]
    assert found("T.x is null", t=structs) == [1, 2]
    assert found("t.x is null", t=structs.slice(1)) == [0, 1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nothing = 1", "there is no column 'nothing' among b, b2, .*name a column"),
        ("mixed.name = 1", "write `mixed.name` in backquotes"),
        ("st.z = 1", "there is no column 'st.z'"),
        ("arr.x = 1", "there is no column 'arr.x'"),
        ("s", "'s' is string, and no condition"),
        ("s and b", "'s' is string, and no condition"),
        ("i32 = '5'", "int is compared with string.*write the number without quotes: 5"),
        ("i32 = ' 5'", "int is compared with string.*without quotes: 5$"),
        ("i32 = 'five'", "write a number without quotes, or compare a column of strings"),
        ("i32 = '1.5F'", "write a number without quotes, or compare a column of strings"),
        ("i32 = 1.1F", "float is compared with int.*write the number as a double, 1.1D$"),
        ("i64 in (-0.1F, 2)", "float is compared with bigint.*as a double, -0.1D$"),
        ("bin = 'a'", "binary is compared with string.*X'61'"),
        ("b = 1", "boolean is compared with int"),
        ("s = s2 and s > i32", "string is compared with int"),
        ("s > date'2024-01-01'", "string is compared with date"),
        ("ts > '2024-01-01'", "'2024-01-01' is not a timestamp.*a zone"),
        ("ts > timestamp'2024-01-01 00:00:00'", "is not a timestamp.*a zone"),
        ("ts > '2024-02-30T00:00:00Z'", "is not a timestamp.*that calendar and clock have"),
        ("ts > '9999-12-31T23:59:59-00:01'", "is not a timestamp.*the years 1 to 9999 of UTC"),
        ("ntz > '0000-01-01'", "is not a timestamp_ntz.*the years 1 to 9999"),
        ("day > '2023-02-29'", "is not a date.*that calendar and clock have"),
        ("null", "it is null"),
        ("(null)", "it is null"),
        ("ts > '2024-01-01T00:00Z'", "is not a timestamp.*with all digits"),
        ("ts > timestamp'2024-01-01 00:00+01:00'", "is not a timestamp.*with all digits"),
        ("ts > '2024-01-01T00:00:00.1234567Z'", "is not a timestamp"),
        ("ts > date'2024-01-01'", "with date.*such as timestamp'2024-05-01T08:30:00Z'"),
        ("day <= timestamp'2024-01-01T00:00:00Z'", "with timestamp.*such as date'2024-05-01'"),
        ("ts > ntz", "timestamp is compared with timestamp_ntz"),
        ("ts in ('2024-01-01T00:00:00Z')", "with string.*such as timestamp'2024-05-01T08:30:00Z'"),
        ("day > '2024'", "'2024' is not a date"),
        ("day in ('2024-01-01')", "with string.*such as date'2024-05-01'"),
        ("ntz in ('2024-01-01')", "with string.*such as timestamp_ntz'2024-05-01T08:30:00'"),
        ("f = i32", "float is compared with int"),
        ("f = 16777217", "float is compared with int"),
        ("i64 < 99999999999999999999", "is outside of bigint"),
        ("big = i64", "takes 50 digits"),
        ("big in (5)", "takes 40 digits"),
        ("arr = arr", "is compared"),
        ("arr = null", "is not compared"),
        ("st in (null)", "is not compared"),
        ("i32 like '5'", "'i32', which is not a column of strings"),
        (r"s like 'a\\b'", "is not before %, _ or itself"),
        ("s like 'a!b' escape '!'", "the escape ! is not before"),
        ("s like 'a!' escape '!'", "the escape ! is not before"),
        ("s like 'a' escape '!!'", "not one character"),
        ("1 in (1)", "'in' is not behind a column"),
    ],
)
def test_what_a_schema_does_not_allow_is_refused_by_its_name(text, problem):
    with pytest.raises((OptionError, ValueError), match=problem):
        resolve_condition(WHERE.parse(text), KINDS, {})


def test_names_that_differ_in_case_alone_are_told_apart_by_their_spelling():
    kinds = {"Name": pa.int32(), "name": pa.string()}
    assert resolve_condition(WHERE.parse("name = 'x' and Name = 1"), kinds, {}).columns == (
        "name",
        "Name",
    )
    with pytest.raises(OptionError, match="'NAME' may be Name or name"):
        resolve_condition(WHERE.parse("NAME = 1"), kinds, {})


def test_a_condition_finds_the_same_rows_in_any_split():
    for seed in range(40):
        chance = random.Random(seed)
        table = random_table(chance, 30)
        try:
            condition = resolve_condition(WHERE.parse(random_condition(chance)), KINDS, {})
        except OptionError:
            continue
        whole = condition.find(lambda name, table=table: table[name].combine_chunks(), 30)
        cut = chance.randrange(31)
        pieces = [table.slice(0, cut), table.slice(cut)]
        parts = [
            condition.find(lambda name, piece=piece: piece[name].combine_chunks(), len(piece))
            for piece in pieces
        ]
        assert np.concatenate(parts).tolist() == whole.tolist()


CTI = ("cti", INSTANT)


def test_metadata_is_named_without_being_a_column():
    given = options(
        where="Offset > 5 and violation is null", ctiFrequency="1", violationPolicy="flag"
    )
    wanted = projection(given, ("violation", pa.string()), ("key", pa.binary()), CTI)
    assert wanted.condition.columns == ("offset", "violation")
    assert wanted.schema.names == ["violation", "key", "cti"]


def test_metadata_that_no_option_fills_is_no_column():
    given = options(where="violation is null", ctiFrequency="1")
    with pytest.raises(OptionError, match="there is no column 'violation'"):
        projection(given, ("key", pa.binary()), CTI)


def test_the_cti_is_refused_since_its_rows_pass():
    given = options(where="cti is null", ctiFrequency="1")
    with pytest.raises(OptionError, match=r"'cti'.*leave it out: CTI rows pass"):
        projection(given, ("key", pa.binary()), CTI)


def test_a_schema_column_comes_before_metadata_of_the_same_letters():
    given = options(where="offset = 'x'", valueFormat="json")
    wanted = projection(given, ("Offset", pa.string()))
    assert wanted.condition.columns == ("Offset",)
