"""Notes on a pass over a topic: what its results may hide, with the next step."""

from collections.abc import Iterator
from typing import Final

from pyspark_timestream.connector.instants import format_duration, parse_duration
from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.lateness.findings import Findings

__all__ = ["check_readable", "list_notes"]

_LONG_US: Final = parse_duration("1 day")
"""A greater lateness is more often a wrong clock than a slow network."""


def check_readable(options: KafkaOptions, findings: Findings) -> None:
    """Refuse a topic of which no event has a readable time."""
    least = findings.delays[0]
    if least.events == least.malformed:
        where = f"'{options.start_time}'" + (
            f" or '{options.end_time}'" if options.end_time else ""
        )
        raise OptionError(
            "startTime",
            f"none of {least.events:,} events has a readable time in {where}"
            if least.events
            else "no record is an event: they are marks alone",
            "where the event's time is, and with 'timeUnit' its unit if it is a number",
            "look at some records: python -m pyspark_timestream peek --topic "
            f"{findings.topics[0]} --bootstrap-servers ...",
        )


def list_notes(options: KafkaOptions, findings: Findings, whole_us: int | None) -> Iterator[str]:
    """Return sentences about what is wrong or unknown.

    Args:
        options: the options of the read.
        findings: its results.
        whole_us: the time that was asked for, where the topic has less; else None.
    """
    least = findings.delays[0]
    if whole_us is not None:
        yield (f"the records are of less than {format_duration(whole_us)}: all of them were read")
    if least.malformed:
        yield (
            f"{least.malformed:,} of {least.events:,} events have no readable time and are not "
            "counted as late: python -m pyspark_timestream peek shows some"
        )
    silent = [
        each.partition for each in least.partitions if each.state.events and not each.state.ctis
    ]
    if silent:
        why = f"they hold less than option 'ctiFrequency' ('{options.frequency}') asks for"
        if (
            options.writer_from is not None
            or options.writers
            or options.writer_grace_us is not None
        ):
            why += ", or a writer that is waited for has not come as far"
        yield (
            f"{len(silent)} of {len(least.partitions)} partitions have no CTI, since {why}, so "
            "nothing in them can be late"
        )
    if findings.largest_lateness_us > _LONG_US and options.max_future_us is None:
        yield (
            f"one event was {format_duration(findings.largest_lateness_us)} behind an earlier one: "
            "if that one's time is wrong, try 'maxFuture', or 'writerFrom' if its record's "
            "timestamp is as wrong"
        )
    if findings.sampled_every > 1:
        yield f"waits were measured on one in {findings.sampled_every} records, late rows on all"
