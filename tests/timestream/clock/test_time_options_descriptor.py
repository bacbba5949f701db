"""FastScore's stream descriptors: its own example, every legal value, and every deviation."""

import json
from decimal import Decimal
from fractions import Fraction

import pytest

from pyspark_timestream.clock.time_options import (
    CARRIED_OPTIONS,
    JSON_TYPES,
    TimeOptions,
    load_descriptor,
    read_time_options,
)
from pyspark_timestream.core.instants import parse_instant
from pyspark_timestream.errors import OptionError

FASTSCORE = """{
  "Transport": {
    "Type": "time",
    "Period": 2.0   // seconds; not a "string"
  },
  "Schema": { "Type": "long", "logicalType": "timestamp-millis" }
}"""


def read(descriptor):
    text = descriptor if isinstance(descriptor, str) else json.dumps(descriptor)
    return read_time_options({"descriptor": text})


def transport(**keys):
    return {"Transport": {"Type": "time", **keys}}


def refusal(descriptor):
    with pytest.raises(OptionError) as refused:
        read(descriptor)
    message = str(refused.value)
    assert message.startswith("option 'descriptor': ")
    assert "; accepted: " in message
    assert "; next step: " in message
    return message


def test_fastscores_own_example_is_read():
    options = read(FASTSCORE)
    assert options == TimeOptions(descriptor=FASTSCORE, period=Fraction(2))


def test_the_shorthand_is_the_default_clock():
    text = '{"Transport": "time"}'
    assert read(text) == TimeOptions(descriptor=text)


@pytest.mark.parametrize("kind", ["time", "Time"])
def test_type_is_accepted_in_both_spellings(kind):
    assert read({"Transport": {"Type": kind}}).period == 1
    assert read({"Transport": kind}).period == 1


def test_a_file_says_the_same_as_its_text(tmp_path):
    file = tmp_path / "clock.json"
    file.write_text("// by hand\n" + FASTSCORE)
    assert read(str(file)).period == read("// by hand\n" + FASTSCORE).period == 2


def test_comments_end_with_their_line_and_never_begin_in_a_text():
    loaded = load_descriptor('// {"\n{"a": "http://x \\" // y", // "b": 1\n"c": 0.10}')
    assert loaded == {"a": 'http://x " // y', "c": Decimal("0.10")}


@pytest.mark.parametrize(
    ("keys", "field", "value"),
    [
        ({"TimeZero": None}, "zero_us", None),
        ({"TimeZero": "2026-01-01"}, "zero_us", parse_instant("2026-01-01")),
        ({"Delay": 0}, "delay", Fraction(0)),
        ({"Delay": "2/7"}, "delay", Fraction(2, 7)),
        ({"Period": "1/3"}, "period", Fraction(1, 3)),
        ({"Period": 2}, "period", Fraction(2)),
        ({"MaxCount": None}, "max_count", None),
        ({"MaxCount": 5}, "max_count", 5),
        ({"Overflow": "skip"}, "overflow", "skip"),
        ({"Overflow": "all"}, "overflow", "all"),
    ],
)
def test_every_key_fills_its_option(keys, field, value):
    assert getattr(read(transport(**keys)), field) == value


def test_decimals_are_exact_and_not_floats():
    assert read('{"Transport": {"Type": "time", "Period": 0.1}}').period == Fraction(1, 10)
    assert read('{"Transport": {"Type": "time", "Period": 1e-3}}').period == Fraction(1, 1000)


def test_keys_without_effect_may_say_so():
    said = {"Envelope": None, "Encoding": "bert", "Batching": None, **transport()}
    assert read(said).period == 1
    assert read({"Encoding": None, **transport()}).period == 1


EXACT = "a number or a text: an exact decimal such as 0.001 or a fraction such as 1/3, in seconds"
ACCEPTED = {
    "TimeZero": "null or an ISO-8601 instant such as 2026-01-01T00:00:00Z",
    "Delay": f"{EXACT}, at least 0",
    "Period": f"{EXACT}, greater than 0",
    "MaxCount": "null or a whole number, at least 0",
    "Overflow": "'all', 'skip'",
}
WRONG_VALUES = {
    "TimeZero": [0, "yesterday", "0000-01-01T00:00:00Z", True, {}],
    "Delay": [None, -1, "soon", True, [], "-1/2"],
    "Period": [None, 0, -0.5, "often", False, "0", "1/0", "1/1000000000000000", "1e999999999"],
    "MaxCount": [-1, 1.5, "5", True, 2**63],
    "Overflow": [None, "drop", 1],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key in JSON_TYPES for value in WRONG_VALUES[key]]
)
def test_a_wrong_value_is_refused_with_key_value_and_what_is_accepted(key, value):
    message = refusal(transport(**{key: value}))
    assert f"'Transport.{key}'" in message
    assert json.dumps(value) in message
    assert f"accepted: {ACCEPTED[key]};" in message


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("Envelope", "delimited", "absent or null"),
        ("Encoding", "json", 'absent or null or "bert"'),
        ("Batching", {"Watermark": 1}, "absent or null"),
        ("Schema", None, '{"type": "long", "logicalType": "timestamp-millis"}'),
        ("Schema", {"type": "int"}, '{"type": "long", "logicalType": "timestamp-millis"}'),
        ("Schema", "long", '{"type": "long", "logicalType": "timestamp-millis"}'),
    ],
)
def test_other_formats_are_refused_by_key_and_value(key, value, accepted):
    message = refusal({**transport(), key: value})
    assert f"key '{key}'" in message
    assert json.dumps(value) in message
    assert accepted in message


@pytest.mark.parametrize(
    ("descriptor", "said"),
    [
        ({}, "key 'Transport': cannot use null"),
        ({"Transport": "kafka"}, """key 'Transport': cannot use "kafka"; accepted: "time\""""),
        ({"Transport": {}}, "key 'Transport.Type': cannot use null"),
        ({"Transport": {"Type": "TIME"}}, """cannot use "TIME"; accepted: "time" or "Time\""""),
        ({"Transport": {"Type": ["time"]}}, "key 'Transport.Type'"),
        ({"Transport": {"Type": "time", "period": 2}}, "did you mean 'Period'?"),
        ({"Transport": {"Type": "time", "MaxCuont": 2}}, "did you mean 'MaxCount'?"),
        ({"Transport": "time", "Shema": {}}, "did you mean 'Schema'?"),
        ("[1]", "cannot read the file '[1]'"),
        ('{"Transport": }', "it is not JSON"),
        ('{"Transport": "time", "Transport": "time"}', "'Transport' is there twice"),
        ('{"Transport": {"Type": "time", "Period": NaN}}', "NaN is not a JSON number"),
        ('{"a": ' * 100_000, "it is not JSON (maximum recursion depth"),
        ("/no/such/file.json", "cannot read the file '/no/such/file.json'"),
    ],
)
def test_what_is_no_descriptor_is_refused_with_the_reason(descriptor, said):
    assert said in refusal(descriptor)


LEGAL = {"transport": "time", "timeZero": "2026-01-01", "overflow": "all"}


@pytest.mark.parametrize("name", CARRIED_OPTIONS)
def test_it_excludes_the_options_that_it_carries_and_names_both(name):
    with pytest.raises(OptionError, match=f"option 'descriptor'.* conflicts with option '{name}'"):
        read_time_options({"descriptor": '{"Transport": "time"}', name: LEGAL.get(name, "1")})


def test_it_goes_together_with_the_options_that_it_cannot_carry():
    text = json.dumps(transport(MaxCount=3))
    options = read_time_options({"descriptor": text, "rate": "max", "numPartitions": "2"})
    assert (options.max_count, options.rate, options.partitions) == (3, None, 2)


def test_rate_max_still_needs_a_count_from_somewhere():
    with pytest.raises(OptionError, match="option 'rate': 'max' needs option 'maxCount'"):
        read_time_options({"descriptor": '{"Transport": "time"}', "rate": "max"})
