"""Writers' names in headers and fields move the clocks of their writers."""

from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.decoding import task

BY_HEADER = {"ctiFrequency": "1", "startTime": "timestamp", "writerFrom": "header:w"}
BY_FIELD = {**BY_HEADER, "writerFrom": "field:from.device"}


def names_of(state):
    return [name for name, _ in state.writers]


def test_a_header_names_the_writer_and_without_one_it_is_the_unnamed():
    records = [(b"", [("w", name)], 5 + n) for n, name in enumerate((b"a", b"b", b"\xff", None))]
    rows, state = task(BY_HEADER, *records, (b"", None, 20), sizes=(2, 1))
    assert names_of(state) == ["", "a", "b"]
    assert [writer.mark_us for _, writer in state.writers] == [20_000, 5_000, 6_000]
    assert rows[:3] == [(0, None), (None, 5_000), (1, None)]


NAMED = [
    '"a"',
    "7",
    "2.5",
    "true",
    '"7"',
    "null",
    "{}",
    "7.0",
    "123456789012345678901",
    '"\\u00e9"',
]


@given(st.permutations(NAMED), st.sampled_from([(1,) * 9, (2, 3), (4,)]))
@settings(deadline=None, max_examples=30)
def test_a_field_names_the_writer_by_text_or_whole_number_however_it_is_split(named, sizes):
    records = [
        (b'{"from": {"device": %s}}' % name.encode(), None, 5 + n) for n, name in enumerate(named)
    ]
    records += [(b"broken", None, 50), (None, None, 51)]
    rows, state = task(BY_FIELD, *records, sizes=sizes)
    assert names_of(state) == ["", "7", "a", "\N{LATIN SMALL LETTER E WITH ACUTE}"]
    assert (rows, state) == task(BY_FIELD, *records)


@given(st.lists(st.sampled_from(["7", "7.0", "2.5", "-0.0", "0", "1e300", "null"]), max_size=9))
@settings(deadline=None, max_examples=30)
def test_whole_numbers_are_the_same_names_among_fractions(numbers):
    records = [(b'{"from": {"device": %s}}' % at.encode(), None, 5) for at in numbers]
    _, state = task(BY_FIELD, *records)
    found = {"7": "7", "7.0": "7", "-0.0": "0", "0": "0"}
    assert names_of(state) == sorted({found.get(at, "") for at in numbers})
    assert task(BY_FIELD, *records, sizes=(1,) * 9)[1] == state


def test_the_wrong_clock_of_one_writer_drops_nothing_of_another():
    records = [(b"", [("w", name)], at) for name, at in ((b"a", 5), (b"b", 9_000), (b"a", 6))]
    rows, state = task(BY_HEADER, *records)
    assert [offset for offset, _ in rows if offset is not None] == [0, 1, 2]
    assert (state.dropped, state.cti_us) == (0, 6_000)
