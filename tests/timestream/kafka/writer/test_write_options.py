"""The options of a write, and the marks that they make (semantics 29.2)."""

import pytest

from pyspark_timestream.core.instants import FINAL_US, MIN_US
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.writer.write_options import read_write_options

GIVEN = {"transport": "kafka", "kafka.bootstrap.servers": "b:9092", "topic": "t", "writer": "w"}


def read(**options: str):
    named = {name.replace("__", "."): text for name, text in options.items()}
    return read_write_options({**GIVEN, "checkpointLocation": "/c", **named})


def test_the_options_of_a_write_are_read_and_secrets_are_not_shown() -> None:
    options = read(ctiDelay="1 hour", ctiFrom="Watermark", kafka__sasl__password="hush")
    assert (options.topic, options.writer, options.header) == ("t", "w", "cti")
    assert (options.cti_from, options.delay_us) == ("watermark", 3_600_000_000)
    assert options.client["sasl.password"] == "hush"
    assert "hush" not in repr(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "a,b"}, "option 'topic'"),
        ({"writer": " w"}, "option 'writer'"),
        ({"writer": ""}, "option 'writer'"),
        ({"ctiDelay": "-1 tick"}, "option 'ctiDelay'"),
        ({"ctiFrom": "clock"}, "option 'ctiFrom'"),
        ({"ctiFrequency": "1"}, "option 'ctiFrequency': '1' was given, but it belongs to reads"),
        ({"topics": "t"}, "did you mean 'topic'"),
        ({"kafka__transactional__id": "x"}, "use option 'transactionalIdPrefix'"),
        ({"kafka__group__id": "x"}, "use option 'transactionalIdPrefix'"),
        ({"kafka__enable__idempotence": "false"}, "there is no transaction without it"),
        ({"kafka__plugin__library__paths": "x"}, "it would load a library"),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name(options, said) -> None:
    with pytest.raises(OptionError, match=said):
        read(**options)


def test_a_required_option_is_named_where_it_is_missing() -> None:
    with pytest.raises(OptionError, match=r"option 'kafka\.bootstrap\.servers': it"):
        read_write_options({"transport": "kafka", "topic": "t", "writer": "w"})


@pytest.mark.parametrize("given", [{"writer": "w"}, {"ctiHeader": "mark"}, {"ctiDelay": "1 hour"}])
def test_an_option_on_marks_asks_for_them(given) -> None:
    plain = {key: text for key, text in GIVEN.items() if key != "writer"}
    assert not read_write_options(plain).wants_marks
    assert not read_write_options({**plain, "transactionalIdPrefix": "p"}).wants_marks
    assert read_write_options({**plain, **given}).wants_marks


def test_a_mark_is_whole_milliseconds_behind_and_a_final_one_stays() -> None:
    options = read(ctiDelay="10 us")
    ctis = (None, 7_009, 7_010, -1, MIN_US, FINAL_US)
    marks = [None, 6_000, 7_000, -1_000, MIN_US, FINAL_US]
    assert [options.find_mark(us) for us in ctis] == marks
