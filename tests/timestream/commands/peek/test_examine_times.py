"""Candidates for the event time: what counts as one, its unit, its lag, and the order."""

import pyarrow as pa
import pytest
from timestream.builders import HEADERS, INSTANT

from pyspark_timestream.commands.peek.command import format_lag
from pyspark_timestream.commands.peek.examine import Candidate, find_candidates

NOW_S = 1_700_000_000
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def find(headers=None, timestamps_ms=None, types=None, **fields):
    pieces = {name: [pa.array(values)] for name, values in fields.items()}
    n = max((len(each) for each in fields.values()), default=len(headers or ()))
    return find_candidates(
        pieces,
        {name: piece[0].type for name, piece in pieces.items()} | (types or {}),
        pa.array(headers or [None] * n, HEADERS),
        pa.array(timestamps_ms or [NOW_S * 1_000] * n, pa.int64()),
    )


def sources(found):
    return [each.source for each in found]


@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("form", [int, str])
def test_the_unit_follows_from_the_size_of_numbers(unit, form):
    best = find(ts=[form(NOW_S * PER_SECOND[unit])] * 3)[0]
    assert (best.source, best.kind, best.unit) == ("field:ts", "number", unit)
    assert best.first_us == NOW_S * 1_000_000
    assert (best.least_lag_us, best.most_lag_us) == (0, 0)


@pytest.mark.parametrize("value", [1, 20_240_101, 10**11, -NOW_S, True, "x", "", 1.5])
def test_what_is_not_between_1990_and_2100_is_not_a_candidate(value):
    assert sources(find(ts=[value] * 3)) == ["record:timestamp"]


def test_texts_dates_and_timestamps_need_no_unit():
    found = find(
        a=["2023-11-14T22:13:20Z"] * 2,
        b=pa.array([NOW_S * 1_000_000] * 2, pa.int64()).cast(INSTANT),
        c=pa.array([19_675] * 2, pa.int32()).cast(pa.date32()),
    )
    assert {each.source: (each.kind, each.unit) for each in found} == {
        "field:a": ("text", ""),
        "field:b": ("timestamp", ""),
        "field:c": ("date", ""),
        "record:timestamp": ("record", ""),
    }


def test_the_record_stands_behind_named_times_and_before_mere_numbers():
    near, far = NOW_S * 1_000, (NOW_S - 90 * 86_400) * 1_000
    found = find(
        number=[far] * 2,
        updated_at=[near] * 2,
        createdAt=[far] * 2,
        delivered=[near] * 2,
        event_time=[far] * 2,
        **{"a.ts": [near] * 2},
    )
    assert sources(found) == [
        "field:a.ts",
        "field:event_time",
        "field:delivered",
        "field:createdAt",
        "record:timestamp",
        "field:number",
        "field:updated_at",
    ]


def test_most_records_that_have_a_field_decide():
    assert sources(find(ts=[NOW_S, None, None])) == ["field:ts", "record:timestamp"]
    assert find(ts=[NOW_S, NOW_S, 1])[0].readable == 2
    assert sources(find(ts=[NOW_S, 1])) == ["record:timestamp"]


def test_headers_are_candidates_unless_their_names_suggest_secrets():
    def header(name):
        return {"key": name, "value": str(NOW_S).encode()}

    rows = [[header("ts"), header("session_token"), header("__value_schema_id")]] * 2
    assert sources(find(headers=rows)) == ["header:ts", "record:timestamp"]


def test_lags_are_behind_or_ahead_of_the_record():
    found = find(ts=[NOW_S, NOW_S + 5], timestamps_ms=[(NOW_S + 3) * 1_000] * 2)[0]
    assert (found.least_lag_us, found.most_lag_us) == (-2_000_000, 3_000_000)
    assert format_lag(found) == "2 s ahead to 3 s behind"


@pytest.mark.parametrize(
    ("least", "most", "text"),
    [
        (0, 0, "equal"),
        (None, None, "nothing to compare with"),
        (1_000_000, 90_000_000, "1 s to 1.5 min behind"),
        (-7_200_000_000, -3_600_000_000, "1 h to 2 h ahead"),
        (-250_000, -250_000, "250 ms ahead"),
        (86_400_000_000, 86_400_000_000, "1 d behind"),
    ],
)
def test_lags_are_written_for_people(least, most, text):
    assert format_lag(Candidate("field:a", "number", "s", 1, 0, 0, least, most)) == text


def test_without_timestamps_there_is_no_record_candidate():
    found = find(ts=[NOW_S], timestamps_ms=[-1])
    assert sources(found) == ["field:ts"]
    assert found[0].least_lag_us is None
