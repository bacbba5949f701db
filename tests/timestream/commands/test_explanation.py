"""An explanation reads well in a terminal and in a notebook, with any names."""

import dataclasses
import re
import xml.etree.ElementTree as ET

import pytest
from timestream.builders import at
from timestream.commands_watch import view_of
from timestream.histories import MARKS, NOON, SECOND, history, share, state, with_writers

from pyspark_timestream.commands.explanation import (
    MAX_ROWS,
    Explanation,
    draw_stream,
    explain_stream,
)
from pyspark_timestream.commands.watch.page import render_sections
from pyspark_timestream.kafka.diagnosis.diagnoses import NEXT_STEPS, Kind
from pyspark_timestream.kafka.diagnosis.history import BatchRecord
from pyspark_timestream.kafka.offsets.changes import ClockChange
from pyspark_timestream.kafka.offsets.offset import MalformedPayloads
from pyspark_timestream.report import COLOURS


def explained(*batches, notes=(), **more):
    return Explanation("Query 'q'", (explain_stream(history(*batches, **more)),), notes)


def renamed(topic, writer="w"):
    """One partition of a topic of that name, held back by a writer of that name."""
    (moment,) = history([share(with_writers(3, last=9, **{writer: 3}))], settings=MARKS)
    offset = moment.offset
    shares = {at(0, topic): offset.partitions[at(0)]}
    fields = {name: getattr(offset, name) for name in ("stream", "settings", "starts", "cti_us")}
    made = type(offset)(**fields, partitions=shares)
    return Explanation("q", (explain_stream((BatchRecord(NOON, made),)),))


def parsed(explanation):
    """The HTML as a tree; it fails to parse where something was not escaped."""
    return ET.fromstring(explanation._repr_html_().replace("&#160;", " "))


def cells_of(explanation):
    return [[cell.text or "" for cell in row] for row in parsed(explanation).iter("tr")][1:]


def test_the_text_says_what_holds_back_since_when_and_the_fix():
    text = str(explained([share(state(5, dropped=3)), share(state(1))]))
    assert text.splitlines()[:6] == [
        "Query 'q'",
        "",
        "Stream of 'topic', before batch 0 of 2024-01-01T12:00:00Z",
        "CTI: 2024-01-01T12:00:01Z, since 2024-01-01T12:00:00Z",
        "",
        "=> an idle partition: topic 'topic' partition 1 (since 2024-01-01T12:00:00Z)",
    ]
    assert f"   Fix: {Kind.IDLE_PARTITION.fix}." in text
    assert repr(explained([share(state(5))])) == str(explained([share(state(5))]))


def test_text_and_picture_name_the_last_three_changes_newest_first_and_one_that_waits():
    changes = tuple(
        ClockChange(n, None if n == 0 else NOON, {"ctiDelay": f"{n} s"}, {"ctiDelay": f"{n + 1} s"})
        for n in range(5)
    )
    waiting = "2024-01-01T13:00:00Z: 'violationPolicy' from 'drop' to 'flag'"
    for count in (1, 5):
        told = explained(
            [share(state(5))], changes=changes[:count], unpinned={"changeFrom": waiting}
        )
        lines = str(told).splitlines()[4:9]
        assert lines[0] == f"A change waits for the CTI {waiting}"
        if count == 1:
            assert (
                lines[1] == "Changed from batch 0 on, at CTI none: 'ctiDelay' from '0 s' to '1 s'"
            )
        else:
            assert lines[1].startswith("Changed from batch 4 on, at CTI 2024-01-01T12:00:00Z: ")
            assert lines[4] == "... and 2 earlier changes"
        page = "".join(parsed(told).itertext())
        assert all(line in page for line in lines[: 1 + min(count, 3)])


def test_the_table_has_causes_first_and_every_fact():
    held = explained([share(state(5, dropped=3, adjusted=1, flagged=2, malformed=4)),
                      share(state(1), first=7)], left=0)  # fmt: skip
    assert cells_of(held) == [
        ["*", "topic 1", "7", "0", "2024-01-01T12:00:01Z", "4 seconds",
         "2024-01-01T12:00:01Z", "no",
         "20", "0", "0", "0", "0", "0", "0"],
        # It has late rows, which are told after what holds the CTI back.
        ["*", "topic 0", "100", "0", "2024-01-01T12:00:05Z", "0",
         "2024-01-01T12:00:05Z", "no",
         "20", "3", "1", "2", "4", "0", "0"],
    ]  # fmt: skip


def test_a_lag_is_counted_from_the_offset_and_unknown_without_a_log_end():
    (known,) = cells_of(explained([share(state(5), 4)], left=3))
    (unknown,) = cells_of(explained([share(state(5), 4)], left=None))
    (none,) = cells_of(explained([share(state(5))], left=None))
    assert (known[3], unknown[3], none[3]) == ("7", "?", "?")


def test_a_partition_without_times_says_none_and_one_that_is_idle_says_so():
    row, _ = cells_of(explained([share(state(None, events=0), idle=True), share(state(5))]))
    assert row[4:8] == ["none", "", "none", "yes"]


def test_a_partition_with_few_late_rows_is_no_cause():
    shares = [share(state(5, events=1000, dropped=count)) for count in (9, 0, 11)]
    rows = cells_of(explained(shares))
    assert [row[:2] for row in rows] == [["*", "topic 2"], ["", "topic 0"], ["", "topic 1"]]
    rows = cells_of(explained(shares[:2]))
    assert [row[:2] for row in rows] == [["", "topic 0"], ["", "topic 1"]]
    assert "#d33" not in explained(shares[:2])._repr_html_()


def test_after_the_first_finding_the_others_have_a_line_each_and_five_are_shown():
    settings = {"ctiFrequency": "1", "maxFuture": "1 s", "startTime": "at"}
    few = {"dropped": 1, "malformed": 1, "tombstones": 1, "future": 1}
    wrong = MalformedPayloads.from_reasons({"type": 1})
    shares = [share(state(5, **few), malformed_payloads=wrong), share(state(1))]
    shown = explained(shares, settings=settings)
    lines = str(shown).splitlines()
    heads = [line for line in lines if line.startswith("=>")]
    assert len(heads) == 5
    assert heads[0].startswith("=> an idle partition")
    assert str(shown).count("Fix: ") == 1
    assert "... and 1 more" in lines
    full = str(dataclasses.replace(shown, details=True))
    assert (full.count("=> "), full.count("Fix: ")) == (6, 6)
    # A notebook has room.
    assert shown._repr_html_().count("Fix: ") == 6


def test_writers_follow_their_partition_and_the_silent_one_is_marked():
    rows = cells_of(explained([share(with_writers(3, last=9, a=9, b=3))], settings=MARKS))
    assert [(row[0], row[1].strip(), row[4]) for row in rows[1:]] == [
        ("", "writer 'a'", "2024-01-01T12:00:09Z"),
        ("*", "writer 'b'", "2024-01-01T12:00:03Z"),
    ]


def test_names_are_escaped_in_html_and_printable_in_a_terminal():
    nasty = renamed("<b>&\"'", "</td><script>alert(1)</script>")
    assert "<script>" not in nasty._repr_html_()
    assert any("</td><script>" in row[1] for row in cells_of(nasty))
    assert "\x1b" not in str(renamed("a\x1b[31m"))
    assert "a\\x1b[31m" in str(renamed("a\x1b[31m"))


def test_malformed_values_are_counted_by_reason_and_partition_with_the_next_step():
    shares = [
        share(state(5), malformed_payloads=MalformedPayloads((("framing", 2), ("key type", 1)))),
        share(state(5), malformed_payloads=MalformedPayloads.from_reasons({"framing": 7})),
        share(state(5)),
    ]
    shown = explained(shares)
    assert str(shown).splitlines()[-5:] == [
        "Malformed values, reason 'framing': 9 "
        "(7 of topic 'topic' partition 1, 2 of topic 'topic' partition 0)",
        f"   Next step: {NEXT_STEPS['framing']}.",
        "",
        "Malformed values, reason 'key type': 1 (1 of topic 'topic' partition 0)",
        f"   Next step: {NEXT_STEPS['key type']}.",
    ]
    texts = [text.strip() for text in parsed(shown).itertext()]
    for line in str(shown).splitlines()[-5:]:
        assert not line or line.strip() in texts
    assert "Malformed values" not in str(explained([share(state(5))]))


def test_notes_and_subject_are_shown_in_both_views():
    noted = explained([share(state(5))], notes=("the query <stopped>",))
    assert "Note: the query <stopped>." in str(noted)
    assert "Note: the query &lt;stopped&gt;." in noted._repr_html_()


def test_many_partitions_are_limited_causes_first():
    shares = [*[share(state(9))] * 40, share(state(1))]
    many = explained(shares)
    assert f"... and {41 - MAX_ROWS} more partitions" in str(many)
    assert f"... and {41 - MAX_ROWS} more partitions" in many._repr_html_()
    rows = cells_of(many)
    assert len(rows) == MAX_ROWS
    assert rows[0][:2] == ["*", "topic 40"]


def drawn(*shares, **more):
    stream = explain_stream(history(list(shares), **more))
    return ET.fromstring(draw_stream(stream)) if draw_stream(stream) else None


def tags(tree, *names):
    wanted = {f"{{http://www.w3.org/2000/svg}}{name}" for name in names}
    return [each for each in tree.iter() if each.tag in wanted]


def bars(tree):
    return [each for each in tags(tree, "rect") if each.get("class") == "bar"]


def test_the_picture_has_a_bar_to_each_cti_a_dot_at_each_event_and_the_streams_line():
    tree = drawn(share(state(10, last_us=NOON + 20 * SECOND)), share(state(0)))
    # Causes come first: the bar that ends at 0, without news; then the one at 10 of 20 seconds.
    held, free = (float(bar.get("x")) + float(bar.get("width")) for bar in bars(tree))
    last_held, last_free = (float(dot.get("cx")) for dot in tags(tree, "circle"))
    assert {float(line.get("x1")) for line in tags(tree, "line")} == {last_held}
    assert held == pytest.approx(last_held)
    assert free - held == pytest.approx(last_free - free, abs=0.2)
    assert free - held > 100


def test_the_picture_names_the_cause_in_words_and_colour():
    tree = drawn(share(state(10)), share(state(0)), share(state(None, events=0), idle=True))
    said = [text.text for text in tags(tree, "text")]
    assert said.count("holds back") == 1
    assert "idle, no CTI" in said
    assert [bar.get("fill") for bar in bars(tree)] == [COLOURS[1], COLOURS[0]]


def test_the_picture_has_an_axis_with_round_ticks():
    tree = drawn(share(state(10)), share(state(0)))
    said = [text.text for text in tags(tree, "text")]
    assert {"12:00:00", "12:00:05", "12:00:10", "1 Jan 2024"} <= set(said)


def test_the_picture_is_drawn_as_the_page_draws_it():
    """Each mark of a partition has the same class, order and share of the width in both."""
    shares = [share(state(10)), share(state(0)), share(state(4), idle=True)]
    lanes = [each for each in tags(drawn(*shares), "rect", "circle", "line") if each.get("class")]
    (html,) = render_sections([view_of(shares)]).values()
    shown = re.findall(r'<(?:rect|circle|line) class="(rail|bar|event|stream-cti)"[^>]*', html)
    assert [each.get("class") for each in lanes] == shown
    widths = [float(bar.get("width")) / 470 * 100 for bar in bars(drawn(*shares))]
    percents = re.findall(r'class="bar"[^>]*width="([\d.]+)%"', html)
    assert sorted(widths) == pytest.approx(sorted(map(float, percents)), abs=0.2)


def test_without_any_time_there_is_no_picture():
    assert drawn(share(state(None, events=0))) is None


def test_one_instant_alone_is_an_axis():
    assert drawn(share(state(3))) is not None


def test_head_says_which_settings_came_from_the_topics_description():
    taken = {"ctiDelay": "5 minutes", "startTime": "field:at"}
    (moment,) = history([share(state(5))])
    told = dataclasses.replace(moment, topic_settings=("topic:times", taken))
    later = dataclasses.replace(moment, offset=dataclasses.replace(moment.offset, number=1))
    text = str(Explanation("q", (explain_stream((told, later)),)))
    wanted = (
        "From 'timeSettings' = 'topic:times': 'ctiDelay' = '5 minutes', 'startTime' = 'field:at'"
    )
    assert wanted in text.splitlines()
    assert "timeSettings" not in str(explained([share(state(5))]))
