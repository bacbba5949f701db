"""Which files of the two packages a piece of work passes: the size that its reader feels."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from sources import ROOTS


@contextmanager
def files_passed() -> Iterator[set[str]]:
    """The files with functions that run meanwhile, in this thread and in threads that it starts."""
    passed: set[str] = set()
    seen: dict[str, str] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name not in seen:
            root = next((root for root in ROOTS if Path(name).is_relative_to(root)), None)
            seen[name] = "" if root is None else str(Path(name).relative_to(root.parent))
        if event == "call" and seen[name]:
            passed.add(seen[name])

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield passed
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
