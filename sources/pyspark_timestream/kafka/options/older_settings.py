"""Settings of checkpoints from before fields had paths, as today's options write them.

Until then a plain name with a dot or a backquote was the name of a field at the top level; today's
texts have a prefix there, so the two can be told apart (semantics 8.5).
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark_timestream.kafka.options.parsers import format_path

_TIME_OPTIONS: Final = ("startTime", "endTime", "edge")


def translate_older_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return `settings`, option name -> text, with each older text as it is written today."""
    found = dict(settings)
    for name in _TIME_OPTIONS:
        if name in found:
            found[name] = _translate_time(found[name])
    if found.get("ctiImport", "").startswith("{"):
        found["ctiImport"] = _translate_import(found["ctiImport"])
    return found


def _translate_time(text: str) -> str:
    is_older = not text.startswith(("header:", "field:")) and not {".", "`"}.isdisjoint(text)
    return f"field:{format_path((text,))}" if is_older else text


def _translate_import(text: str) -> str:
    source: dict[str, Any] = json.loads(text)
    if "startTime" in source:
        source["startTime"] = _translate_time(source["startTime"])
    return json.dumps(source)
