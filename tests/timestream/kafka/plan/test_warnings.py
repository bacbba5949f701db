"""Each kind of mistake is said once, and again only where it has grown; what holds is listed."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pyspark_timestream.kafka.plan.findings import Finding, Kind
from pyspark_timestream.kafka.plan.warnings import (
    new_warnings,
    standing_warnings,
    warned,
    warnings_from_json,
    warnings_to_json,
    with_details,
)

LATE = Kind.LATE_ROWS


def found(level=0, text="seen", kind=LATE):
    return Finding(kind, "partition 0", text, level=level)


def said(*looks):
    """What is logged at each of some looks, which find these."""
    warnings, log = {}, []
    for findings in looks:
        after = warned(warnings, findings)
        log.append([finding.text for finding in new_warnings(warnings, after)])
        warnings = after
    return log


def test_a_warning_is_said_once_while_it_holds_and_when_it_holds_again():
    assert said([found()], [found()], [], [found()]) == [["seen"], [], [], []]


def test_a_warning_is_said_again_when_its_level_has_risen_and_not_when_it_falls():
    looks = [[found(level, f"level {level}")] for level in (1, 1, 2, 1, 2, 5)]
    assert said(*looks) == [["level 1"], [], ["level 2"], [], [], ["level 5"]]


def test_a_restart_from_the_offset_says_nothing_again():
    first = warned({}, [found(3)])
    again = warnings_from_json(json.loads(json.dumps(warnings_to_json(first))))
    assert again == first
    assert new_warnings(again, warned(again, [found(3)])) == []


def test_what_holds_keeps_its_text_and_what_holds_again_has_the_newest():
    first = warned({}, [found(text="first")])
    assert warned(first, [found(text="second")]) == first
    over = warned(first, [])
    assert standing_warnings(over) == []
    (again,) = standing_warnings(warned(over, [found(text="third")]))
    assert again.text == "third"


def test_another_culprit_is_named_in_the_list_and_not_said_again():
    first = warned({}, [found()])
    other = Finding(LATE, "partition 7", "seen there")
    after = warned(first, [other])
    assert new_warnings(first, after) == []
    assert [finding.culprit for finding in standing_warnings(after)] == ["partition 7"]


def test_the_records_are_looked_at_only_for_what_is_written_down():
    asked = []

    def look(finding):
        asked.append(finding.kind)
        return "one begins with '13'"

    first = warned({}, [found()], look)
    warned(first, [found()], look)
    assert asked == [LATE]
    (finding,) = standing_warnings(first)
    assert finding.whole_text == "seen; one begins with '13'"
    (fresh,) = with_details([found(text="seen now")], first)
    assert fresh.whole_text == "seen now; one begins with '13'"


def test_of_two_findings_of_a_kind_the_first_counts():
    assert said([found(text="one"), found(text="two")]) == [["one"]]


def test_what_matters_most_is_listed_and_said_first_also_after_a_restart():
    kinds = [Kind.LATE_ROWS, Kind.IDLE_PARTITION, Kind.MALFORMED]
    after = warned({}, [found(kind=kind) for kind in kinds])
    again = warnings_from_json(json.loads(json.dumps(warnings_to_json(after), sort_keys=True)))
    for listed in (new_warnings({}, after), standing_warnings(after), standing_warnings(again)):
        assert [finding.kind for finding in listed] == kinds[::-1]


def test_a_kind_that_this_release_does_not_know_is_passed_over():
    written = warnings_to_json(warned({}, [found()]))
    assert warnings_from_json({**written, "a newer kind": {"culprit": "x", "text": "y"}}) == (
        warned({}, [found()])
    )


LOOKS = st.lists(
    st.lists(st.builds(found, st.integers(0, 3), kind=st.sampled_from(Kind)), max_size=3),
    max_size=8,
)


@given(LOOKS)
def test_of_any_looks_each_level_of_a_kind_is_said_at_most_once_and_in_rising_order(looks):
    warnings, levels = {}, {}
    for findings in looks:
        after = warned(warnings, findings)
        for finding in new_warnings(warnings, after):
            assert finding.level > levels.get(finding.kind, -1)
            levels[finding.kind] = finding.level
        # Nothing that is found stays unsaid, and what is listed is just what was found.
        assert {finding.kind for finding in findings} <= levels.keys()
        kinds = {finding.kind for finding in standing_warnings(after)}
        assert kinds == {finding.kind for finding in findings}
        warnings = warnings_from_json(warnings_to_json(after))
        assert warnings == after
