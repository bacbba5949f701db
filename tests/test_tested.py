"""The page "How it is tested" counts what is there, and each of its commands finds it."""

import re

import pytest
import tested
from documents import read
from generate import generate

PAGE = "docs/explanation/how-it-is-tested.md"


# One test, not one for each kind: each process of pytest would read all tests first.
@pytest.mark.thorough
def test_every_kind_is_counted_and_its_command_finds_tests() -> None:
    targets = set(re.findall(r"^([\w.-]+):", read("Makefile"), re.MULTILINE))
    for kind in tested.KINDS:
        assert re.search("[1-9]", kind.count()), kind.what
        words = re.fullmatch(r"python -m pytest [a-z ]+ -k '(.*)'", kind.command)
        if words is None:
            make, *wanted = kind.command.split()
            assert make == "make", kind.what
            assert targets.issuperset(wanted), kind.what
        else:
            assert tested.named(words[1]), kind.what


def test_the_page_has_the_counts_and_every_oracle() -> None:
    page = generate(read(PAGE))
    assert f"| {len(tested.tests()):,} |" in page
    for path, name in tested.oracles():
        assert re.search(rf"{path.name}` \|.*`{name}`", page)


def test_a_number_of_repetitions_is_that_of_a_short_and_a_full_run() -> None:
    ((short, full),) = tested.constants("DAMAGES")
    assert short < full


def test_no_count_is_written_by_hand() -> None:
    prose = re.sub(r"\(.*?\)|2\^\d+|\bS3\b", "", read(PAGE))
    assert re.findall(r"\d+", prose) == []
