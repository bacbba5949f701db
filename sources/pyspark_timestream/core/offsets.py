"""What every offset holds besides a position: a format version and settings (semantics 8.5)."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from pyspark_timestream.errors import CheckpointMismatch

FORMAT_VERSION: Final = 1
"""The version of both transports' offsets."""

INITIAL_OFFSET: Final[dict[str, Any]] = {"version": FORMAT_VERSION}
"""The constant initial offset, which means "nothing is decided yet".

Spark asks for it again at each restart and never stores it; the first real offset holds every
decision.
"""

_CLIENT_PREFIX: Final = "kafka."
"""The prefix of the names of client settings."""


def is_initial_offset(offset: Mapping[str, Any]) -> bool:
    """Return whether `offset` is the constant initial offset."""
    return set(offset) == {"version"}


def check_offset(
    offset: Mapping[str, Any],
    settings: Mapping[str, str],
    topic_settings: Collection[str] = (),
) -> None:
    """Refuse an offset that this code or these settings cannot continue.

    Args:
        offset: the offset in the checkpoint; its `settings` are option name -> text.
        settings: today's options that define time and records, by option name.
        topic_settings: the names of settings that option `timeSettings` gives.

    Raises:
        CheckpointMismatch: the format version or the value of an option in `settings` differs.
    """
    version = offset.get("version")
    if version != FORMAT_VERSION:
        raise CheckpointMismatch(
            f"the checkpoint's offsets have format version {version}; this timestream reads "
            f"version {FORMAT_VERSION}: install the timestream release that wrote the checkpoint"
        )
    stored = offset.get("settings", settings)
    for name in sorted({*stored, *settings}):
        old, new = stored.get(name, "not set"), settings.get(name, "not set")
        if old != new:
            what = (
                "which records there are"
                if name.startswith(_CLIENT_PREFIX)
                else "the stream's time or rows"
            )
            back = f"set it back to '{old}'" if name in stored else "leave it out"
            origin = ""
            if name in topic_settings:
                origin = " by option 'timeSettings'"
                back = (
                    f"set it to '{old}' in the query"
                    if name in stored
                    else "leave 'timeSettings' out and set the other options in the query"
                )
            raise CheckpointMismatch(
                f"option '{name}' was '{old}' when this checkpoint was made and is '{new}' now"
                f"{origin}; it defines {what}, so {back} or start with a new checkpoint"
            )
