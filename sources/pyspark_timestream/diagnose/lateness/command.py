"""The command `lateness`: counts the late rows of a topic by delay, and says which to choose."""

import argparse
import json
import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from pyspark_timestream.core.instants import format_duration, format_instant
from pyspark_timestream.diagnose.lateness.measure import (
    DelayFindings,
    Findings,
    build_table,
    find_lateness,
)
from pyspark_timestream.diagnose.peek.command import add_source_arguments, read_given
from pyspark_timestream.diagnose.peek.detect import NoSample
from pyspark_timestream.errors import OptionError, TimestreamError

_GAP: Final = "  "
_MAX_BAR: Final = 30
_MIN_BAR: Final = 8
_MAX_PARTITIONS: Final = 10
_TIME_OPTIONS: Final = (
    *("startTime", "endTime", "edge", "eventShape", "timeUnit", "maxFuture"),
    *("ctiHeader", "writerFrom", "writers", "writerGrace", "writerTimeout", "ctiFrequency"),
)
"""Options beside `ctiDelay` on which the counts depend, and which a stream needs as well."""

_UNITS: Final = ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"))


def format_findings(
    findings: Findings, options: Mapping[str, str], width: int, *, all_delays: bool
) -> str:
    """Write findings for a terminal of this width.

    Args:
        findings: the results.
        options: the stream's options, by the names that they are declared with.
        width: in characters.
        all_delays: show each delay; else none beyond the first without late rows.
    """
    shown = list(findings.delays) if all_delays else _select_informative(findings.delays)
    sections = [
        _format_head(findings),
        _draw_delays(findings, shown, width),
        _format_partitions(shown, width),
        _format_remarks(findings, options),
        *_format_advice(findings, options),
    ]
    return "\n\n".join("\n".join(map(_escape_controls, lines)) for lines in sections if lines)


def to_json(findings: Findings) -> str:
    """Write findings as one JSON object; durations are in microseconds."""
    rows = []
    for row, each in zip(_list_rows(findings), findings.delays, strict=True):
        rows.append({"delay": _format_delay(each), **row})
    lossless, nearly = findings.find_lossless(), findings.find_nearly_lossless()
    found = {
        "topics": list(findings.topics),
        "from": None if findings.first_us is None else format_instant(findings.first_us),
        "to": None if findings.last_us is None else format_instant(findings.last_us),
        "largest_lateness_us": findings.largest_lateness_us,
        "delays": rows,
        "without_late_rows": lossless and _format_delay(lossless),
        "below_0.1_percent": nearly and _format_delay(nearly),
        "notes": list(findings.notes),
    }
    return json.dumps(found, indent=2)


def _list_rows(findings: Findings) -> list[dict[str, Any]]:
    table = build_table(findings)
    durations = ("delay", "most_late", "wait_median", "wait_p95", "wait_max")
    columns = {}
    for name in table.column_names:
        column = table[name]
        if name in durations:
            columns[f"{name}_us"] = column.cast("int64").to_pylist()
        else:
            columns[name] = column.to_pylist()
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _select_informative(delays: Sequence[DelayFindings]) -> list[DelayFindings]:
    """Select the delays up to the first without late rows."""
    lossless = next((place for place, each in enumerate(delays) if not each.late), len(delays))
    return list(islice(delays, lossless + 1))


def _format_head(findings: Findings) -> list[str]:
    least = findings.delays[0]
    topics = ", ".join(f"'{each}'" for each in findings.topics)
    lines = [
        f"Topic {topics}: {_count(len(least.partitions), 'partition')}, "
        f"{_count(least.events, 'event')}"
    ]
    if findings.first_us is not None and findings.last_us is not None:
        first, last = format_instant(findings.first_us), format_instant(findings.last_us)
        lines.append(f"Their records' timestamps: {first} to {last}")
    return lines


# -- tables ----------------------------------------------------------------------------------------


def _draw_delays(findings: Findings, shown: Sequence[DelayFindings], width: int) -> list[str]:
    head = ["ctiDelay", "late", "", "waits: half", "95 %", "all", "none yet"]
    rows = [head, *(_describe_delay(findings, each) for each in shown)]
    table = _align(rows)
    room = width - max(map(len, table)) - len(_GAP)
    if room < _MIN_BAR:
        return table
    longest = min(room, _MAX_BAR)
    most = max(each.late for each in shown)
    bars = ["", *(_draw_bar(each.late, most, longest) for each in shown)]
    return [f"{line}{_GAP}{bar}".rstrip() for line, bar in zip(table, bars, strict=True)]


def _describe_delay(findings: Findings, each: DelayFindings) -> list[str]:
    waits = each.waits
    spans = (waits.find_quantile(0.5), waits.find_quantile(0.95), waits.greatest_ms)
    return [
        _format_delay(each),
        f"{each.late:,}",
        _format_share(each.late_share),
        *("-" if ms is None else _format_span(ms * 1_000) for ms in spans),
        f"{each.waiting * findings.sampled_every:,}",
    ]


def _draw_bar(late: int, most: int, longest: int) -> str:
    """Draw at least one sign where there is a late row."""
    return "#" * max(round(longest * late / most), 1) if late else ""


def _format_partitions(shown: Sequence[DelayFindings], width: int) -> list[str]:
    """List the late rows of each partition, those with most of them first."""
    first = shown[0].partitions
    if len(first) < 2:
        return []
    places = sorted(range(len(first)), key=lambda place: (-first[place].late, place))
    several = len({each.partition.topic for each in first}) > 1
    rows = [["late by partition", *map(_format_short_delay, shown)]]
    for place in places[:_MAX_PARTITIONS]:
        topic, number = first[place].partition
        cells = (f"{each.partitions[place].late:,}" for each in shown)
        rows.append([f"{topic} {number}" if several else str(number), *cells])
    columns = len(rows[0])
    while columns > 2 and max(map(len, _align([row[:columns] for row in rows]))) > width:
        columns -= 1
    lines = _align([row[:columns] for row in rows])
    more = len(first) - _MAX_PARTITIONS
    if more > 0:
        lines.append(f"and {_count(more, 'more partition')}, with fewer late rows: see --json")
    return lines


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(
            cell.rjust(size) if place else cell.ljust(size)
            for place, (cell, size) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


# -- sentences -------------------------------------------------------------------------------------


def _format_remarks(findings: Findings, options: Mapping[str, str]) -> list[str]:
    lines = []
    largest_us = findings.largest_lateness_us
    if largest_us:
        behind = f"The latest event was {_format_span(largest_us)} behind"
        # Marks may make an event late whatever the delay is.
        if "ctiHeader" not in options:
            behind += (
                f": with ctiDelay = {format_duration(largest_us)} no row of what was read would "
                "have been late"
            )
        lines += [f"{behind}.", "Of what is still to come nothing is known."]
    else:
        lines.append("No event was behind: even without a delay no row would have been late.")
    if len(findings.delays[0].partitions) > 1:
        lines.append("Each partition waits by itself: a stream's results wait for the slowest one.")
    return [*lines, *(f"Note: {each}" for each in findings.notes)]


def _format_advice(findings: Findings, options: Mapping[str, str]) -> list[list[str]]:
    lossless, nearly = findings.find_lossless(), findings.find_nearly_lossless()
    sections = []
    if lossless is not None:
        sections.append(_format_choice("No late row in what was read", lossless, options))
    else:
        last = _format_delay(findings.delays[-1])
        sections.append([f"Each delay up to {last} has late rows: try longer ones with --delays."])
    if nearly is not None and (lossless is None or nearly.delay_us < lossless.delay_us):
        title = f"{nearly.late:,} late ({_format_share(nearly.late_share)}), below 0.1 %"
        sections.append(_format_choice(title, nearly, options))
    return sections


def _format_choice(title: str, found: DelayFindings, options: Mapping[str, str]) -> list[str]:
    given = {name: options[name] for name in _TIME_OPTIONS if name in options}
    given["ctiDelay"] = _format_delay(found)
    middle, most = found.waits.find_quantile(0.5), found.waits.find_quantile(0.95)
    cost = "what it costs in waiting is unknown: no CTI passed an event"
    if middle is not None and most is not None:
        cost = (
            f"half of the events wait for at most {_format_span(middle * 1_000)}, "
            f"95 % for at most {_format_span(most * 1_000)}"
        )
    lines = [f"    .option({json.dumps(name)}, {json.dumps(text)})" for name, text in given.items()]
    return [f"{title}; {cost}:", *lines]


def _format_delay(found: DelayFindings) -> str:
    return format_duration(found.delay_us) if found.delay_us else "0 seconds"


def _format_short_delay(found: DelayFindings) -> str:
    return _format_span(found.delay_us) if found.delay_us else "0 s"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _format_share(share: float) -> str:
    """Write a share in per cent; never as 0 or 100 if it is neither."""
    percent = 100 * share
    if 0 < percent < 0.01:
        return "<0.01 %"
    if 99.99 < percent < 100:
        return ">99.99 %"
    return f"{percent:.2f} %"


def _format_span(us: int) -> str:
    for unit, name in _UNITS:
        if us >= unit:
            return f"{us / unit:.1f} {name}".replace(".0 ", " ")
    return format_duration(us) if us % 1_000 else f"{us // 1_000} ms"


def _escape_controls(line: str) -> str:
    """Escape control characters: names come from the brokers."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_source_arguments(parser)
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
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def main(given: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    own = {"startTime": given.start_time, "ctiFrequency": given.cti_frequency}
    try:
        raw = read_given(given)
        for name in own:
            if name in raw:
                instead = {"startTime": "--start-time", "ctiFrequency": "--cti-frequency"}[name]
                raise NoSample(
                    f"--option {name} is not needed here: leave it out, or use {instead}"
                )
        raw |= own
        # The client's log repeats what an error says at its end.
        logging.getLogger("pyspark_timestream").addHandler(logging.NullHandler())
        findings = find_lateness(raw, given.delays, given.last)
    except (NoSample, OptionError, TimestreamError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if given.json:
        print(to_json(findings))
    else:
        width = shutil.get_terminal_size((120, 24)).columns
        print(format_findings(findings, raw, width, all_delays=given.delays is not None))
    return 0
