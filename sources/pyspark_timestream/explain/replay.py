"""Replays that end before their span does (semantics 7.7)."""

from collections.abc import Iterator

from pyspark_timestream.connector.instants import format_instant, parse_instant
from pyspark_timestream.explain.history import History, count_remaining
from pyspark_timestream.kafka.plan.findings import Finding, Kind, name_partitions
from pyspark_timestream.kafka.plan.offset import StreamOffset
from pyspark_timestream.kafka.plan.positions import has_stream_ended

__all__ = ["describe_end", "find_short_replays"]


def describe_end(offset: StreamOffset) -> str:
    """Describe the end that a closing batch has reached."""
    end = offset.settings.get("endingCti")
    if end is not None and _has_reached(offset.cti_us, end):
        return f"the replay has reached its end, option 'endingCti' ({end})"
    if offset.fixed_ends is not None:
        return "the stream has reached its end, which the ending options fixed at its first start"
    return "the bounded run has read everything that existed when it began"


def find_short_replays(history: History) -> Iterator[Finding]:
    """Find the partitions of a bounded run whose log ends below `startingCti` or `endingCti`.

    Where the stream has reached `endingCti` without its idle partitions, nothing is missing.
    """
    offset = history[-1].offset
    begin, end = (offset.settings.get(name) for name in ("startingCti", "endingCti"))
    if not offset.bounded or any(count_remaining(history).values()):
        return
    ctis_us = {part: share.state.cti_us for part, share in offset.partitions.items()}
    if begin is not None and not any(_has_reached(cti_us, begin) for cti_us in ctis_us.values()):
        reached = _name_cti(max(filter(None, ctis_us.values()), default=None))
        yield Finding(
            Kind.SHORT_REPLAY,
            "option 'startingCti'",
            f"no partition's CTI reaches {begin}: {reached}",
        )
        return
    if end is None or has_stream_ended(offset, parse_instant(end)):
        return
    short = sorted(part for part, cti_us in ctis_us.items() if not _has_reached(cti_us, end))
    if short:
        known = [ctis_us[part] for part in short]
        reached = _name_cti(None if None in known else min(filter(None, known), default=None))
        text = f"everything is read, and its CTI has not reached option 'endingCti' ({end}): "
        yield Finding(
            Kind.SHORT_REPLAY, name_partitions(short), text + reached, partitions=frozenset(short)
        )


def _has_reached(cti_us: int | None, instant: str) -> bool:
    return cti_us is not None and cti_us >= parse_instant(instant)


def _name_cti(cti_us: int | None) -> str:
    return "there is none yet" if cti_us is None else f"it is {format_instant(cti_us)}"
