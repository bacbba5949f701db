"""What a mark carries, and which writers and times there can be."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_timestream.core.instants import FINAL_US, MIN_US, parse_instant
from pyspark_timestream.core.options import hide_secrets
from pyspark_timestream.errors import OptionError
from pyspark_timestream.producer.marks import Writer, parse_mark_time, require_idempotence


@given(st.integers(MIN_US, FINAL_US))
def test_a_mark_says_its_time_so_that_it_reads_back_exactly(time_us: int) -> None:
    (header, time), signed = Writer("depot 7", "now").mark(time_us)
    assert (header, parse_instant(time.decode())) == ("now", time_us)
    assert signed == ("now-writer", b"depot 7")


def test_closing_repeats_the_last_mark_where_there_was_one() -> None:
    writer = Writer("a", "cti")
    assert writer.close_mark(0) == [*writer.mark(0), ("cti-close", b"true")]
    assert writer.close_mark(None) == [("cti-writer", b"a"), ("cti-close", b"true")]


@pytest.mark.parametrize("name", ["", "a,b", " a", "a\n"])
def test_a_name_that_a_comma_list_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=r"writer_id.*without commas"):
        Writer(name, "cti")


def test_a_mark_needs_a_header() -> None:
    with pytest.raises(OptionError, match="cti_header"):
        Writer("a", "")


@pytest.mark.parametrize(
    ("time", "us"),
    [
        (datetime(1970, 1, 1, 0, 0, 1, 5, UTC), 1_000_005),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01 00:00:00", 0),
        ("9999-12-31T23:59:59Z", FINAL_US),
    ],
)
def test_a_time_is_a_datetime_with_a_zone_or_a_text(time: datetime | str, us: int) -> None:
    assert parse_mark_time(time) == us


@pytest.mark.parametrize(
    ("time", "said"),
    [
        (datetime(2024, 1, 1), "add tzinfo=UTC"),  # noqa: DTZ001
        (1_700_000_000, "is not a time"),
        ("yesterday", "not an ISO-8601 instant"),
        (datetime(9999, 12, 31, 23, 59, 59, 1, UTC), "is outside"),
    ],
)
def test_what_is_no_instant_is_refused_with_a_way_out(time: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_mark_time(time)  # type: ignore[arg-type]


def test_idempotence_is_on_and_cannot_be_turned_off() -> None:
    assert require_idempotence({"a": 1}) == {"a": 1, "enable.idempotence": True}
    assert require_idempotence({"enable.idempotence": "true"})["enable.idempotence"] is True
    for off in (False, "false", "False", 0):
        with pytest.raises(OptionError, match=r"enable\.idempotence.*behind a mark"):
            require_idempotence({"enable.idempotence": off})


def test_secrets_are_hidden_wherever_they_are_quoted() -> None:
    config = {"sasl.password": "pa55", "sasl.username": "me", "on_delivery": print}
    assert hide_secrets("me and pa55", config) == "me and [hidden]"
