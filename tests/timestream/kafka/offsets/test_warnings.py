"""Each kind of mistake is warned about once, and again only when its level rises."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pyspark_timestream.kafka.offsets.findings import (
    Finding,
    Kind,
    active_warnings,
    add_details,
    find_new_warnings,
    update_warnings,
    warnings_from_json,
    warnings_to_json,
)

LATE = Kind.LATE_ROWS


def found(level=0, text="seen", kind=LATE):
    return Finding(kind, "partition 0", text, level=level)


def said(*looks):
    """What is logged at each of some looks, which find these."""
    warnings, log = {}, []
    for findings in looks:
        after = update_warnings(warnings, findings)
        log.append([finding.text for finding in find_new_warnings(warnings, after)])
        warnings = after
    return log


def test_warning_is_given_once_even_if_it_holds_again():
    assert said([found()], [found()], [], [found()]) == [["seen"], [], [], []]


def test_warning_is_repeated_only_when_its_level_rises():
    looks = [[found(level, f"level {level}")] for level in (1, 1, 2, 1, 2, 5)]
    assert said(*looks) == [["level 1"], [], ["level 2"], [], [], ["level 5"]]


def test_restart_from_the_offset_repeats_no_warning():
    first = update_warnings({}, [found(3)])
    again = warnings_from_json(json.loads(json.dumps(warnings_to_json(first))))
    assert again == first
    assert find_new_warnings(again, update_warnings(again, [found(3)])) == []


def test_warning_has_the_counts_of_now_and_what_its_records_showed_then():
    first = update_warnings({}, [found(text="first")], lambda finding: "begins 'x'")
    now = update_warnings(first, [found(text="second")], lambda finding: "never asked")
    (finding,) = active_warnings(now)
    assert (finding.text, finding.detail) == ("second", "begins 'x'")
    assert find_new_warnings(first, now) == []
    assert update_warnings(now, [found(text="second")]) == now
    over = update_warnings(first, [])
    assert active_warnings(over) == []
    (again,) = active_warnings(update_warnings(over, [found(text="third")]))
    assert again.text == "third"


def test_another_culprit_is_listed_without_a_new_warning():
    first = update_warnings({}, [found()])
    other = Finding(LATE, "partition 7", "seen there")
    after = update_warnings(first, [other])
    assert find_new_warnings(first, after) == []
    assert [finding.culprit for finding in active_warnings(after)] == ["partition 7"]


def test_records_are_examined_only_for_new_texts():
    asked = []

    def look(finding):
        asked.append(finding.kind)
        return "one begins with '13'"

    first = update_warnings({}, [found()], look)
    update_warnings(first, [found()], look)
    assert asked == [LATE]
    (finding,) = active_warnings(first)
    assert finding.full_text == "seen; one begins with '13'"
    (fresh,) = add_details([found(text="seen now")], first)
    assert fresh.full_text == "seen now; one begins with '13'"


def test_of_two_findings_of_a_kind_the_first_counts():
    assert said([found(text="one"), found(text="two")]) == [["one"]]


def test_warnings_are_in_order_of_kinds_also_after_a_restart():
    kinds = [Kind.LATE_ROWS, Kind.IDLE_PARTITION, Kind.MALFORMED]
    after = update_warnings({}, [found(kind=kind) for kind in kinds])
    again = warnings_from_json(json.loads(json.dumps(warnings_to_json(after), sort_keys=True)))
    for listed in (find_new_warnings({}, after), active_warnings(after), active_warnings(again)):
        assert [finding.kind for finding in listed] == kinds[::-1]


def test_a_kind_that_this_release_does_not_know_is_passed_over():
    written = warnings_to_json(update_warnings({}, [found()]))
    assert warnings_from_json({**written, "a newer kind": {"culprit": "x", "text": "y"}}) == (
        update_warnings({}, [found()])
    )


def test_warning_under_the_older_name_of_its_kind_is_not_repeated():
    """Version 0.2 wrote malformed values as `values of another type`."""
    entry = {"culprit": "partition 0", "holds": True, "text": "4 of 5 values are not JSON"}
    before = warnings_from_json({"values of another type": entry})
    after = update_warnings(before, [found(kind=Kind.MALFORMED_VALUES)])
    assert find_new_warnings(before, after) == []
    assert list(warnings_to_json(after)) == ["malformed values"]


LOOKS = st.lists(
    st.lists(st.builds(found, st.integers(0, 3), kind=st.sampled_from(Kind)), max_size=3),
    max_size=8,
)


@given(LOOKS)
def test_levels_of_a_kind_are_warned_about_once_in_rising_order(looks):
    warnings, levels = {}, {}
    for findings in looks:
        after = update_warnings(warnings, findings)
        for finding in find_new_warnings(warnings, after):
            assert finding.level > levels.get(finding.kind, -1)
            levels[finding.kind] = finding.level
        # Nothing that is found stays unsaid, and what is listed is just what was found.
        assert {finding.kind for finding in findings} <= levels.keys()
        kinds = {finding.kind for finding in active_warnings(after)}
        assert kinds == {finding.kind for finding in findings}
        warnings = warnings_from_json(warnings_to_json(after))
        assert warnings == after
