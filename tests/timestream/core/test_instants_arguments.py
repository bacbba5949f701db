"""Functions refuse a duration, a count or a wait that is none, by name, before they do anything."""

import math
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pytest

from pyspark_timestream import (
    OptionError,
    PunctuatedProducer,
    TimeMetrics,
    advance_time,
    aggregate_windows,
    alter_lifetime,
    await_end,
    end_stream,
    measure_lateness,
    shift_time,
)
from pyspark_timestream.core.instants import parse_duration
from pyspark_tseries import correct_late

NOTHING: Any = None
"""A frame, reader or query that is never reached."""

ROWS = {"rows": "count"}
TOPIC = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "ctiFrequency": "1"}

NO_DURATIONS = ["", "5", "1 month", "1e3 s", "nan hours", "0.1 us", "1_000 s", "P1D", b"1 hour"]
NO_TEXTS = [5, 1.5, True, math.nan, Decimal(2), timedelta(1), np.timedelta64(1, "h"), [], ["1 s"]]
TOO_LONG = "9999999999 weeks"

correct = partial(
    correct_late, NOTHING, "nowhere", {"n": (NOTHING, "sum")}, series="s", window="1 hour"
)
DURATIONS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "advance_time.keep": (partial(advance_time, NOTHING), ["-1 s"]),
    "shift_time.by": (partial(shift_time, NOTHING), []),
    "alter_lifetime.by": (partial(alter_lifetime, NOTHING, "1 hour"), []),
    "alter_lifetime.duration": (partial(alter_lifetime, NOTHING), ["0 hours", "-1 s"]),
    "aggregate_windows.window": (
        partial(aggregate_windows, NOTHING, by=[], aggregates=ROWS),
        ["0 hours", "-1 s"],
    ),
    "aggregate_windows.slide": (
        partial(aggregate_windows, NOTHING, by=[], window="1 hour", aggregates=ROWS),
        ["0 hours", "-1 s"],
    ),
    "TimeMetrics.keep_ended": (TimeMetrics, ["-1 s"]),
    "measure_lateness.delays": (partial(measure_lateness, TOPIC), ["-1 s"]),
    "measure_lateness.last": (partial(measure_lateness, TOPIC), ["0 hours", "-1 s"]),
    "correct_late.window": (correct, ["0 hours", "-1 s"]),
    "correct_late.max_age": (correct, ["-1 s"]),
}


@pytest.mark.parametrize("name", DURATIONS)
def test_what_is_no_duration_is_refused_by_name(name: str) -> None:
    call, below = DURATIONS[name]
    argument = name.partition(".")[2]
    for value in [*NO_DURATIONS, *NO_TEXTS, TOO_LONG, *below]:
        if name.startswith("measure_lateness") and str(value) in ("['1 s']", "1 hours"):
            continue  # It reads the texts of what it is given.
        with pytest.raises(OptionError, match=f"option '{argument}': .*; accepted: .*next step: "):
            call(**{argument: value})


NO_NUMBERS = [True, "2", "", b"2", Decimal(2), Decimal("NaN"), np.bool_(True), [1], timedelta(1)]
NO_WAITS = [*NO_NUMBERS, -1, math.nan, math.inf, 2**63, np.int64(-1), np.float64("nan")]

CONFIG = {"bootstrap.servers": "127.0.0.1:1"}
WAITS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "await_end.poll_seconds": (partial(await_end, NOTHING), [0]),
    "end_stream.poll_seconds": (partial(end_stream, NOTHING), [0]),
    "end_stream.timeout_seconds": (partial(end_stream, NOTHING), []),
    "PunctuatedProducer.auto_note_time": (partial(PunctuatedProducer, CONFIG, "t", "w"), [0]),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_no_thread_can_wait_for_is_refused_by_name(name: str) -> None:
    call, more = WAITS[name]
    argument = name.partition(".")[2]
    for value in [*NO_WAITS, *more]:
        with pytest.raises(OptionError, match=f"option '{argument}': .*; accepted: .*next step: "):
            call(**{argument: value})


def test_what_is_no_count_is_refused_by_name() -> None:
    for value in [*NO_NUMBERS, None, 0, -1, 1.0, 1.5, math.nan, 2**63, np.float64(2)]:
        with pytest.raises(
            OptionError, match=r"option 'max_partitions': .*; accepted: .*next step"
        ):
            TimeMetrics(max_partitions=value)


def test_what_is_no_port_is_refused_with_the_next_step() -> None:
    for value in ["80", 80.0, math.nan, 65536, -1, [80]]:
        with pytest.raises(OSError, match=r"port .* cannot be listened on: .*; next step: "):
            TimeMetrics(port=value)  # type: ignore[arg-type]


def test_whole_numbers_of_numpy_are_accepted() -> None:
    TimeMetrics(max_partitions=np.int64(2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5 minuets", "'minuets' is not a unit such as 'ms', 'seconds'"),
        ("1 month", "'month' is not a unit"),
        ("5", "'5' is not made of numbers with units, such as '5 seconds'"),
        ("PT5M", "'PT5M' is not made of numbers with units"),
        ("5 minutes 7", "'5 minutes 7' is not made of numbers with units"),
    ],
)
def test_a_text_that_is_no_duration_is_told_what_is_wrong_with_it(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_duration(text)
