"""The glossary has one word for one thing: each is used, and leads to the rule that defines it."""

import re
from itertools import islice

import pytest
from documents import ROOT, pages, read

GLOSSARY = "docs/glossary.md"
ENTRIES = re.findall(r"^([^\n:#].*)\n: (.*(?:\n  .*)*)", read(GLOSSARY), re.MULTILINE)
"""Terms, separated by commas, and what is said of them."""


def words(text: str) -> str:
    """In small letters, with line breaks and markup as blanks."""
    return re.sub(r"[\s`*_]+", " ", text.lower())


@pytest.fixture(scope="module")
def written() -> str:
    """All pages but the glossary, and the sources of both packages."""
    sources = [*ROOT.glob("sources/**/*.py"), *ROOT.glob("sinks/**/*.py")]
    texts = [read(page) for page in pages() if page != GLOSSARY]
    return words(" ".join([*texts, *(path.read_text() for path in sources)]))


@pytest.mark.parametrize(("terms", "text"), ENTRIES)
def test_a_term_is_used_and_leads_to_its_rule(terms: str, text: str, written: str) -> None:
    for term in terms.split(", "):
        uses = re.finditer(rf"\b{re.escape(words(term))}s?\b", written)
        assert len(list(islice(uses, 2))) == 2, term
    assert re.search(r"\(semantics\.md#\d", text), terms


def test_no_term_is_there_twice() -> None:
    terms = [term for entry, _ in ENTRIES for term in entry.split(", ")]
    assert len(terms) == len(set(terms)) > 40
