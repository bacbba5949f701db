"""Every case of the conformance list has a test that names it, for the client and for Spark."""

import pathlib
import re

from tseries.case_numbers import NO_COUNTERPART, NO_OPTIONS, NUMBERS
from tseries.cases import CASES, INVALID
from tseries.write_cases import WRITE_CASES

HERE = pathlib.Path(__file__).parents[1]
INTEGRATION = HERE.parents[1] / "integration"
BOTH = {case.number for case in (*CASES, *INVALID, *WRITE_CASES)}


def named(files):
    """The numbers in the names of the tests of `files`: `test_q1_q2_...`."""
    tests = [name for file in files for name in re.findall(r"def test_(\w+)", file.read_text())]
    return {
        part.upper()
        for name in tests
        for part in name.split("_")
        if re.fullmatch(r"[wqerb]\d+", part)
    }


def test_every_case_has_a_test_through_the_client():
    tested = BOTH | named(HERE.rglob("test_*.py"))
    assert set(NUMBERS) - tested == set(NO_COUNTERPART)


def test_every_case_that_options_can_ask_for_has_a_test_through_spark():
    tested = BOTH | named(INTEGRATION.glob("store/test_*.py"))
    assert set(NUMBERS) - tested == set(NO_COUNTERPART) | set(NO_OPTIONS)


def test_the_list_is_that_of_the_facts():
    kinds = {kind: [number for number in NUMBERS if number[0] == kind] for kind in "WQERB"}
    assert [len(numbers) for numbers in kinds.values()] == [16, 27, 11, 18, 12]
    assert len(set(NUMBERS)) == len(NUMBERS) == 84
    assert set(NO_COUNTERPART) | set(NO_OPTIONS) < set(NUMBERS)
