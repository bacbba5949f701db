"""Hypothesis' settings under mutation; `make mutants` puts it into its working copy as conftest.py.

A mutant lives until every test has passed, so the examples are few, the same in each run, and a
counterexample is not made smaller. Exact tests come first: they kill most, and at once.
"""

from hypothesis import Phase, settings

EXAMPLES = 50

settings.register_profile(
    "mutation",
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("mutation")


def pytest_collection_modifyitems(items):
    """Cap also the tests that name their number of examples, and run the exact ones first."""
    for item in items:
        own = getattr(item.obj, "_hypothesis_internal_use_settings", None)
        if own is not None and own.max_examples > EXAMPLES:
            item.obj._hypothesis_internal_use_settings = settings(own, max_examples=EXAMPLES)
    items.sort(key=lambda item: getattr(item.obj, "is_hypothesis_test", False))
