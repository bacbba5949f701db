"""The delays to try, and how much of a topic is read."""

import pytest

from pyspark_timestream import OptionError
from pyspark_timestream.commands.measure_lateness import LADDER_US, parse_delays, parse_last


def test_delays_are_in_order_once_each_and_0_is_always_there() -> None:
    assert parse_delays(["5 minutes", " 20 seconds", "300 s"]) == (0, 20_000_000, 300_000_000)
    assert parse_delays(["0 s"]) == (0,)


def test_the_ladder_rises_from_0_to_a_day() -> None:
    assert LADDER_US[0] == 0
    assert LADDER_US[-1] == 86_400_000_000
    assert list(LADDER_US) == sorted(set(LADDER_US))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "there is none"),
        ([""], "cannot read ''"),
        (["5 minutes", "soon"], "cannot read 'soon'"),
        (["600000 weeks"], "longer than 500000 weeks"),
        (["-1 tick"], "'-1 tick' is negative"),
        ([f"{n} s" for n in range(51)], "there are 51; accepted: at most 50"),
    ],
)
def test_a_wrong_delay_is_refused(texts, said) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        parse_delays(texts)
    assert str(caught.value).startswith("option 'delays': ")


@pytest.mark.parametrize("text", ["", "yesterday", "0 s", "-6 hours"])
def test_last_of_nothing_is_refused(text) -> None:
    with pytest.raises(OptionError, match=f"option 'last': .*'{text}'"):
        parse_last(text)
    assert parse_last("6 hours") == 21_600_000_000
