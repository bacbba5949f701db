"""The query to paste: options as the code of a stream."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark_timestream.connector.options import is_secret

__all__ = ["format_snippet", "hide_option"]

_HIDDEN: Final = "..."
_LOGIN: Final = re.compile("kafka[.]sasl[.](username|oauthbearer[.]client[.]id)", re.I)
_DELAY_COMMENT: Final = (
    "CTIs need a delay of at least the topic's disorder, of which ten records show too little:",
    "see what each would drop, and choose one: python -m pyspark_timestream lateness",
)


def hide_option(name: str, value: str) -> str:
    """Return the value of an option, or dots in place of a secret."""
    return _HIDDEN if is_secret(name, value) or _LOGIN.fullmatch(name) else value


def format_snippet(options: Mapping[str, str], columns: Sequence[str]) -> str:
    """Write a stream with these options, and with a schema if there are columns.

    Args:
        options: option -> value; secrets become dots.
        columns: the columns in Spark's DDL; empty for the source's own.
    """
    lines = ["stream = (", '    spark.readStream.format("timestream")']
    for name, value in options.items():
        lines.append(f"    .option({_literal(name)}, {_literal(hide_option(name, value))})")
    if not {"ctiFrequency", "advanceTime", "ctiHeader"} & options.keys():
        lines += [f"    # {line}" for line in _DELAY_COMMENT]
        lines.append('    # .option("ctiFrequency", "1 second").option("ctiDelay", "5 minutes")')
    if columns:
        texts = [*(f"{column}, " for column in columns[:-1]), columns[-1]]
        lines += ["    .schema(", *(f"        {_literal(text)}" for text in texts), "    )"]
    return "\n".join([*lines, "    .load()", ")"])


def _literal(text: str) -> str:
    """Write a Python literal, which JSON's form of a text is as well.

    Letters stay as they are: JSON writes others than those of 16 bits as two, which Python does not
    read as one.
    """
    return json.dumps(text, ensure_ascii=False)
