"""The headers of a mark, and which writers there can be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_timestream.core.instants import FINAL_US, MIN_US, parse_instant
from pyspark_timestream.errors import OptionError
from pyspark_timestream.rules.marks import Writer


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
