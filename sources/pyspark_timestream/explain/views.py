"""What `explain_time` returns: text in a terminal, a picture in a notebook."""

from dataclasses import dataclass
from html import escape

from pyspark_timestream.explain.picture import stream_html
from pyspark_timestream.explain.report import StreamExplanation
from pyspark_timestream.explain.text import stream_text

__all__ = ["Explanation"]


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Where a query's streams stand, what holds their CTIs back since when, and the fixes.

    Attributes:
        subject: what was explained: a query or a checkpoint, in words.
        streams: one explanation a Kafka stream of this package, in the order of the sources.
        notes: what else a reader should know, a sentence each.
    """

    subject: str
    streams: tuple[StreamExplanation, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = "\n".join((self.subject, *(f"Note: {note}." for note in self.notes)))
        return "\n\n".join((head, *map(stream_text, self.streams)))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        notes = "".join(f"<p>Note: {escape(note)}.</p>" for note in self.notes)
        streams = "".join(map(stream_html, self.streams))
        return f"<div><p><b>{escape(self.subject)}</b></p>{notes}{streams}</div>"
