"""Spark's settings under which its watermark would break the promise of CTIs (semantics 11.5)."""

from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["WatermarkSetting", "explain_setting", "find_wrong_settings", "suggest_fix"]


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
