"""Each kind of mistake is warned about once, and again only when its level rises."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pyspark_timestream.kafka.diagnosis.diagnoses import (
    Diagnosis,
    Kind,
    add_details,
    find_new_warnings,
    recall_warnings,
    update_warnings,
)
from pyspark_timestream.kafka.offsets.offset import GivenWarning, StreamOffset

LATE = Kind.LATE_ROWS


def found(level=0, text="seen", kind=LATE):
    return Diagnosis(kind, "partition 0", text, level=level)


def restored(warnings):
    """The warnings as a restart finds them in the offset."""
    offset = StreamOffset("me", {}, 1, {}, warnings=warnings)
    return StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))).warnings


def said(*looks):
    """The log of some looks that find these."""
    warnings, log = (), []
    for diagnoses in looks:
        after = update_warnings(warnings, diagnoses)
        log.append([diagnosis.text for diagnosis in find_new_warnings(warnings, after)])
        warnings = after
    return log


def test_warning_is_given_once_even_if_it_holds_again():
    assert said([found()], [found()], [], [found()]) == [["seen"], [], [], []]


def test_warning_is_repeated_only_when_its_level_rises():
    looks = [[found(level, f"level {level}")] for level in (1, 1, 2, 1, 2, 5)]
    assert said(*looks) == [["level 1"], [], ["level 2"], [], [], ["level 5"]]


def test_the_line_of_a_warning_has_kind_cause_text_detail_and_next_step():
    given = update_warnings((), [found(text="3 rows")], lambda diagnosis: "one begins with 'x'")
    (diagnosis,) = recall_warnings(given)
    assert diagnosis.line.startswith(
        "rows dropped as late: partition 0: 3 rows; one begins with 'x'; next step: if there are"
    )


def test_restart_from_the_offset_repeats_no_warning():
    first = update_warnings((), [found(3)])
    again = restored(first)
    assert again == first
    assert find_new_warnings(again, update_warnings(again, [found(3)])) == []


def test_warning_has_the_counts_of_now_and_what_its_records_showed_then():
    first = update_warnings((), [found(text="first")], lambda diagnosis: "begins 'x'")
    now = update_warnings(first, [found(text="second")], lambda diagnosis: "never asked")
    (diagnosis,) = recall_warnings(now)
    assert (diagnosis.text, diagnosis.detail) == ("second", "begins 'x'")
    assert find_new_warnings(first, now) == []
    assert update_warnings(now, [found(text="second")]) == now
    over = update_warnings(first, [])
    assert recall_warnings(over) == []
    (again,) = recall_warnings(update_warnings(over, [found(text="third")]))
    assert again.text == "third"


def test_another_cause_is_listed_without_a_new_warning():
    first = update_warnings((), [found()])
    other = Diagnosis(LATE, "partition 7", "seen there")
    after = update_warnings(first, [other])
    assert find_new_warnings(first, after) == []
    assert [diagnosis.cause for diagnosis in recall_warnings(after)] == ["partition 7"]


def test_records_are_examined_only_for_new_texts():
    asked = []

    def look(diagnosis):
        asked.append(diagnosis.kind)
        return "one begins with '13'"

    first = update_warnings((), [found()], look)
    update_warnings(first, [found()], look)
    assert asked == [LATE]
    (diagnosis,) = recall_warnings(first)
    assert diagnosis.full_text == "seen; one begins with '13'"
    (fresh,) = add_details([found(text="seen now")], first)
    assert fresh.full_text == "seen now; one begins with '13'"


def test_of_two_findings_of_a_kind_the_first_counts():
    assert said([found(text="one"), found(text="two")]) == [["one"]]


def test_warnings_are_in_order_of_kinds_also_after_a_restart():
    kinds = [Kind.LATE_ROWS, Kind.IDLE_PARTITION, Kind.MALFORMED]
    after = update_warnings((), [found(kind=kind) for kind in kinds])
    again = restored(after)
    for listed in (find_new_warnings((), after), recall_warnings(after), recall_warnings(again)):
        assert [diagnosis.kind for diagnosis in listed] == kinds[::-1]


def test_a_kind_that_this_release_does_not_know_is_passed_over():
    known = update_warnings((), [found()])
    with_newer = (GivenWarning("a newer kind", "x", "y"), *known)
    assert recall_warnings(with_newer) == recall_warnings(known)
    assert find_new_warnings((), with_newer) == find_new_warnings((), known)
    assert update_warnings(with_newer, [found()]) == known


LOOKS = st.lists(
    st.lists(st.builds(found, st.integers(0, 3), kind=st.sampled_from(Kind)), max_size=3),
    max_size=8,
)


@given(LOOKS)
def test_levels_of_a_kind_are_warned_about_once_in_rising_order(looks):
    warnings, levels = (), {}
    for diagnoses in looks:
        after = update_warnings(warnings, diagnoses)
        for diagnosis in find_new_warnings(warnings, after):
            assert diagnosis.level > levels.get(diagnosis.kind, -1)
            levels[diagnosis.kind] = diagnosis.level
        # Nothing that is found stays unsaid, and what is listed is just what was found.
        assert {diagnosis.kind for diagnosis in diagnoses} <= levels.keys()
        kinds = {diagnosis.kind for diagnosis in recall_warnings(after)}
        assert kinds == {diagnosis.kind for diagnosis in diagnoses}
        warnings = restored(after)
        assert warnings == after
