"""Each test closes the files that its simulated deaths leave open."""

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_open_files_outlive_a_test() -> Iterator[None]:
    """A process that is killed closes nothing: its files would warn in the next test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
