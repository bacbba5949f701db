"""Spark's settings under which its watermark does not do what CTIs promise (semantics 11.5)."""

from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["WatermarkSetting", "broken_settings", "next_step", "reason"]


class WatermarkSetting(NamedTuple):
    """A setting that must have one value.

    Attributes:
        value: that value, Spark's default.
        otherwise: what happens with another one.
    """

    value: str
    otherwise: str


_SETTINGS: Final = {
    "spark.sql.streaming.multipleWatermarkPolicy": WatermarkSetting(
        "min",
        "where streams are joined or united, rows of the slower one are dropped without a word",
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": WatermarkSetting(
        "true",
        "what a CTI releases waits for the next record, and a bounded run ends without its last "
        "results",
    ),
}


def broken_settings(read: Callable[[str], str | None]) -> dict[str, str]:
    """The settings that have another value than they must, with it.

    Args:
        read: a setting's value by its name; None: it was not set.
    """
    values = {name: read(name) for name in _SETTINGS}
    return {
        name: value
        for name, value in values.items()
        if value is not None and value.lower() != _SETTINGS[name].value
    }


def reason(name: str) -> str:
    """What happens where the setting `name` has another value than it must."""
    return _SETTINGS[name].otherwise


def next_step(name: str) -> str:
    """What to do where the setting `name` has another value than it must."""
    return (
        f"spark.conf.set('{name}', '{_SETTINGS[name].value}') before the query is built; a "
        "checkpoint may keep the value that it began with, so start with a new one"
    )
