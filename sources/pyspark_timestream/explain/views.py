"""The result of `explain_time`: text in a terminal, a picture in a notebook."""

from dataclasses import dataclass
from html import escape

from pyspark_timestream.explain.picture import render_stream
from pyspark_timestream.explain.report import StreamExplanation
from pyspark_timestream.explain.text import format_stream

__all__ = ["Explanation"]


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The state of the streams of a query, what holds their CTIs back, and the fixes.

    Attributes:
        subject: the explained query or checkpoint, in words.
        streams: one explanation per Kafka stream of this package, in the order of the sources.
        notes: further remarks, one sentence each.
    """

    subject: str
    streams: tuple[StreamExplanation, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = "\n".join((self.subject, *(f"Note: {note}." for note in self.notes)))
        return "\n\n".join((head, *map(format_stream, self.streams)))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The HTML for a notebook."""
        notes = "".join(f"<p>Note: {escape(note)}.</p>" for note in self.notes)
        streams = "".join(map(render_stream, self.streams))
        return f"<div><p><b>{escape(self.subject)}</b></p>{notes}{streams}</div>"
