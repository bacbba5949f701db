"""A chart shows what is in a result, at its place, and says what it leaves out."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_timestream.core.instants import MIN_US
from pyspark_timestream.report import COLOURS, PAGE_COLOURS
from pyspark_tseries import InvalidQuery, QueryResult, TimeSeries
from pyspark_tseries.chart.terminal import Style, draw_text

T0 = datetime(2026, 3, 1, tzinfo=UTC)
T0_US = 1_772_323_200_000_000
MINUTE = 60_000_000
SVG = "{http://www.w3.org/2000/svg}"


def result(values, *, us=None, series=None, kind=None, metadata=None, **more):
    """A result of one value column `v`, an event a minute."""
    us = [T0_US + MINUTE * i for i in range(len(values))] if us is None else us
    named = [*(["a"] * len(values) if series is None else series)]
    column = pa.array(values, kind)
    table = pa.table(
        {
            "series": pa.array(named, pa.string()),
            "timestamp": pa.array(us, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "v": column,
            **more,
        }
    )
    field = pa.field("v", column.type, metadata=metadata)
    return QueryResult(table.cast(table.schema.set(2, field)), len(values))


def parse(chart):
    return ET.fromstring(chart.to_svg())


def texts(chart):
    return ["".join(t for t in node.itertext()) for node in parse(chart).iter(f"{SVG}text")]


def lines(chart):
    """The paths of the lines of series, as lists of pieces of points."""
    found = []
    for path in parse(chart).iter(f"{SVG}path"):
        if path.get("stroke") in COLOURS and path.get("stroke-width") == "1.6":
            pieces = path.get("d").split("M")[1:]
            found.append(
                [[tuple(map(float, p.split(","))) for p in piece.split("L")] for piece in pieces]
            )
    return found


def pieces_of(chart):
    """The numbers of points of the pieces of the only line."""
    return [
        int(n)
        for n in np.diff(
            np.append(
                np.flatnonzero(chart.figure.panels[0].lines[0].is_first),
                len(chart.figure.panels[0].lines[0].us),
            )
        )
    ]


# -- lines ---------------------------------------------------------------------------------------


def test_a_line_has_a_point_for_each_event_at_its_time_and_its_value():
    (line,) = lines(result([1.0, 3.0, 2.0, 2.0]).chart())
    (piece,) = line
    xs, ys = zip(*piece, strict=True)
    assert np.allclose(np.diff(xs), xs[1] - xs[0], atol=0.11)
    low, high, middle, last = ys
    assert high < middle == last < low  # Upwards is less.
    assert abs((low + high) / 2 - middle) < 0.11


def test_a_line_ends_at_nulls_nan_and_infinities_and_a_note_counts_the_last_two():
    chart = result([1.0, 2.0, None, 3.0, float("nan"), 4.0, 5.0, float("-inf"), 6.0]).chart()
    assert pieces_of(chart) == [2, 1, 2, 1]
    assert "v: 2 NaN or infinite values, not drawn" in texts(chart)[-1]
    assert "NaN" not in texts(result([1.0, None, 2.0]).chart())[-1]


def test_a_gap_is_not_bridged_and_what_is_a_gap_can_be_said():
    us = [T0_US + MINUTE * i for i in (*range(15), *range(60, 75))]
    made = result([1.0] * 30, us=us)
    assert pieces_of(made.chart()) == [15, 15]
    assert pieces_of(made.chart(longest_gap=None)) == [30]
    assert pieces_of(made.chart(longest_gap="2 hours")) == [30]
    assert pieces_of(made.chart(longest_gap=timedelta(seconds=59))) == [1] * 30
    assert pieces_of(result([1.0] * 3, us=[0, 1, 10**12]).chart()) == [3]


def test_a_point_alone_is_a_dot():
    dots = list(parse(result([21.5]).chart()).iter(f"{SVG}circle"))
    assert len(dots) == 1
    assert dots[0].find(f"{SVG}title").text == "a, 1 Mar 2026 00:00: 21.5"


@given(st.lists(st.one_of(st.none(), st.floats(), st.floats(-1e3, 1e3)), min_size=1, max_size=60))
def test_any_values_make_a_picture_without_a_nan_in_it(values):
    picture = result(values, kind=pa.float64()).chart().to_svg()
    ET.fromstring(picture)
    drawn = re.findall(r' (?:d|x|y|cx|cy|width|height)="([^"]*)"', picture)
    assert not any("nan" in text or "inf" in text for text in drawn)


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int64(), pa.float32(), pa.decimal128(30, 3)], ids=str
)
def test_every_type_of_numbers_is_drawn(kind):
    values = pa.array([1, 2, 3]).cast(kind)
    assert len(lines(result(values.to_pylist(), kind=kind).chart())) == 1


def test_whole_numbers_beyond_a_doubles_are_drawn():
    chart = result([2**62, 2**62 + 1, -(2**62)], kind=pa.int64()).chart()
    assert {"v\N{MULTIPLICATION SIGN}1018", "-4", "0", "4"} <= set(texts(chart))


def test_events_in_any_order_are_drawn_in_the_order_of_time():
    us = [T0_US + MINUTE * i for i in (2, 0, 1)]
    ((piece,),) = lines(result([3.0, 1.0, 2.0], us=us).chart())
    assert [x for x, _ in piece] == sorted(x for x, _ in piece)
    assert [y for _, y in piece] == sorted((y for _, y in piece), reverse=True)


def test_times_outside_the_years_are_not_drawn_but_told():
    chart = result([1.0, 2.0, 3.0], us=[T0_US, T0_US + MINUTE, 2**58]).chart()
    assert pieces_of(chart) == [2]
    assert "1 event outside the years 1 to 9999, not drawn" in texts(chart)[-1]


# -- many points ---------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.integers(1, 5000), st.sampled_from([240, 300]))
def test_of_many_points_each_pixel_keeps_first_lowest_highest_and_last(seed, levels, width):
    # Few levels give many equal values.
    values = np.random.default_rng(seed).integers(0, levels, 4200).astype(float).tolist()
    chart = result(values).chart(width=width)
    line = chart.figure.panels[0].lines[0]
    assert len(line.us) <= 4 * width
    all_us = np.array([T0_US + MINUTE * i for i in range(len(values))])
    size = all_us[-1] - all_us[0]
    everything, shown = {}, {}
    for of, us, numbers in ((everything, all_us, values), (shown, line.us, line.values)):
        for at, value in zip(us.tolist(), numbers, strict=True):
            of.setdefault(int((at - T0_US) / size * (width - 1)), []).append(value)
    assert shown.keys() == everything.keys()
    for pixel, there in everything.items():
        kept = shown[pixel]
        assert (kept[0], min(kept), max(kept), kept[-1]) == (
            there[0],
            min(there),
            max(there),
            there[-1],
        )
    assert f"v: {len(values):,} points" in " ".join(texts(chart))


def test_gaps_stay_gaps_among_many_points():
    us = [T0_US + 1000 * i + (10**9 if i >= 5000 else 0) for i in range(10_000)]
    chart = result([float(i % 7) for i in range(10_000)], us=us).chart()
    assert len(pieces_of(chart)) == 2


def test_a_million_points_are_a_small_picture():
    chart = result(np.sin(np.arange(1_000_000) / 9_999)).chart()
    assert len(chart.to_svg()) < 100_000


# -- edits ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rooms(tmp_path_factory):
    schema = pa.schema([pa.field("v", pa.float64(), metadata={"unit": "°C"})])
    store = TimeSeries.create(
        tmp_path_factory.mktemp("rooms") / "s", schema, retained_range="unlimited", author="me"
    )
    for minute in range(5):
        store.append("a", float(minute), T0 + timedelta(minutes=minute))
    store.edit("a", 2, 9.0)
    store.edit("a", 2, 7.0)
    return store


def test_an_edited_value_is_marked_at_its_originals_time(rooms):
    chart = rooms.range_query().select_from("a").chart()
    (line,) = chart.figure.panels[0].lines
    assert line.values.tolist() == [0.0, 1.0, 7.0, 3.0, 4.0]
    assert (line.edited.us.tolist(), line.edited.values.tolist()) == ([T0_US + 2 * MINUTE], [7.0])
    assert "v: 1 edited value" in texts(chart)
    marks = [t.text for t in parse(chart).iter(f"{SVG}title") if ", edited" in t.text]
    assert marks == ["a, 1 Mar 2026 00:02: 7 °C, edited"]


def test_a_query_of_edits_draws_the_current_values_and_marks_the_others(rooms):
    chart = rooms.range_query().for_edits().select_from("a").chart()
    (line,) = chart.figure.panels[0].lines
    assert line.values.tolist() == [0.0, 1.0, 7.0, 3.0, 4.0]
    assert sorted(line.overridden.values.tolist()) == [2.0, 9.0]
    assert line.overridden.now.tolist() == [7.0, 7.0]
    assert {"v: 1 edited value", "v: 2 overridden values"} <= set(texts(chart))


# -- several series and columns ------------------------------------------------------------------


def test_every_series_has_a_name_beside_its_line_in_its_colour():
    made = result([1.0, 2.0, 1.0, 3.0], series=["a", "a", "b", "b"], us=[T0_US, T0_US + 9] * 2)
    nodes = {n.text: n.get("fill") for n in parse(made.chart()).iter(f"{SVG}text")}
    assert (nodes["a"], nodes["b"]) == COLOURS[:2]
    only = result([1.0, 2.0]).chart()
    assert texts(only).count("a") == 1  # It is the title.


def test_of_hundreds_of_series_the_first_are_drawn_and_the_others_counted():
    names = [f"s{i:03}" for i in range(300) for _ in range(2)]
    made = result([1.0, 2.0] * 300, series=names, us=[T0_US, T0_US + MINUTE] * 300)
    chart = made.chart()
    assert chart.figure.series == tuple(f"s{i:03}" for i in range(8))
    assert "the first 8 of 300 series; max_series draws more" in texts(chart)[-1]
    assert len(lines(made.chart(max_series=40))) == 40
    paths = parse(made.chart(max_series=40)).iter(f"{SVG}path")
    looks = {(p.get("stroke"), p.get("stroke-dasharray")) for p in paths if p.get("stroke-width")}
    assert len(looks) >= 32


def test_names_do_not_cover_each_other():
    names = [f"s{i}" for i in range(12) for _ in range(2)]
    made = result([1.0, 2.0] * 12, series=names, us=[T0_US, T0_US + MINUTE] * 12)
    nodes = parse(made.chart(max_series=12)).iter(f"{SVG}text")
    places = sorted(float(n.get("y")) for n in nodes if (n.text or "").startswith("s"))
    assert len(places) == 12
    assert min(np.diff(places)) >= 13.9


def test_each_column_has_a_panel_with_its_unit():
    made = result(
        [1.0, 2.0], w=pa.array([1, 2]), note=pa.array(["x", "y"]), metadata={"unit": "°C"}
    )
    chart = made.chart(units={"w": "kWh"})
    assert [(p.title, p.unit) for p in chart.figure.panels] == [("v", "°C"), ("w", "kWh")]
    assert {"v(°C)", "w(kWh)"} <= set(texts(chart))
    assert "1 more column, not drawn: note" in texts(chart)[-1]
    assert [p.title for p in made.chart("note").figure.panels] == ["note"]
    assert [p.title for p in made.chart(["w", "v"]).figure.panels] == ["w", "v"]


def test_events_beyond_the_limit_are_told():
    table = result([1.0, 2.0]).table
    assert "8 more events beyond the query's limit" in texts(QueryResult(table, 10).chart())[-1]


# -- states --------------------------------------------------------------------------------------


def spans(chart, row=0):
    first = chart.figure.low
    return [
        ((s.start - first) // MINUTE, (s.end - first) // MINUTE, s.state)
        for s in chart.figure.panels[0].tracks[row].spans
    ]


def test_a_state_lasts_until_the_next_event_and_a_null_is_none():
    chart = result([True, True, False, None, True, False]).chart()
    assert spans(chart) == [(0, 2, "true"), (2, 3, "false"), (4, 5, "true"), (5, 5, "false")]
    chart = result(["on", "on", "off", None, "on", "on"]).chart()
    assert spans(chart) == [(0, 2, "on"), (2, 3, "off"), (4, 5, "on")]
    assert {"on", "off"} <= set(texts(chart))


def test_of_many_states_eight_have_colours_and_a_name_above_and_a_note_says_so():
    names = [f"state {i}" for i in (*range(12), *range(8))]
    chart = result(names).chart(width=300)
    assert "v: the 8 most frequent of 12 states have colours" in " ".join(texts(chart))
    boxes = [r.get("fill") for r in parse(chart).iter(f"{SVG}rect") if r.get("width") == "10"]
    assert boxes == list(COLOURS)
    places = {(n.get("x"), n.get("y")) for n in parse(chart).iter(f"{SVG}text")}
    assert len(places) == len(texts(chart))


def test_of_many_short_states_a_pixel_says_that_it_has_several():
    chart = result([i % 2 == 0 for i in range(20_000)]).chart()
    assert len(chart.figure.panels[0].tracks[0].spans) < 3
    assert "v: grey where a pixel has several states" in texts(chart)[-1]


# -- buckets -------------------------------------------------------------------------------------


def test_buckets_are_steps_and_a_missing_one_is_a_gap(rooms):
    rooms.append("b", 1.0, T0)
    rooms.append("b", 3.0, T0 + timedelta(minutes=30))
    rooms.append("b", 5.0, T0 + timedelta(hours=1))
    rooms.append("b", 5.0, T0 + timedelta(hours=5))
    query = rooms.range_query().every("1 hour")
    found = query.aggregate(v="mean", low=("v", "min"), high=("v", "max")).select_from("b")
    chart = found.chart()
    (panel,) = chart.figure.panels
    (line,) = panel.lines
    assert (panel.title, panel.unit) == ("v, min to max", "°C")
    assert line.values.tolist() == [2.0, 5.0, 5.0]
    assert line.is_first.tolist() == [True, False, True]
    assert (line.ends - line.us).tolist() == [60 * MINUTE] * 3
    assert (line.band.lower.tolist(), line.band.upper.tolist()) == (
        [1.0, 5.0, 5.0],
        [3.0, 5.0, 5.0],
    )
    paths = [p.get("d") for p in parse(chart).iter(f"{SVG}path") if p.get("stroke-width") == "1.6"]
    assert re.fullmatch(r"M[\d.]+,[\d.]+H[\d.]+V[\d.]+H[\d.]+M[\d.]+,[\d.]+H[\d.]+", paths[0])
    assert [p.title for p in found.chart(["low"]).figure.panels] == ["low"]


def test_buckets_of_a_zone_are_drawn_by_its_clock(rooms):
    days = rooms.range_query().every("1 day", timezone="Europe/Berlin").aggregate(v="mean")
    assert "times in Europe/Berlin" in texts(days.select_from("a").chart())
    assert "times in UTC" in texts(days.select_from("a").chart(timezone="UTC"))
    page = days.select_from("b")._repr_html_()
    assert page.count("times in Europe/Berlin") == 1
    assert "<td>1 Mar 2026 00:00</td>" in page  # 28 February, 23:00 in UTC, by the same clock.
    alone = days.select_from("a")._repr_html_()
    assert alone.startswith("<div><p>1 bucket, times in Europe/Berlin</p><table>")


def test_a_bucket_that_ends_after_the_year_9999_is_drawn(tmp_path):
    series = TimeSeries.create(tmp_path / "s", {"v": pa.float64()}, "unlimited")
    for year in (2026, 9999):
        series.append("a", 1.0, datetime(year, 12, 31, tzinfo=UTC), max_future=timedelta.max)
    chart = series.range_query().every("1 year").aggregate(v="mean").select_from().chart()
    assert "1 Jan 2026 00:00 to 31 Dec 9999" in repr(chart)
    assert "</svg>" in chart.to_svg()


def test_a_tag_is_drawn_as_series_are(rooms):
    found = rooms.range_query().every("1 hour").aggregate(n=("*", "count")).by("v").select_from("a")
    assert found.chart().figure.series == ("0.0", "1.0", "3.0", "4.0", "7.0")


# -- what cannot be drawn ------------------------------------------------------------------------


def test_an_empty_result_says_so():
    made = result([], kind=pa.float64())
    assert texts(made.chart()) == ["no events"]
    assert "no values" in texts(result([None, None], kind=pa.float64()).chart())


def test_what_cannot_be_drawn_is_refused_with_what_can():
    made = result([1.0], many=pa.array([[1]]))
    with pytest.raises(InvalidQuery, match=r"'many' is of type list.*accepted: v; next step"):
        made.chart("many")
    with pytest.raises(InvalidQuery, match="no value column 'w' to draw; accepted: v"):
        made.chart("w")
    with pytest.raises(InvalidQuery, match="no value column 'timestamp'"):
        made.chart("timestamp")
    alone = QueryResult(made.table.select(["v"]), 1)
    with pytest.raises(InvalidQuery, match="a chart needs the column timestamp"):
        alone.chart()
    for names in (["timestamp", "many"], ["timestamp"]):
        with pytest.raises(InvalidQuery, match="the result has no column that a chart can draw"):
            QueryResult(made.table.select(names), 1).chart()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"theme": "blue"}, "'blue' is not a theme; accepted: auto, light, dark"),
        ({"max_series": 0}, "max_series 0 is below 1"),
        ({"max_series": 1.5}, "1.5 is not a whole number"),
        ({"timezone": "Mars"}, "'Mars' is not a time zone"),
        ({"longest_gap": "soon"}, "longest_gap 'soon' is not the length of a gap"),
        ({"longest_gap": timedelta(-1)}, "is not the length of a gap"),
        ({"longest_gap": b"1 hour"}, "is not the length of a gap"),
        ({"longest_gap": pandas.NA}, "longest_gap <NA> is not the length of a gap"),
        ({"columns": []}, "columns [] are not names of columns"),
        ({"columns": [1]}, "columns [1] are not names of columns"),
        ({"units": {"w": "m"}}, "units: 'w' has no unit 'm' in this result; accepted: texts for"),
        ({"units": {"v": 1}}, "units: 'v' has no unit 1 in this result"),
        ({"units": 5}, "units 5 are not units of columns; accepted: a mapping"),
        ({"width": 3}, "width 3 is not a width of a chart; accepted: 240 to 4000 pixels"),
        ({"height": 10**9}, "height 1000000000 is not a height"),
    ],
)
def test_a_wrong_argument_is_refused(arguments, message):
    with pytest.raises(InvalidQuery, match=re.escape(message)):
        result([1.0]).chart(**arguments)


@pytest.mark.parametrize(
    ("given", "zone"), [("Asia/Tokyo", "Asia/Tokyo"), ("UTC", "UTC"), ("CET-1CEST", "UTC")]
)
def test_times_of_this_machines_zone(monkeypatch, given, zone):
    monkeypatch.setenv("TZ", given)
    assert f"times in {zone}" in texts(result([1.0, 2.0]).chart(timezone="local"))


DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("us", "zone", "first"),
    [
        ([T0_US, T0_US + MINUTE], "Europe/Berlin", "1 Mar 2026 01:00"),
        # The axis has years, which begin within the same pixel in every zone.
        ([T0_US - 60 * 366 * DAY, T0_US], "Europe/Berlin", "15 Jan 1966 01:00"),
        # No datetime has the time that a clock in Berlin shows.
        ([MIN_US, MIN_US + DAY], "UTC", "1 Jan 1 00:00"),
    ],
)
def test_note_tooltips_and_description_are_by_one_clock(us, zone, first):
    chart = result([1.0, 2.0], us=us).chart(timezone="Europe/Berlin", longest_gap="1 second")
    assert f"times in {zone}" in texts(chart)[-1]
    told = [dot.find(f"{SVG}title").text for dot in parse(chart).iter(f"{SVG}circle")]
    assert told[0] == f"a, {first}: 1"
    assert f"{first} to " in chart.figure.describe()
    assert f", {zone}." in chart.figure.describe()
    states = result(["x", "y"], us=us).chart(timezone="Europe/Berlin")
    assert f"x, from {first}" in states.to_svg()
    assert draw_text(states.figure, Style(80, 3, False, False)).endswith(f"\ntimes in {zone}")


# -- texts and pages -----------------------------------------------------------------------------

HOSTILE = "<script>alert('x')</script> & \x00\x1b[31m\ud7ff\u202e\"'"


@pytest.mark.parametrize("width", [240, 720])
def test_long_names_stay_inside_the_picture(width):
    long = "a/very/long/name/of/a/sensor/" * 9
    made = result([1.0, 2.0, 3.0], series=[f"{i}{long}" for i in range(3)])
    for chart in (
        made.chart(width=width, title=long),
        result(["x", "y"], series=[f"1{long}", f"2{long}"]).chart(width=width),
    ):
        for node in parse(chart).iter(f"{SVG}text"):
            text, x = node.text or "", float(node.get("x"))
            size = 0.6 * len(text) * float(node.get("font-size", 12))
            start = x - {"end": size, "middle": size / 2}.get(node.get("text-anchor"), 0)
            assert start >= -6
            assert start + size <= width + 6


@given(st.text(max_size=40))
def test_any_text_is_escaped_everywhere(text):
    made = result([1.0, 2.0], series=[text, f"{text}!"], metadata={"unit": text})
    chart = made.chart(title=text)
    for picture in (chart.to_svg(), chart._repr_html_(), made.chart(units={"v": text}).to_svg()):
        ET.fromstring(picture)
    states = result([f"{text}.", text]).chart()
    ET.fromstring(states.to_svg())


def test_a_hostile_name_is_text():
    chart = result([1.0, 2.0], series=[HOSTILE] * 2).chart()
    for picture in (chart.to_svg(), chart._repr_html_()):
        assert "<script" not in picture
        assert "\x00" not in picture
        assert "\x1b" not in picture
        assert "\u202e" not in picture
    assert texts(chart)[0].startswith("<script>alert('x')</script> & \\x00\\x1b[31m\ud7ff\\u202e")


def test_spaces_and_joiners_of_a_language_are_drawn():
    name = "10\u00a0°C \u3000 می\u200cرود 👩\u200d🔬"
    made = result([1.0, 2.0], series=[name] * 2, metadata={"unit": "\u2009°C"})
    assert texts(made.chart())[:2] == [name, "v(\u2009°C)"]
    assert "\ufffd" not in made._repr_html_()


def test_a_chart_has_a_name_and_a_description_for_those_who_do_not_see_it():
    root = parse(result([1.0, 3.0, 2.0], metadata={"unit": "°C"}).chart())
    assert (root.get("role"), root.get("aria-label")) == ("img", "a: v over time")
    assert root.find(f"{SVG}title").text == "a: v over time"
    assert root.find(f"{SVG}desc").text == (
        "1 Mar 2026 00:00 to 1 Mar 2026 00:02, UTC. v: a from 1 to 3 °C, last 2."
    )


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("page", PAGE_COLOURS)
def test_every_colour_has_contrast_to_both_pages(page):
    ground = luminance(PAGE_COLOURS[page][0])
    for colour in (*COLOURS, PAGE_COLOURS[page][1]):
        light, dark = sorted((luminance(colour), ground), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3


def test_colours_differ_to_people_who_see_two_primary_colours():
    """By the matrices of Machado et al. 2009, in the distance of Oklab."""
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in COLOURS])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    protan = [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ]
    deutan = [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
    to_cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    to_lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    for eye in (np.eye(3), protan, deutan):
        seen = np.clip(linear @ np.array(eye).T, 0, 1)
        lab = np.cbrt(seen @ np.array(to_cones).T) @ np.array(to_lab).T
        distances = np.linalg.norm(lab[:, None] - lab[None], axis=2)
        assert distances[~np.eye(len(lab), dtype=bool)].min() > 0.06


def test_an_inline_picture_has_the_colours_of_its_page_and_a_file_brings_a_page():
    made = result([1.0, 2.0])
    inline = made.chart()._repr_html_()
    assert 'fill="currentColor"' in inline
    assert "<style" not in inline
    assert not any(ground in inline for ground, _ in PAGE_COLOURS.values())
    auto = made.chart().to_svg()
    assert "prefers-color-scheme:dark" in auto
    assert PAGE_COLOURS["light"][0] in auto
    dark = made.chart(theme="dark").to_svg()
    assert f'fill="{PAGE_COLOURS["dark"][0]}"' in dark
    assert "<style" not in dark
    assert PAGE_COLOURS["dark"][0] in made.chart(theme="dark")._repr_html_()


def test_a_chart_is_the_same_for_the_same_result():
    assert result([1.0, 2.0]).chart().to_svg() == result([1.0, 2.0]).chart().to_svg()


# -- files ---------------------------------------------------------------------------------------


def test_save_writes_svg_and_png(tmp_path):
    chart = result([1.0, 2.0]).chart(width=400)
    chart.save(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == chart.to_svg()
    chart.save(str(tmp_path / "a.PNG"), scale=1.5)
    head = (tmp_path / "a.PNG").read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert int.from_bytes(head[16:20], "big") == 600


def test_save_refuses_another_ending_and_scale(tmp_path):
    chart = result([1.0]).chart()
    with pytest.raises(InvalidQuery, match=r"a name that ends with .svg or .png"):
        chart.save(tmp_path / "a.pdf")
    for scale in (0, 99, "2"):
        with pytest.raises(InvalidQuery, match="is not a scale"):
            chart.save(tmp_path / "a.png", scale=scale)
    assert not list(tmp_path.iterdir())


def test_png_without_its_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pyspark-timestream\[png\]'"):
        result([1.0]).chart().to_png()


def test_png_has_text_with_any_of_the_fonts_that_systems_bring(monkeypatch):
    """Debian with only DejaVu was told that it had no font."""
    import resvg_py

    asked = []

    def draw(*, svg_string, sans_serif_family, **_):
        asked.append(sans_serif_family)
        return svg_string.encode() if sans_serif_family == "DejaVu Sans" else b"no text"

    monkeypatch.setattr(resvg_py, "svg_to_bytes", draw)
    assert result([1.0]).chart().to_png().endswith(b"</text></svg>")
    assert asked[-1] == "DejaVu Sans"


def test_png_without_a_font_is_refused_instead_of_being_without_text(monkeypatch):
    import resvg_py

    monkeypatch.setattr(resvg_py, "svg_to_bytes", lambda **_: b"the same")
    with pytest.raises(InvalidQuery, match="this machine has none of the fonts Arial, "):
        result([1.0]).chart().to_png()
