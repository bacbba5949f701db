"""The parts of every offset besides its position: a format version and settings.

The rules are semantics 8.5.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from pyspark_timestream.errors import CheckpointMismatch

FORMAT_VERSION: Final = 1
"""The version of transport `time`; the Kafka transport has its own."""

INITIAL_OFFSET: Final[dict[str, Any]] = {"version": FORMAT_VERSION}
"""The constant initial offset: Spark asks for it again on a restart and never stores it, so it
means "nothing is decided yet"; the first real offset holds every decision."""

_CLIENT_PREFIX: Final = "kafka."
"""The prefix of the names of client settings."""


def is_initial_offset(offset: Mapping[str, Any]) -> bool:
    """True if `offset` is the constant initial offset of any version."""
    return set(offset) == {"version"}


def check_offset(
    offset: Mapping[str, Any],
    settings: Mapping[str, str],
    newest: int = FORMAT_VERSION,
    described: Collection[str] = (),
) -> None:
    """Refuse an offset that this code or these settings cannot continue.

    Args:
        offset: as a checkpoint holds it; its `settings` are option name -> text.
        settings: today's options that define time and records, by option name.
        newest: the newest format version that the caller reads.
        described: the names of settings that option `timeSettings` gives.

    Raises:
        CheckpointMismatch: a newer format version, or another value of an option in `settings`.
    """
    version = offset.get("version")
    if not isinstance(version, int) or version > newest:
        raise CheckpointMismatch(
            f"the checkpoint's offsets have format version {version}; this timestream reads up to "
            f"{newest}: install the timestream release that wrote the checkpoint, or newer"
        )
    stored = offset.get("settings", settings)
    if not any(name.startswith(_CLIENT_PREFIX) for name in stored):
        # A checkpoint from before client settings were kept goes on with today's.
        settings = {
            name: text for name, text in settings.items() if not name.startswith(_CLIENT_PREFIX)
        }
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
            if name in described:
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
