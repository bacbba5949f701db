"""Rules are checked by examples, not by the clock of a shared machine."""

from collections.abc import Iterator

import pytest
from hypothesis import settings
from tseries.limits import set_limits

settings.register_profile("tseries", deadline=None)
settings.load_profile("tseries")


@pytest.fixture(autouse=True, scope="module")
def _at_full_priority() -> Iterator[None]:
    """Keep the command `maintain`, which makes way for others, from slowing the tests after it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.nice", lambda increment: increment)
        yield


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is tried again be tried at once."""
    monkeypatch.setattr("time.sleep", lambda _: None)


@pytest.fixture(autouse=True, scope="module")
def _frequent_checkpoints() -> Iterator[None]:
    """Let stores of a few commits have checkpoints, too."""
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, checkpoint_interval=10)
        yield
