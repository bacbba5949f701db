"""The text of option `where`: what is read, and what is refused by its name."""

import pickle
import subprocess
import sys
from decimal import Decimal

import pytest
from timestream.builders import options

from pyspark_timestream.errors import MissingExtra, OptionError
from pyspark_timestream.kafka.options.where import WHERE, Constant, Name, Operation

A = Name(("a",))


def root(text):
    return WHERE.parse(text).root


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("5", "int", 5),
        ("+5", "int", 5),
        ("-2147483648", "int", -(2**31)),
        ("2147483648", "bigint", 2**31),
        ("5L", "bigint", 5),
        ("5s", "smallint", 5),
        ("-128Y", "tinyint", -128),
        ("99999999999999999999", "decimal", Decimal("99999999999999999999")),
        ("1.50", "decimal", Decimal("1.50")),
        (".5", "decimal", Decimal("0.5")),
        ("5.", "decimal", Decimal(5)),
        ("1.5BD", "decimal", Decimal("1.5")),
        ("1E5BD", "decimal", Decimal(100000)),
        ("-1.5E-3BD", "decimal", Decimal("-0.0015")),
        ("1e3", "double", 1000.0),
        ("1.5D", "double", 1.5),
        ("0.1F", "float", 0.10000000149011612),
        ("'it''s'", "string", "it's"),
        (r"'\n\t\\\'\"\%\_'", "string", "\n\t\\'\"\\%\\_"),
        ("'-- no /* comment'", "string", "-- no /* comment"),
        ("X'00Ff'", "binary", b"\x00\xff"),
        ("null", "null", None),
        ("TRUE", "boolean", True),
        ("date'2024-01-01'", "date", "2024-01-01"),
        ("timestamp '2024-01-01 00:00:00Z'", "timestamp", "2024-01-01 00:00:00Z"),
        ("timestamp_ltz'2024-01-01 00:00:00Z'", "timestamp", "2024-01-01 00:00:00Z"),
        ("timestamp_ntz'2024-01-01 00:00:00'", "timestamp_ntz", "2024-01-01 00:00:00"),
    ],
)
def test_a_literal_has_the_type_that_spark_gives_it(text, kind, value):
    assert root(f"a = {text}") == Operation("=", (A, Constant(kind, value)))


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("a = 1 or b = 2 and not c = 3", "a = 1 or (b = 2 and (not (c = 3)))"),
        ("! a = 1 and b", "(not (a = 1)) and b"),
        ("not a between 1 and 2 or b", "(not (a >= 1 and a <= 2)) or b"),
        ("a not in (1, null)", "not (a in (1, null))"),
        ("a <> 1", "not (a = 1)"),
        ("a == 1", "a = 1"),
        ("a is distinct from 1", "not (a <=> 1)"),
        ("a is not unknown", "not (a is null)"),
        ("a not like 'x'", r"not (a like 'x' escape '\\')"),
        ("A\n=\t1", "A = 1"),
        ("`é` = 'é'", "(`é`) = ('é')"),
        (
            "not a between +.5 and -1 and st.is in (1, 2)",
            "(not (a between .5 and -1)) and (st.is in (1, 2))",
        ),
        ("a.`in` is not distinct from b or not c", "(a.`in` <=> b) or (not c)"),
        ("(a = b) <=> c and not not (d)", "((a = b) <=> c) and (not (not d))"),
    ],
)
def test_operators_bind_as_in_spark(text, other):
    assert root(text) == root(other)


def test_names_in_backquotes_are_literal_and_dots_lead_into_structs():
    assert root("`a.b`.`c``d`.e.f.g is null").inputs == (Name(("a.b", "c`d", "e", "f", "g")),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (" ", "it is empty"),
        ("a = ", "it is not a condition of SQL"),
        ("a = 1 limit 5", "unexpected 'limit'"),
        ("a = 'x", "it is not a condition of SQL"),
        ("where a = 1", "it is not a condition of SQL"),
        ("upper(a) = 'X'", "'upper', a function or another operator"),
        ("mine(a)", "'mine', a function or another operator"),
        ("current_date > b", "a function or another operator"),
        ("a + 1 > 2", r"arithmetic \(\+\)"),
        ("-a > 2", r"arithmetic \(-\)"),
        ("cast(a as int) = 1", "a cast"),
        ("a::int = 1", "a cast"),
        ("try_cast (a as int) = 1", "a cast"),
        ("a in (select 1)", "a subquery"),
        ("exists (select 1)", "a subquery"),
        ("a in (1, b)", "something else than literals"),
        ("a[0] = 1", "an item of an array"),
        ("a in (1, 5[)", "an item of an array"),
        ("a = {d '2024-01-01'}", "braces"),
        ("a = decimal'5'", "a text where a number should be"),
        ("a = - '5'", "a text where a number should be"),
        ("a in map(true)", "it is not a condition of SQL"),
        ("case when a then b end", "case"),
        ("a ilike 'x'", "ilike"),
        ("a rlike 'x'", "rlike"),
        ("a like any ('x', 'y')", "'like' needs a text"),
        ("a like b", "'like' needs a text"),
        ("a between symmetric 1 and 2", "'between' with symmetric"),
        ("(a, b) in ((1, 2))", "several columns"),
        ("a = b = c", "needs parentheses"),
        ("a = b < c", "needs parentheses"),
        ("a = 5 between 1 and 2", "needs parentheses"),
        ("a = not b", "needs parentheses"),
        ("a = b <=> c", "needs parentheses"),
        ("a <=> b <= c", "needs parentheses"),
        ("a is not true is null", "needs parentheses"),
        ("a not between 1 and 2 is true", "needs parentheses"),
        ("a is distinct from not b", "needs parentheses"),
        ("b isnull", "'isnull' where an operator should be"),
        ("not b notnull", "'notnull' where an operator should be"),
        ("b not null", "'not' where an operator should be"),
        ("a ! in (1)", "'!' where an operator should be"),
        ("s ~~ '5'", "'~~' where an operator should be"),
        ("a between 1 2", "'2' where an operator should be"),
        ("b;", "';' where an operator should be"),
        ("a = int 1", "'1' where an operator should be"),
        ("a in (1,)", r"'\)' where a column or literal should be"),
        ("+ s = '5'", r"arithmetic \(\+\)"),
        ("a = + (b)", r"arithmetic \(\+\)"),
        ("é = 1", "'é' outside of quotes"),
        ("a\u00a0= 1", r"'\\xa0' outside of quotes"),
        ('a = "x"', '" is a text or a name'),
        ("a = 'x' -- y", "a comment"),
        ("a = /* y */ 1", "a comment"),
        ("a = r'd'", "the letter r"),
        (r"a = '\d'", r"the escape \\d"),
        ("a = 'x' 'y'", "two texts side by side"),
        ("a = 0x1F", "hexadecimal"),
        ("a = X'1'", "pairs of hexadecimal"),
        ("a = 300Y", "300 is outside of the range of tinyint"),
        ("a = 1e400", "1e400 is outside of the range of double"),
        ("a = 1e39F", "is outside of the range of float"),
        (f"a = {'9' * 39}", "more than 38 digits"),
        ("a = 1E38BD", "1E38 has more than 38 digits"),
        ("a = 1E999999999BD", "1E999999999 has more than 38 digits"),
        ("a = timestamptz'2024-01-01T00:00:00Z'", "the type 'timestamptz' before a text"),
        ("a = Timestampntz'2024-01-01 00:00:00'", "the type 'Timestampntz' before a text"),
        ("a = timestampltz '2024-01-01T00:00:00Z'", "the type 'timestampltz' before a text"),
        ("a = :p", "a parameter"),
        ("a = ?", "a parameter"),
        ("*", r"\*"),
        ("kind = '\ud800'", "half of a character"),
        ("d < .5.5", "where a number should be"),
        ("(" * 3000 + "a" + ")" * 3000, "nested too deeply"),
    ],
)
def test_what_spark_may_read_otherwise_is_refused_by_its_name(text, problem):
    with pytest.raises(OptionError, match=f"option 'where': .*{problem}.*accepted: .*next step"):
        options(where=text)


@pytest.mark.parametrize("name", ["from", "values", "show", "when", "current_date", "if"])
def test_a_name_that_is_a_word_of_sql_is_advised_in_backquotes_and_read_so(name):
    with pytest.raises(OptionError, match=r"next step: .*a word of SQL.* in `\.\.\.`"):
        options(where=f"{name} = 1")
    assert root(f"`{name}` = 1").inputs[0] == Name((name,))


def test_a_long_chain_is_no_deep_one():
    chain = " or ".join(f"a = {number}" for number in range(3000))
    assert len(root(chain).inputs) == 3000


def test_the_option_pickles_without_its_parser():
    """Tasks get what the driver has parsed, and need no parser."""
    pickled = pickle.dumps(options(where="a in (1, 2.5) and s like 'x%'"))
    program = (
        "import pickle, sys; pickle.loads(sys.stdin.buffer.read());"
        "assert not any(name.startswith('sqlglot') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], input=pickled, check=True)


def test_a_missing_parser_is_told_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    with pytest.raises(
        MissingExtra, match=r"needs sqlglot.*pip install 'pyspark-timestream\[where"
    ):
        options(where="a = 1")
    options()
