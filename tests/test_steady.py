"""A long run counts as flat only if nothing grows; a few odd samples do not matter."""

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from steady import Allowed, as_row, judge_all, judge_course

TIMES = [float(second) for second in range(400)]
ROOM = Allowed(0.1, 5.0)


def course(of: Callable[[float], float], noise: float = 0.0, allowed: Allowed = ROOM) -> bool:
    draw = random.Random(7)
    return judge_course(
        TIMES, [of(at) + draw.uniform(-noise, noise) for at in TIMES], allowed
    ).is_flat


@pytest.mark.parametrize(
    ("name", "of", "is_flat"),
    [
        ("level", lambda at: 100.0, True),
        ("falling", lambda at: 500.0 - at, True),
        ("warming up in the first quarter", lambda at: min(at * 2, 200.0), True),
        ("a sawtooth", lambda at: 100 + 4 * (at % 16), True),
        ("one high sample in ten", lambda at: 1000.0 if at % 10 == 0 else 100.0, True),
        ("a leak", lambda at: 100 + at / 4, False),
        ("a leak under a sawtooth", lambda at: 100 + at / 4 + 4 * (at % 16), False),
        ("growing as a root", lambda at: 100 * at**0.5, False),
        ("a step in the last third", lambda at: 100.0 if at < 270 else 130.0, False),
        ("growing only at the end", lambda at: 100 + max(at - 250, 0) / 2, False),
    ],
)
def test_growth_is_told_from_noise(name: str, of: Callable[[float], float], is_flat: bool) -> None:
    assert course(of) is is_flat, name
    assert course(of, noise=8) is is_flat, name


def test_what_is_small_may_rise_by_its_room() -> None:
    assert course(lambda at: at / 100)
    assert not course(lambda at: at / 100, allowed=Allowed(0.1, 0.5))


@example(values=[0.0] * 11 + [1.0, 1.0], level=0.0, unit=0.9)
@given(
    st.lists(st.floats(0, 1e6), min_size=8, max_size=60),
    st.floats(0, 1e3),
    st.floats(0.001, 1000),
)
def test_a_level_added_or_another_unit_of_time_changes_no_rise(
    values: list[float], level: float, unit: float
) -> None:
    times = [float(number) for number in range(len(values))]
    plain = judge_course(times, values, ROOM)
    moved = judge_course([at * unit for at in times], [value + level for value in values], ROOM)
    assert moved.rise == pytest.approx(plain.rise, rel=1e-6, abs=1e-3)
    assert moved.last - moved.second == pytest.approx(plain.last - plain.second, abs=1e-3)


def test_samples_without_quarters_are_refused() -> None:
    with pytest.raises(ValueError, match="7 samples at 7 times, not 8 or more"):
        judge_course(TIMES[:7], TIMES[:7], ROOM)
    with pytest.raises(ValueError, match="7 samples at 8 times"):
        judge_course(TIMES[:8], TIMES[:7], ROOM)


def test_each_quantity_has_a_row() -> None:
    samples = [{"seconds": at, "held MB": 100 + at, "files": 3.0} for at in TIMES]
    found = judge_all(samples, {"held MB": ROOM, "files": ROOM, "missing": ROOM})
    assert [course.is_flat for course in found.values()] == [False, True, True]
    assert as_row("held MB", found["held MB"]) == {
        "what": "held MB",
        "second quarter": 250,
        "last quarter": 450,
        "rise in the second half": 200,
        "most": 499,
        "may rise by": 25.0,
        "flat": "no",
    }
