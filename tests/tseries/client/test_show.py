"""The command `show` answers in a terminal what the client answers, and refuses as it does."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pyarrow as pa
import pytest
import wcwidth
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tseries import QueryResult, TimeSeries
from pyspark_tseries.__main__ import main
from pyspark_tseries.chart.terminal import Style, draw_text

T0 = datetime(2026, 3, 1, tzinfo=UTC)
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("shown") / "s"
    schema = pa.schema(
        [
            pa.field("celsius", pa.float64(), metadata={"unit": "°C"}),
            pa.field("open", pa.bool_()),
            pa.field("mode", pa.string()),
        ]
    )
    store = TimeSeries.create(path, schema, retained_range="unlimited", author="me")
    rows = [
        {
            "series": name,
            "timestamp": T0 + timedelta(minutes=minute),
            "celsius": 20.0 + place + minute % 60 / 10,
            "open": minute % 120 < 60,
            "mode": ["idle", "heat"][minute // 60 % 2],
        }
        for place, name in enumerate(["hall", "kitchen", "\x1b[31mred"])
        for minute in range(0, 600, 10)
    ]
    store.append_many(rows)
    store.edit("hall", 3, {"celsius": 29.0, "open": True, "mode": "idle"})
    return str(path)


@pytest.fixture
def show(path, capsys):
    def run(*arguments, code=0):
        assert main(["show", path, "--timezone", "UTC", *arguments]) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    return run


# -- the newest values ---------------------------------------------------------------------------


def test_without_series_the_newest_value_of_each_is_a_row_with_its_unit(show):
    lines = show().splitlines()
    heads = ["series", "timestamp", "celsius (°C)", "open", "mode"]
    assert re.split(r" {2,}", lines[0]) == heads
    assert lines[-2:] == ["", "times in UTC"]
    assert [re.split(r" {2,}", line) for line in lines[1:-2]] == [
        ["\\x1b[31mred", "1 Mar 2026 09:50", "27", "False", "heat"],
        ["hall", "1 Mar 2026 09:50", "25", "False", "heat"],
        ["kitchen", "1 Mar 2026 09:50", "26", "False", "heat"],
    ]


def test_of_many_series_the_first_have_rows_and_the_others_are_counted(show):
    lines = show("--max-series", "1", "--column", "celsius").splitlines()
    assert len(lines) == 5
    assert lines[2] == "and 2 more series; name them, or use --max-series"


def test_an_empty_store_says_so(tmp_path, capsys):
    TimeSeries.create(tmp_path / "s", {"v": pa.float64()}, retained_range="unlimited")
    assert main(["show", str(tmp_path / "s")]) == 0
    assert capsys.readouterr().out == "the store has no events\n"


def test_the_store_as_it_was_is_shown(show):
    assert "no events" in show("hall", "--as-of", "2001-01-01T00:00:00Z")
    assert "edited" not in show("hall", "--as-of", "0")
    assert "edited" in show("hall")


def test_a_time_that_is_null_or_outside_the_years_is_no_wrong_time(tmp_path, capsys):
    kind = pa.timestamp("us", "UTC")
    store = TimeSeries.create(tmp_path / "s", {"due": kind}, retained_range="unlimited")
    for name, due in (("a", None), ("b", 0), ("c", 2**60)):
        store.append(name, pa.scalar(due, pa.int64()).cast(kind), timestamp=T0)
    for zone in ("UTC", "Europe/Berlin"):
        assert main(["show", str(tmp_path / "s"), "--timezone", zone]) == 0
        rows = [line.split("  ")[-1].strip() for line in capsys.readouterr().out.splitlines()[1:-2]]
        hour = "00" if zone == "UTC" else "01"
        far = "(a time outside the years 1 to 9999)"
        assert rows == ["-", f"1 Jan 1970 {hour}:00", far]


# -- charts --------------------------------------------------------------------------------------


def test_a_series_is_drawn_with_its_ticks_its_unit_and_its_edit(show):
    drawn = show("hall", "--column", "celsius", "--width", "60", "--height", "6")
    lines = drawn.splitlines()
    assert lines[:2] == ["hall", "celsius (°C)"]
    assert sum("◆" in line for line in lines) == 2  # The point, and the note.
    assert re.search(r"^ *20 ┤", drawn, re.MULTILINE)
    assert "02:00" in drawn
    assert "1 Mar 2026" in drawn
    assert all(len(line) <= 60 for line in lines)
    assert lines[-2:] == ["times in UTC", "◆ celsius: 1 edited value"]


def test_a_gap_is_empty_in_the_terminal(tmp_path, capsys):
    store = TimeSeries.create(tmp_path / "s", {"v": pa.float64()}, retained_range="unlimited")
    minutes = [*range(20), *range(80, 100)]
    store.append_many(
        [{"series": "a", "timestamp": T0 + timedelta(minutes=m), "v": 1.0} for m in minutes]
    )
    main(["show", str(tmp_path / "s"), "a", "--timezone", "UTC", "--height", "3"])
    dots = [line for line in capsys.readouterr().out.splitlines() if "⠤" in line or "⠒" in line]
    (drawn,) = (re.sub("^.*[┤│]", "", line) for line in dots)
    middle = drawn[len(drawn) // 4 : 3 * len(drawn) // 4]
    assert middle.strip() == ""


def test_without_colours_each_series_has_a_panel_and_with_them_a_colour(show):
    plain = show("hall", "kitchen", "--column", "celsius")
    assert "celsius, hall (°C)" in plain
    assert "celsius, kitchen (°C)" in plain
    assert "\x1b" not in plain
    coloured = show("hall", "kitchen", "--column", "celsius", "--color", "always")
    assert "\x1b[38;5;33mhall 25\x1b[0m  \x1b[38;5;208mkitchen 26\x1b[0m" in coloured
    assert all(len(ESCAPE.sub("", line)) <= 100 for line in coloured.splitlines())


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    show, capsys, monkeypatch, terminal, environment, coloured
):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    assert ("\x1b" in show("hall", "kitchen", "--column", "celsius")) is coloured


def test_a_terminal_of_ascii_gets_ascii_alone(show):
    drawn = show("hall", "\x1b[31mred", "--ascii", "--column", "celsius", "--column", "open")
    assert drawn.isascii()
    assert "\x1b" not in drawn
    assert "celsius, hall (\\xb0C)" in drawn
    assert "# celsius: 1 edited value" in drawn


def test_what_the_output_cannot_write_makes_it_ascii(path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout", SimpleNamespace(
        isatty=lambda: False, encoding="latin-1", write=__import__("sys").stdout.write,
        flush=lambda: None))  # fmt: skip
    assert main(["show", path, "hall", "--timezone", "UTC"]) == 0
    assert capsys.readouterr().out.isascii()


def test_states_are_bars_with_their_names(show):
    drawn = show("hall", "--column", "mode", "--column", "open", "--width", "80")
    assert re.search(r"hall │\|idle─+\|heat─+\|idle─", drawn)
    assert re.search(r"hall │█+▁+█+▁", drawn)


def test_every_makes_buckets_and_last_takes_the_newest(show):
    hours = show("hall", "--column", "celsius", "--every", "1h", "--last", "3H", "--height", "4")
    assert "07:00" in hours
    assert "02:00" not in hours
    assert "celsius (°C)" in show("hall", "--every", "1h", "--aggregate", "0.9", "--last", "12")
    assert "last" not in show("hall", "--column", "mode", "--every", "2h")


def test_every_makes_buckets_of_a_column_that_is_named_self(tmp_path, capsys):
    path = tmp_path / "s"
    schema = pa.schema([pa.field("self", pa.float64())])
    store = TimeSeries.create(path, schema, retained_range="unlimited", author="me")
    store.append_many([{"series": "a", "timestamp": T0, "self": 1.5}])
    together = store.range_query().every("1 hour").aggregate(self="mean").by()
    assert together.select_from().table["self"].to_pylist() == [1.5]
    assert main(["show", str(path), "a", "--every", "1h", "--timezone", "UTC"]) == 0
    assert "self" in capsys.readouterr().out


def test_series_by_prefix_and_pattern(show):
    assert show("--prefix", "ha").startswith("hall\n")
    assert show("--pattern", "*all").startswith("hall\n")


def test_a_series_without_events_is_named(show):
    assert show("hall", "--last", "0").endswith("no events of hall\n")


def test_save_names_the_series_without_events_too(show, tmp_path):
    target = tmp_path / "a.svg"
    assert show("hall", "--last", "0", "--save", str(target)).endswith("\nno events of hall\n")


def test_a_series_that_the_store_lacks_is_an_error_after_the_others_are_drawn(path, show, capsys):
    assert main(["show", path, "hall", "Hall", "\x1b[0m"]) == 1
    drawn, said = capsys.readouterr()
    assert drawn.startswith("hall\n")
    assert "no events of" not in drawn
    assert f"the store '{path}' has no series 'Hall', '\\x1b[0m'; accepted: " in said
    assert said.endswith(f"python -m pyspark_tseries show {path} lists the series\n")


def test_a_chart_of_no_series_that_the_store_has_is_not_written(show, tmp_path):
    target = tmp_path / "a.svg"
    assert "has no series 'typo'" in show("typo", "--save", str(target), code=1)
    assert not target.exists()


def test_save_writes_the_chart_to_a_file(show, tmp_path):
    target = tmp_path / "a.svg"
    drawn = show("hall", "kitchen", "--every", "1h", "--save", str(target))
    assert drawn == f"wrote {target}\n"
    assert "celsius, min to max" in "".join(ET.parse(target).getroot().itertext())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--every", "1h"], "--every is about a chart, and no series is named"),
        (["--save", "a.svg"], "--save is about a chart, and no series is named"),
        (["hall", "--aggregate", "mean"], "--aggregate is about buckets, and --every is missing"),
        (["hall", "--every", "7x"], "'7x' is not the width of buckets"),
        (["hall", "--every", "1h", "--aggregate", "foo"], "'foo' is not an aggregate"),
        (["hall", "--last", "soon"], "--last 'soon' is neither a duration nor a number of events"),
        (["hall", "--last", "9999999999999D"], "--last '9999999999999D' is neither a duration"),
        (["hall", "--as-of", "soon"], "--as-of 'soon' is neither a time nor the number"),
        (["hall", "--as-of", "99"], "there is no commit 99; accepted: 0 to 1"),
        (["hall", "--column", "nix"], "no value column 'nix' to draw; accepted: celsius, open"),
        (["--column", "nix"], "column 'nix' is not in the store"),
        (["hall", "--prefix", "h"], "series and prefix choose series at the same time"),
        (["hall", "--save", "a.gif"], "a name that ends with .svg or .png"),
        (["hall", "--width", "3"], "--width 3 has no room; accepted: 30 to 1000"),
        (["hall", "--height", "0"], "--height 0 has no room"),
        (["--max-series", "0"], "--max-series 0 is below 1"),
    ],
)
def test_a_wrong_argument_is_refused_in_a_sentence(show, arguments, message):
    said = show(*arguments, code=1)
    assert message in said
    assert "next step" in said
    assert said.count("\n") == 1


def test_a_chart_that_cannot_be_written_is_no_failure_of_the_store(show, tmp_path, monkeypatch):
    said = show("hall", "--save", str(tmp_path / "none" / "a.svg"), code=1)
    assert "the chart cannot be written to" in said
    assert "No such file or directory" in said
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    said = show("hall", "--save", str(tmp_path / "a.png"), code=1)
    assert "pip install 'pyspark-timestream[png]'" in said


def test_a_store_that_is_not_there_and_a_reader_without_the_right_are_refused(tmp_path, capsys):
    assert main(["show", str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err
    policy = {"me": ["own", "read"], "you": []}
    TimeSeries.create(tmp_path / "s", {}, author="me", policy=policy, retained_range="unlimited")
    assert main(["show", str(tmp_path / "s"), "--principal", "you"]) == 1
    assert "'you'" in capsys.readouterr().err


@given(
    st.lists(st.tuples(st.integers(0, 10**13), st.none() | st.floats()), min_size=1, max_size=40),
    st.integers(30, 120),
    st.booleans(),
)
def test_any_values_are_drawn_within_the_terminal(rows, width, is_ascii):
    times = pa.array([us for us, _ in rows], pa.int64()).cast(pa.timestamp("us", "UTC"))
    values = pa.array([value for _, value in rows], pa.float64())
    result = QueryResult(pa.table({"timestamp": times, "v": values}), len(rows))
    drawn = draw_text(result.chart().figure, Style(width, 5, False, is_ascii))
    canvas = [line for line in drawn.splitlines() if re.search("[│┤|+└]", line)]
    assert len(canvas) in (1, 6)  # The axis of time, and the rows of values if there are some.
    assert max(map(len, canvas)) <= width


@pytest.mark.parametrize("width", [30, 41, 200])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_no_line_is_wider_than_the_terminal(path, width, is_ascii):
    result = TimeSeries.open(path).range_query().select_from()
    for has_colours in (False, True):
        style = Style(width, 4, has_colours, is_ascii)
        drawn = draw_text(result.chart(["celsius", "open", "mode"]).figure, style)
        assert max(len(ESCAPE.sub("", line)) for line in drawn.splitlines()) <= width


NAMES = [
    "台所の温度センサー" * 4,
    "👩\u200d🔬 lab ❤️ 10\u00a0°C",
    "ภาษาไทย \u202eevil\x1b[31m" * 3,
]
"""Wide letters, joined ones, ones without a width, and those that would act on a terminal."""


@pytest.mark.parametrize("width", [30, 57, 120])
@pytest.mark.parametrize("has_colours", [False, True])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_names_units_titles_and_states_of_any_language_keep_within_the_terminal(
    width, has_colours, is_ascii
):
    rows = 60
    table = pa.table(
        {
            "series": [name for name in NAMES for _ in range(rows)],
            "timestamp": pa.array(
                [us * 60_000_000 for _ in NAMES for us in range(rows)], pa.timestamp("us", "UTC")
            ),
            "温度" * 12: [float(us % 7) for _ in NAMES for us in range(rows)],
            "状態": ["🔥燃焼🔥" if us // 10 % 2 else "待機" for _ in NAMES for us in range(rows)],
            "🔥" * 30: [1] * (rows * len(NAMES)),
        }
    )
    units = {"温度" * 12: "度" * 20}
    chart = QueryResult(table, 10**9).chart(["温度" * 12, "状態"], units=units, title=NAMES[0] * 3)
    drawn = draw_text(chart.figure, Style(width, 4, has_colours, is_ascii))
    lines = [ESCAPE.sub("", line) for line in drawn.splitlines()]
    assert max(map(wcwidth.width, lines)) <= width
    states = [line for line in lines if re.search(r"[│|]\|", line)]
    assert len(states) == len(NAMES)
    bars = {wcwidth.width(re.split("[│|]", line, maxsplit=1)[0]) for line in states}
    assert len(bars) == 1
    assert "\x1b" not in "".join(lines)
    assert "\u202e" not in drawn
    assert ("10\u00a0°C" in drawn) is not is_ascii or width == 30
