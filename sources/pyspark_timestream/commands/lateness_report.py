"""The command `lateness`: counts a topic's late rows by delay, and recommends a delay."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark_timestream.commands.measure_lateness import (
    DURATIONS,
    DelayResult,
    Lateness,
    build_row,
    load_lateness,
)
from pyspark_timestream.commands.peek import command as peek
from pyspark_timestream.core.instants import format_duration, format_instant
from pyspark_timestream.report import (
    GAP,
    align,
    format_count,
    join_sections,
    shorten_duration,
)

_MAX_BAR: Final = 30
_MIN_BAR: Final = 8
_MAX_PARTITIONS: Final = 10
_TIME_OPTIONS: Final = (
    *("startTime", "endTime", "edge", "eventShape", "timeUnit", "maxFuture"),
    *("ctiHeader", "writerFrom", "writers", "writerGrace", "writerTimeout", "ctiFrequency"),
)
"""Options other than `ctiDelay` that affect the counts, so that the stream needs them too."""


def format_report(
    report: Lateness, options: Mapping[str, str], width: int, *, all_delays: bool
) -> str:
    """Format a report; without `all_delays` show none after the first without late rows."""
    results = list(report.delays)
    if not all_delays:
        lossless = next(
            (index for index, result in enumerate(results) if not result.late), len(results)
        )
        results = results[: lossless + 1]
    sections = [
        _format_head(report),
        _draw_delays(report, results, width),
        _format_partitions(results, width),
        _format_remarks(report, options),
        *_format_advice(report, options),
    ]
    return join_sections(sections)


def to_json(report: Lateness) -> str:
    """Format a report as one JSON object; durations are in microseconds."""
    rows = []
    for delay in report.delays:
        row = build_row(delay, report.sampled_every)
        cells = {f"{name}_us" if name in DURATIONS else name: cell for name, cell in row.items()}
        rows.append({"delay": _format_delay(delay), **cells})
    lossless, nearly = report.find_lossless(), report.find_nearly_lossless()
    fields = {
        "topics": list(report.topics),
        "from": None if report.first_us is None else format_instant(report.first_us),
        "to": None if report.last_us is None else format_instant(report.last_us),
        "largest_lateness_us": report.largest_lateness_us,
        "delays": rows,
        "without_late_rows": lossless and _format_delay(lossless),
        "below_0.1_percent": nearly and _format_delay(nearly),
        "notes": list(report.notes),
    }
    return json.dumps(fields, indent=2)


def _format_head(report: Lateness) -> list[str]:
    least = report.delays[0]
    topics = ", ".join(f"'{topic}'" for topic in report.topics)
    lines = [
        f"Topic {topics}: {format_count(len(least.partitions), 'partition')}, "
        f"{format_count(least.events, 'event')}"
    ]
    if report.first_us is not None and report.last_us is not None:
        from_, to = format_instant(report.first_us), format_instant(report.last_us)
        lines.append(f"Their records' timestamps: {from_} to {to}")
    return lines


# -- tables ----------------------------------------------------------------------------------------


def _draw_delays(report: Lateness, results: Sequence[DelayResult], width: int) -> list[str]:
    head = ["ctiDelay", "late", "", "waits: half", "95 %", "all", "none yet"]
    rows = [head, *(_describe_delay(report, result) for result in results)]
    table = align(rows, to_right=True)
    room = width - max(map(len, table)) - len(GAP)
    if room < _MIN_BAR:
        return table
    longest = min(room, _MAX_BAR)
    most_late = max(result.late for result in results)
    bars = ["", *(_draw_bar(result.late, most_late, longest) for result in results)]
    return [f"{line}{GAP}{bar}".rstrip() for line, bar in zip(table, bars, strict=True)]


def _describe_delay(report: Lateness, result: DelayResult) -> list[str]:
    return [
        _format_delay(result),
        f"{result.late:,}",
        _format_share(result.late_share),
        *("-" if us is None else shorten_duration(us) for us in result.waits.summarize_us()),
        f"{result.waiting * report.sampled_every:,}",
    ]


def _draw_bar(late: int, most_late: int, longest: int) -> str:
    """Draw a bar with at least one character if there is a late row."""
    return "#" * max(round(longest * late / most_late), 1) if late else ""


def _format_partitions(results: Sequence[DelayResult], width: int) -> list[str]:
    """Format the late rows of each partition, those with the most first."""
    clocks = results[0].partitions
    if len(clocks) < 2:
        return []
    partitions = sorted(clocks, key=lambda partition: (-clocks[partition].flagged, partition))
    several = len({partition.topic for partition in clocks}) > 1
    delays = (shorten_duration(result.delay_us) if result.delay_us else "0 s" for result in results)
    rows = [["late by partition", *delays]]
    for partition in partitions[:_MAX_PARTITIONS]:
        cells = (f"{result.partitions[partition].flagged:,}" for result in results)
        rows.append(
            [f"{partition.topic} {partition.number}" if several else str(partition.number), *cells]
        )
    lines = align(rows, to_right=True)
    while len(rows[0]) > 2 and max(map(len, lines)) > width:
        rows = [row[:-1] for row in rows]
        lines = align(rows, to_right=True)
    more = len(clocks) - _MAX_PARTITIONS
    if more > 0:
        lines.append(
            f"and {format_count(more, 'more partition')}, with fewer late rows: see --json"
        )
    return lines


# -- sentences -------------------------------------------------------------------------------------


def _format_remarks(report: Lateness, options: Mapping[str, str]) -> list[str]:
    lines = []
    largest_us = report.largest_lateness_us
    if largest_us:
        behind = f"The latest event was {shorten_duration(largest_us)} behind"
        # Marks may make an event late with any delay.
        if "ctiHeader" not in options:
            behind += (
                f": with ctiDelay = {format_duration(largest_us)} no row of what was read would "
                "have been late"
            )
        lines += [f"{behind}.", "Of what is still to come nothing is known."]
    else:
        lines.append("No event was behind: even without a delay no row would have been late.")
    if len(report.delays[0].partitions) > 1:
        lines.append("Each partition waits by itself: a stream's results wait for the slowest one.")
    return [*lines, *(f"Note: {note}" for note in report.notes)]


def _format_advice(report: Lateness, options: Mapping[str, str]) -> list[list[str]]:
    lossless, nearly = report.find_lossless(), report.find_nearly_lossless()
    sections = []
    if lossless is not None:
        sections.append(_format_choice("No late row in what was read", lossless, options))
    else:
        longest = _format_delay(report.delays[-1])
        sections.append(
            [f"Each delay up to {longest} has late rows: try longer ones with --delays."]
        )
    if nearly is not None and (lossless is None or nearly.delay_us < lossless.delay_us):
        title = f"{nearly.late:,} late ({_format_share(nearly.late_share)}), below 0.1 %"
        sections.append(_format_choice(title, nearly, options))
    return sections


def _format_choice(title: str, result: DelayResult, options: Mapping[str, str]) -> list[str]:
    settings = {name: options[name] for name in _TIME_OPTIONS if name in options}
    settings["ctiDelay"] = _format_delay(result)
    median_us, p95_us, _ = result.waits.summarize_us()
    cost = "what it costs in waiting is unknown: no CTI passed an event"
    if median_us is not None and p95_us is not None:
        cost = (
            f"half of the events wait for at most {shorten_duration(median_us)}, "
            f"95 % for at most {shorten_duration(p95_us)}"
        )
    lines = [
        f"    .option({json.dumps(name)}, {json.dumps(text)})" for name, text in settings.items()
    ]
    return [f"{title}; {cost}:", *lines]


def _format_delay(result: DelayResult) -> str:
    return format_duration(result.delay_us) if result.delay_us else "0 seconds"


def _format_share(share: float) -> str:
    """Format a share in per cent; never as 0 or 100 if it is neither."""
    percent = 100 * share
    if 0 < percent < 0.01:
        return "<0.01 %"
    if 99.99 < percent < 100:
        return ">99.99 %"
    return f"{percent:.2f} %"


# -- the command ----------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    peek.add_arguments(parser)
    parser.add_argument(
        "--start-time",
        required=True,
        metavar="FROM",
        help="where an event's time is: option startTime, such as field:departed or header:time",
    )
    parser.add_argument(
        "--cti-frequency",
        required=True,
        metavar="N",
        help="option ctiFrequency: a count of events such as 1, or a timespan such as '5 seconds'",
    )
    parser.add_argument(
        "--delays",
        metavar="DURATIONS",
        help="the delays to try, such as '20 seconds,5 minutes'; else a ladder from 0 to 1 day, "
        "shown up to the first delay without late rows",
    )
    parser.add_argument(
        "--last",
        metavar="DURATION",
        help="read only the topic's last '6 hours', say, by the records' timestamps",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code."""

    def report() -> str:
        raw = peek.read_arguments(arguments)
        lateness = load_lateness(raw, arguments.delays, arguments.last)
        if arguments.json:
            return to_json(lateness)
        return format_report(
            lateness, raw, peek.terminal_width(), all_delays=arguments.delays is not None
        )

    return peek.run_command(report)
