"""A batch's watermark, from the checkpoint of its query (semantics 29.2)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.connector.watermark_settings import read_batch_watermark
from pyspark_timestream.errors import CheckpointUnreadable
from pyspark_timestream.explain.checkpoint import resolve_directory

__all__ = ["find_checkpoint", "read_watermark"]

_OPTION: Final = "checkpointlocation"


def find_checkpoint(options: Mapping[str, Any]) -> Path:
    """The query's checkpoint among Spark's options.

    Raises:
        OptionError: it is not there, or not a directory of this machine.
    """
    location = next((text for name, text in options.items() if name.lower() == _OPTION), None)
    accepts = "a directory of the driver's machine"
    if location is None:
        raise OptionError(
            "checkpointLocation",
            "it is missing, and option 'ctiFrom' is 'watermark'",
            accepts,
            "set it on writeStream itself: the session's default is unknown to a sink",
        )
    try:
        return resolve_directory(location)
    except CheckpointUnreadable:
        raise OptionError(
            "checkpointLocation",
            f"'{location}' is not on this machine, so the batches' watermark cannot be read, and "
            "option 'ctiFrom' is 'watermark'",
            accepts,
            "use such a directory; or write rows with a column 'cti'",
        ) from None


def read_watermark(checkpoint: Path, batch: int) -> int | None:
    """The watermark by which the batch runs, in microseconds; None before the first.

    Raises:
        CheckpointUnreadable: the batch is not in the checkpoint, or its entry cannot be read.
    """
    try:
        return read_batch_watermark(checkpoint, batch)
    except (OSError, ValueError) as error:
        file = checkpoint / "offsets" / str(batch)
        raise CheckpointUnreadable(
            f"the watermark of batch {batch} cannot be read from '{file}': {error}",
            next_step="see to it that the driver can read the checkpoint. The batch's rows are "
            "written, its mark is not, and the query goes on with it",
        ) from None
