"""All targets of the fuzzer, by group and name; the targets of a group share a process."""

from collections.abc import Callable, Mapping
from typing import Final

from fuzz import checkpoints, options, payloads, stores
from fuzz.engine import Target

GROUPS: Final[Mapping[str, Mapping[str, Callable[[], Target]]]] = {
    "checkpoints": checkpoints.TARGETS,
    "options": options.TARGETS,
    "payloads": payloads.TARGETS,
    "stores": stores.TARGETS,
}
