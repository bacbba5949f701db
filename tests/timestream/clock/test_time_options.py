"""Every option of transport `time`: its default, its refusals, its text in an offset."""

from fractions import Fraction

import pytest
import refused_texts
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.clock.time_options import TimeOptions, format_fraction, read_time_options
from pyspark_timestream.core.declarations import option_specs
from pyspark_timestream.core.instants import FINAL_US, format_instant, parse_fraction
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.source import DefaultSource

DECLARED = list(option_specs(TimeOptions).values())
# A busy machine is no counterexample.
unhurried = settings(deadline=None)


def refusal(**raw):
    with pytest.raises(OptionError) as refused:
        read_time_options(raw, ["startTime", "subscribe"])
    message = str(refused.value)
    assert "; accepted: " in message
    assert "; next step: " in message
    return message


def test_without_options_the_clock_ticks_each_second_for_ever():
    assert read_time_options({}) == TimeOptions(
        transport="time",
        descriptor=None,
        zero_us=None,
        delay=Fraction(0),
        period=Fraction(1),
        max_count=None,
        overflow="all",
        rate=Fraction(1),
        max_ticks_per_trigger=None,
        partitions=1,
    )


def test_every_option_is_read_in_any_case():
    options = read_time_options(
        {
            "TRANSPORT": "Time",
            "timezero": "1970-01-01T01:00:00+01:00",
            "delay": "0.25",
            "Period": "1/3",
            "MAXCOUNT": "9",
            "overflow": "SKIP",
            "rate": "60",
            "maxtickspertrigger": "4",
            "numpartitions": "2",
        }
    )
    assert options == TimeOptions(
        zero_us=0,
        delay=Fraction(1, 4),
        period=Fraction(1, 3),
        max_count=9,
        overflow="skip",
        rate=Fraction(60),
        max_ticks_per_trigger=4,
        partitions=2,
    )


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        pytest.param(spec, value, id=f"{spec.name}={value}")
        for spec in DECLARED
        for value in refused_texts.TIME.get(spec.name, ())
    ],
)
def test_an_illegal_value_is_refused_with_option_value_accepted_and_next_step(spec, value):
    message = refusal(**{spec.name: value})
    assert message.startswith(f"option '{spec.name}': ")
    assert f"'{value}'" in message
    assert f"accepted: {spec.parser.accepts}; next step: {spec.next_step()}" in message


def test_only_the_descriptor_has_its_illegal_values_elsewhere():
    assert {spec.name for spec in DECLARED} - refused_texts.TIME.keys() == {"descriptor"}


@pytest.mark.parametrize("spec", DECLARED, ids=lambda spec: spec.name)
def test_a_misspelt_option_is_refused_with_the_nearest_name(spec):
    misspelt = spec.name[:2] + "x" + spec.name[2:]
    message = refusal(**{misspelt: "1"})
    assert message.startswith(f"option '{misspelt.lower()}': there is no such option")
    assert f"did you mean '{spec.name}'?" in message


@pytest.mark.parametrize("name", ["startTime", "subscribe", "kafka.bootstrap.servers"])
def test_a_forgotten_transport_is_what_the_message_is_about(name):
    message = refusal(**{name.lower(): "1"})
    assert message.startswith("option 'transport': it was not given, and is 'time' then, but ")
    assert f"option '{name.lower()}' ('1') belongs to transport 'kafka'" in message
    assert message.endswith("next step: set option 'transport' to 'kafka'")


def test_a_misspelt_transport_is_to_be_corrected_since_its_default_is_another_stream():
    with pytest.raises(OptionError, match=r"'kafak' .*; next step: correct it$"):
        DefaultSource({"transport": "kafak"}).schema()


@pytest.mark.parametrize("name", [spec.name for spec in option_specs(KafkaOptions).values()])
def test_every_option_of_transport_kafka_is_refused_by_the_format_naming_it(name):
    # The names reach the clock from the format, which knows both transports.
    refused = "belongs to transport 'kafka'"
    with pytest.raises(OptionError, match=f"option '{name.lower()}' \\('1'\\) {refused}"):
        DefaultSource({name.lower(): "1"}).schema()
    conflict = f"option '{name}': .*{refused} and conflicts with option 'transport'"
    with pytest.raises(OptionError, match=conflict):
        DefaultSource({name.lower(): "1", "transport": "time"}).schema()


@pytest.mark.parametrize("name", ["startTime", "subscribe", "kafka.bootstrap.servers"])
def test_an_option_of_the_other_transport_is_refused_naming_both(name):
    message = refusal(**{name.lower(): "1", "transport": "time"})
    assert message.startswith(f"option '{name}': ")
    assert "transport 'kafka' and conflicts with option 'transport' ('time')" in message


def test_a_secret_of_the_other_transport_is_not_repeated():
    for named in ({}, {"transport": "time"}):
        message = refusal(**{"kafka.sasl.password": "hunter2", **named})
        assert "hunter2" not in message
        assert "[hidden]" in message


def test_rate_max_needs_max_count():
    assert "'rate': 'max' needs option 'maxCount'" in refusal(rate="max")
    assert read_time_options({"rate": "MAX", "maxCount": "1"}).rate is None


def test_rate_max_conflicts_with_skipping():
    message = refusal(rate="max", maxCount="1", overflow="skip")
    assert "'rate': 'max' conflicts with option 'overflow' ('skip')" in message


@pytest.mark.parametrize("value", ["1/1000000000001", "0.0000000000001", "1e-13"])
def test_a_period_too_fine_to_compute_is_refused(value):
    message = refusal(period=value)
    assert f"'{value}'" in message
    assert "denominator must be at most 1,000,000,000,000" in message


@pytest.mark.parametrize("name", ["delay", "period", "rate"])
@pytest.mark.parametrize("value", ["1e999999999", "1e-999999999", "nan", "inf", "1/0", "", "0x1"])
def test_numbers_that_are_no_exact_decimals_are_refused_at_once(name, value):
    assert refusal(**{name: value}).startswith(f"option '{name}': cannot read '{value}'")


def test_ticks_beyond_the_calendar_are_refused_before_the_stream_starts():
    message = refusal(timeZero="9999-12-31T23:59:58Z", maxCount="3")
    assert message.startswith("option 'maxCount': '3' ticks, 1 s apart from 9999-12-31T23:59:58Z")
    assert read_time_options({"timeZero": "9999-12-31T23:59:58Z", "maxCount": "2"})


def test_ticks_beyond_the_calendar_are_refused_when_the_start_gives_the_zero():
    options = read_time_options({"maxCount": "3", "period": "1e6"})
    with pytest.raises(OptionError, match="option 'maxCount'"):
        options.clock(FINAL_US, FINAL_US)


def test_settings_are_canonical_so_that_another_spelling_is_no_change():
    spelt = {"period": "0.50", "delay": "0", "rate": "2/1", "timeZero": "2026-01-01 01:00+01:00"}
    other = {"period": "1/2", "rate": "2.0", "timeZero": "2026-01-01T00:00:00Z", "overflow": "all"}
    assert read_time_options(spelt).settings() == read_time_options(other).settings()


def test_settings_hold_what_defines_time_and_no_limits():
    limits = {"maxTicksPerTrigger": "5", "numPartitions": "3"}
    assert read_time_options(limits).settings() == {
        "transport": "time",
        "delay": "0",
        "period": "1",
        "overflow": "all",
        "rate": "1",
    }


def test_settings_of_a_descriptor_are_those_of_its_options():
    told = read_time_options(
        {"descriptor": '{"Transport": {"Type": "time", "Period": 0.5, "MaxCount": 2}}'}
    )
    assert told.settings() == read_time_options({"period": "0.5", "maxCount": "2"}).settings()


@unhurried
@given(st.fractions())
def test_exact_text_reads_back(value):
    assert parse_fraction(format_fraction(value)) == value


@unhurried
@given(st.integers(0, FINAL_US))
def test_time_zero_reads_back_from_settings(us):
    options = read_time_options({"timeZero": format_instant(us)})
    assert read_time_options(options.settings()).zero_us == us
