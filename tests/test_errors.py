"""Every exception of both packages composes its text and survives pickling."""

import pickle

import pytest

from pyspark_timestream import OptionError
from pyspark_timestream import errors as timestream_errors
from pyspark_timestream.errors import TimestreamError
from pyspark_tseries import errors as tseries_errors
from pyspark_tseries.errors import TseriesError

COMPOSED = "it is empty; accepted: a name; next step: set it"
LEAVES = [
    getattr(module, name)
    for module, base in ((timestream_errors, TimestreamError), (tseries_errors, TseriesError))
    for name in vars(module)
    if isinstance(getattr(module, name), type)
    and issubclass(getattr(module, name), base)
    and getattr(module, name) is not base
]


def unpickle(error):
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_error_with_accepted_values_and_a_step_composes_its_text(kind):
    assert str(kind("it is empty", "a name", "set it")) == COMPOSED
    assert str(kind("it is empty", next_step="set it")) == "it is empty; next step: set it"
    assert str(kind("it is empty")) == "it is empty"


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_a_name_of_any_producer_ends_no_line_and_moves_no_cursor(kind):
    error = kind("series 'a\n\x1b[2J\u202e' is empty", "a\rname", "set\x9bit")
    assert str(error).isprintable()
    assert "'a\\n\\x1b[2J\\u202e'" in str(error)


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_error_pickled_by_spark_keeps_class_and_text(kind):
    again = unpickle(kind("it is empty", "a name", "set it"))
    assert (type(again), str(again)) == (kind, COMPOSED)


@pytest.mark.parametrize("list_last", [False, True])
def test_option_error_pickled_by_spark_keeps_name_text_and_notes(list_last):
    error = OptionError("topic", "it is empty", "a name", "set it", list_last=list_last)
    error.add_note("seen by a task")
    again = unpickle(error)
    assert type(again) is OptionError
    assert (str(again), vars(again)) == (str(error), vars(error))
    values = again.name, again.problem, again.accepts, again.next_step
    assert values == ("topic", "it is empty", "a name", "set it")
    assert again.__notes__ == ["seen by a task"]


@pytest.mark.parametrize("base", [TimestreamError, TseriesError])
def test_base_class_raised_itself_is_refused(base):
    with pytest.raises(TypeError, match="raise"):
        base("it is empty")


@pytest.mark.parametrize(
    "address",
    ["s3://key:hu/sh@bucket/a", "http://hush@registry", "https://me:hush@h:1/x", "a://:hush@b"],
)
def test_no_message_shows_the_login_of_an_address(address):
    errors = [
        OptionError("path", f"cannot read '{address}'", f"not {address}", f"see {address}"),
        timestream_errors.DataLost(f"at {address}"),
        timestream_errors.DataLost(f"at {address}").locate("topic 't'"),
        tseries_errors.UnusableStore(f"'{address}' is none", None, address),
    ]
    for error in errors:
        text = f"{error} {vars(error)}"
        assert "hu" not in text.replace("[hidden]", ""), text
        assert address.rpartition("@")[2] in text
