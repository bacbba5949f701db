"""A report keeps within its width in every language; no name acts on a terminal or a page."""

import unicodedata

import pytest
import wcwidth
from hypothesis import given
from hypothesis import strategies as st

from pyspark_timestream.errors import escape_controls
from pyspark_timestream.report import (
    align,
    align_within,
    cell_width,
    cut_text,
    html_table,
    paragraph,
    svg,
    wrap_text,
)

LETTERS = [
    *"aZ9 .-éß€\u00a0\u3000温度한각ไทยนअعﾊ⠿█❤☀✅👩🔥",
    *(
        "e\u0301",
        "นำ้",
        "กี่",
        "क्ष",
        "हि",
        "لل\u200cغ",
        "\u1112\u1161\u11ab",
        "❤\ufe0f",
        "1\ufe0f\u20e3",
    ),
    *("👍🏽", "👩\u200d🔬", "👨\u200d👩\u200d👧", "❤\ufe0f\u200d🔥"),
]
TEXTS = st.lists(st.sampled_from(LETTERS), max_size=20).map("".join)


@pytest.mark.parametrize(
    "text",
    ["celsius", "温度センサー", "e\u0301te\u0301", "한국어", "\u1112\u1161\u11ab", "ภาษาไทย",
     "العربية", "עברית", "10\u00a0°C", "全\u3000角", "👩\u200d🔬", "👩\u200d❤️\u200d👩", "❤️\u200d🔥",
     "👍🏽", "🇩🇪", "❤️", "☀", "✅", "1️⃣", "می\u200cرود"],
)  # fmt: skip
def test_a_text_is_as_wide_as_wcwidth_says(text):
    assert cell_width(text) == wcwidth.width(text)


@given(TEXTS)
def test_no_text_is_wider_in_a_terminal_than_it_is_taken_for(text):
    assert cell_width(text) >= wcwidth.width(text)


@given(TEXTS, st.integers(0, 12))
def test_a_cut_text_fits_and_begins_as_the_text_does(text, size):
    cut = cut_text(text, size)
    assert wcwidth.width(cut) <= size
    assert cut == text or (cut.endswith("..."[:size]) and text.startswith(cut[:-3]))


@given(TEXTS, st.integers(2, 12))
def test_wrapped_lines_fit_and_lose_no_letter(text, size):
    lines = wrap_text(text, size)
    assert all(cell_width(line) <= size for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_words_are_wrapped_between_words():
    assert wrap_text("one two three", 8) == ["one two", "three"]
    assert wrap_text("温度 温度温度", 5) == ["温度", "温度", "温度"]


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=5))
def test_columns_of_wide_letters_begin_below_each_other(rows):
    lines = align([[*row[:2], "|"] for row in rows])
    assert len({cell_width(line.rpartition("|")[0]) for line in lines}) == 1


@given(st.lists(st.tuples(*[TEXTS] * 4), min_size=1, max_size=5), st.integers(30, 90))
def test_a_table_keeps_within_its_width(rows, width):
    assert max(map(cell_width, align_within(rows, width))) <= width


def test_a_long_first_column_leaves_room_for_the_next():
    lines = align_within([["series", "time"], ["a" * 60, "12:00"]], 50)
    assert lines == ["series                time", "aaaaaaaaaaaaaaaaa...  12:00"]


@pytest.mark.parametrize(
    "char", [*"\u00a0\u3000\u200d\u200c\u2009\u00ad\ufeff\u200e", "\U000e0062"]
)
def test_spaces_and_joiners_of_languages_stay(char):
    assert escape_controls(f"a{char}b") == f"a{char}b"
    assert char in svg("text", char)


@given(st.text())
def test_no_control_character_gets_into_a_report_whatever_a_name_is(text):
    for shown in (escape_controls(text), svg("a", text, b=text), paragraph([text], text),
                  html_table([text], [[text]])):  # fmt: skip
        for char in shown:
            assert unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp")
            assert not "\u202a" <= char <= "\u202e"
            assert not "\u2066" <= char <= "\u2069"


def test_what_turns_or_moves_writing_is_shown_by_its_number():
    assert escape_controls("\x1b[31m\n\x9b\u202e\u2066\ud800\uffff") == (
        r"\x1b[31m\n\x9b\u202e\u2066\ud800\uffff"
    )
