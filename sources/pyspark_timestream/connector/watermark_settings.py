"""Spark's watermark: settings under which it breaks the promise of CTIs, and a batch's own.

The rules are semantics 11.5, 29.2 and 30.1. Spark tells a sink neither the watermark nor the CTIs
that moved it. It writes the entry `offsets/N` of the checkpoint before it runs batch N, and there
`batchWatermarkMs` is the watermark that batch N evicts state with: in output mode append, batches
up to N contain all windows that end at or before it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from pyspark_timestream.connector.instants import FINAL_US

__all__ = [
    "ZERO_DELAY_SETTING",
    "WatermarkSetting",
    "explain_setting",
    "find_wrong_settings",
    "read_batch_watermark",
    "suggest_fix",
]

ZERO_DELAY_SETTING: Final = "spark.sql.streaming.eventTimeWatermark.bumpZeroDelayToOneMs"
"""If true, a watermark's delay of none is one millisecond; proposed in Spark PR 56043."""

_MILLISECOND_US: Final = 1_000
_WATERMARK: Final = "batchWatermarkMs"


class WatermarkSetting(NamedTuple):
    """A setting that must have one value.

    Attributes:
        value: that value, Spark's default.
        otherwise: the consequence of another one.
    """

    value: str
    otherwise: str


_REQUIRED_SETTINGS: Final = {
    "spark.sql.streaming.multipleWatermarkPolicy": WatermarkSetting(
        "min",
        "where streams are joined or united, rows of the slower one are silently dropped",
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": WatermarkSetting(
        "true",
        "what a CTI releases waits for the next record, and a bounded run ends without its last "
        "results",
    ),
}


def find_wrong_settings(read: Callable[[str], str | None]) -> dict[str, str]:
    """The settings with a wrong value: name -> value.

    Args:
        read: name -> value; None: not set.
    """
    values = {name: read(name) for name in _REQUIRED_SETTINGS}
    return {
        name: value
        for name, value in values.items()
        if value is not None and value.lower() != _REQUIRED_SETTINGS[name].value
    }


def explain_setting(name: str) -> str:
    """The consequence of another value of the setting `name`."""
    return _REQUIRED_SETTINGS[name].otherwise


def suggest_fix(name: str) -> str:
    """The advice about another value of the setting `name`."""
    return (
        f"spark.conf.set('{name}', '{_REQUIRED_SETTINGS[name].value}') before the query is built; "
        "a checkpoint may keep the value that it began with, so start with a new one"
    )


def read_batch_watermark(checkpoint: str | Path, batch: int) -> int | None:
    """The watermark of a batch, in microseconds; None while it is at 1970, where it says nothing.

    The last millisecond before the final CTI is the final CTI: where rows at exactly a CTI stay
    legal, Spark's watermark is a millisecond before it.

    Args:
        checkpoint: a directory of this machine.
        batch: its number.

    Raises:
        OSError: the batch's entry cannot be read.
        ValueError: it has no watermark.
    """
    file = Path(checkpoint) / "offsets" / str(batch)
    try:
        watermark_ms = json.loads(file.read_text(encoding="utf-8").splitlines()[1])[_WATERMARK]
    except (LookupError, TypeError) as error:
        raise ValueError(f"it has no {_WATERMARK}") from error
    if not isinstance(watermark_ms, int):
        raise ValueError(f"its {_WATERMARK} is {watermark_ms!r}")
    if watermark_ms <= 0:
        return None
    is_final = (watermark_ms + 1) * _MILLISECOND_US >= FINAL_US
    return FINAL_US if is_final else watermark_ms * _MILLISECOND_US
