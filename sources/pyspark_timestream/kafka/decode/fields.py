"""The fields wanted of payloads, and blocks of decoded payloads: what all payload formats share."""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_timestream.connector.columns import Mask
from pyspark_timestream.kafka.options.paths import Path, parse_path

__all__ = [
    "FINE",
    "FRAMING",
    "NAME",
    "REASONS",
    "RECORD_REASONS",
    "SYNTAX",
    "TYPE",
    "ConvertedColumn",
    "DecodedBlock",
    "Reasons",
    "WantedFields",
    "find_record_reasons",
]

Reasons = npt.NDArray[np.uint8]

REASONS: Final = ("", "framing", "syntax", "type", "name")
"""Why a payload is malformed, by number (semantics 13.6): it lacks the wire format's header, or its
bytes are not a payload of its schema, or a field is not of the column's type, or it is a record of
another name than the wanted one."""

FINE, FRAMING, SYNTAX, TYPE, NAME = range(len(REASONS))

RECORD_REASONS: Final = (*REASONS, *(f"key {reason}" for reason in REASONS[1:]))
"""Why a record is malformed, by number: the reason of its value, or else that of its key."""


@dataclass(frozen=True, slots=True)
class WantedFields:
    """The fields to read of each payload.

    Attributes:
        columns: the fields wanted as columns: the text of each one's path, with its Arrow type.
        raw: the paths, as text, of fields wanted unconverted, for event times and edges: strings,
            numbers or timestamps.
        names: the names of the records or messages are wanted as well.
    """

    columns: pa.Schema
    raw: tuple[str, ...] = ()
    names: bool = False

    def column_paths(self) -> list[Path]:
        """Return the path of each column."""
        return [parse_path(name) for name in self.columns.names]

    def raw_paths(self) -> dict[str, Path]:
        """Return the path of each raw field, by its text."""
        return {text: parse_path(text) for text in self.raw}


class DecodedBlock(NamedTuple):
    """n decoded payloads.

    Attributes:
        columns: a column of n per field of `WantedFields.columns`, in that order.
        raw: per raw field, by the text of its path, consecutive pieces that add up to n; each is
            an array of strings, numbers or timestamps, or of nulls.
        reasons: n numbers: why the payload is malformed, as an index into `REASONS`.
        schema_ids: n int32: the id of the schema that wrote the payload, null where there is none;
            None if payloads carry no ids.
        names: n strings: the full name of the record or message that the payload was written as;
            None unless wanted, or if nothing says so.
    """

    columns: list[pa.Array]
    raw: dict[str, list[pa.Array]]
    reasons: Reasons
    schema_ids: pa.Array | None = None
    names: pa.Array | None = None

    @property
    def malformed(self) -> Mask:
        """N booleans: the payload is malformed."""
        malformed: Mask = self.reasons != FINE
        return malformed


def find_record_reasons(values: DecodedBlock | None, keys: DecodedBlock | None) -> Reasons | None:
    """Find why each record is malformed, as an index into `RECORD_REASONS`.

    None if neither values nor keys were decoded.
    """
    if keys is None:
        return None if values is None else values.reasons
    of_keys = keys.reasons + np.where(keys.malformed, np.uint8(len(REASONS) - 1), np.uint8(FINE))
    return of_keys if values is None else np.where(values.malformed, values.reasons, of_keys)


class ConvertedColumn(NamedTuple):
    """A column of n values in its wanted type.

    Attributes:
        column: the column.
        partial: n booleans: a part of the value did not match its type and is null.
        void: n booleans: the whole value did not match; a list with such an item is void as well.
    """

    column: pa.Array
    partial: Mask
    void: Mask
