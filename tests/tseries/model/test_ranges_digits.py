"""Numbers in options and ranges are of the digits 0 to 9: those of other scripts are refused."""

# ruff: noqa: RUF001 it is about such letters.

import pytest
from pyspark.sql.datasource import DataSource

from pyspark_timestream.core.declarations import whole_number
from pyspark_timestream.core.instants import parse_duration, parse_fraction, parse_instant
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.properties import check_version, new_properties
from pyspark_tseries.model.ranges import (
    parse_anchor,
    parse_initial,
    parse_range,
    parse_span,
    parse_start_sequences,
)
from pyspark_tseries.spark.source import DefaultSource

FIVES = ["٥", "५", "５", "𝟓", "⑤", "⁵", "5_0"]

GRAMMARS = [
    (parse_range, ["limit {}", "last {}S", "limit 5 last {}D", "LIMIT 1{}"]),
    (parse_initial, ["limit {}", "last {}MS"]),
    (parse_start_sequences, ['{{"a": {}}}']),
    (parse_anchor, ["sequence {}", "last {}", "last {} minutes", "201{}-01-01"]),
    (parse_span, ["next {}", "previous {} s", "sequence 1{}", "next 1.{} s"]),
    (parse_instant, ["201{}-01-01T00:00:00Z", "2015-01-01T00:00:00.{}Z", "2015010{}T000000Z"]),
    (parse_duration, ["{} seconds", "1.{} s", "-{} ticks"]),
    (parse_fraction, ["{}", "0.{}", "1/{}", "{}/3"]),
    (whole_number().parse, ["{}", "1{}", "+{}"]),
]
CASES = [(parse, form) for parse, forms in GRAMMARS for form in forms]


@pytest.mark.parametrize(("parse", "form"), CASES)
def test_a_number_of_ascii_digits_is_read(parse, form):
    parse(form.format("5"))


@pytest.mark.parametrize("five", FIVES)
@pytest.mark.parametrize(("parse", "form"), CASES)
def test_a_number_with_other_digits_is_refused(parse, form, five):
    with pytest.raises(ValueError, match=r"."):
        parse(form.format(five))


@pytest.mark.parametrize(
    ("name", "value", "write"),
    [
        *(("retainedRange", f"limit {five}", True) for five in FIVES),
        ("txnVersion", "٥", True),
        ("limit", "٥", False),
        ("from", "sequence ٥", False),
        ("to", "next ٥ s", False),
        ("asOf", "٢٠٢٦-01-01", False),
    ],
)
def test_an_option_with_other_digits_is_refused_by_name(tmp_path, name, value, write):
    options = {"path": str(tmp_path / "s"), name: value}
    source: DataSource = DefaultSource(options | ({"txnAppId": "x"} if "txn" in name else {}))
    with pytest.raises(OptionError, match=f"option '{name}': cannot read '{value}'"):
        source.writer(None, False) if write else source.reader(None)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("version", ["٥", "", "one", "-1"])
def test_a_store_of_a_version_that_is_no_number_is_refused_by_name(version):
    with pytest.raises(UnusableStore, match=r"has tseries\.formatVersion"):
        check_version(new_properties() | {"tseries.formatVersion": version}, "/s")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ctiFrequency", "٥"),
        ("startingOffsets", '{"t": {"٥": 1}}'),
        ("maxTriggerDelay", "٥"),
        ("maxOffsetsPerTrigger", "٥"),
    ],
)
def test_the_options_of_kafka_are_of_the_same_digits(name, value):
    base = {"kafka.bootstrap.servers": "x:1", "subscribe": "t", "minOffsetsPerTrigger": "1"}
    with pytest.raises(OptionError, match=f"option '{name}'"):
        read_kafka_options({**base, name: value})
    read_kafka_options({**base, name: value.replace("٥", "5")})
