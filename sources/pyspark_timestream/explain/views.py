"""The result of `explain_time`: text in a terminal, a picture in a notebook."""

from dataclasses import dataclass
from html import escape

from pyspark_timestream.explain.picture import render_stream
from pyspark_timestream.explain.report import StreamExplanation
from pyspark_timestream.explain.text import escape_controls, format_stream
from pyspark_timestream.explain.waiting_state import OperatorState, describe_state

__all__ = ["Explanation"]


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The state of the streams of a query, what holds their CTIs back, and the fixes.

    Attributes:
        subject: the explained query or checkpoint, in words.
        streams: one explanation per Kafka stream of this package, in the order of the sources.
        notes: further remarks, one sentence each.
        state: the state that waits for later CTIs, by operator.
        details: the text has all findings in full; else the first one, and a line of four others.
    """

    subject: str
    streams: tuple[StreamExplanation, ...]
    notes: tuple[str, ...] = ()
    state: tuple[OperatorState, ...] = ()
    details: bool = False

    def __str__(self) -> str:
        head = "\n".join((self.subject, *(f"Note: {note}." for note in self.notes)))
        state = "\n".join(map(escape_controls, describe_state(self.state)))
        streams = (format_stream(stream, self.details) for stream in self.streams)
        parts = (head, *streams, *([state] if state else []))
        return "\n\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The HTML for a notebook."""
        notes = "".join(f"<p>Note: {escape(note)}.</p>" for note in self.notes)
        streams = "".join(map(render_stream, self.streams))
        state = "".join(f"<p>{escape(line)}</p>" for line in describe_state(self.state))
        return f"<div><p><b>{escape(self.subject)}</b></p>{notes}{streams}{state}</div>"
