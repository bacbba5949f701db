"""Progress events as Spark reports them, of streams with a known state."""

import json
import re

from timestream.builders import report_progress
from timestream.histories import COUNT

from pyspark_timestream.core.instants import format_instant
from pyspark_timestream.kafka.offsets.offset import StreamOffset
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.clocks import min_cti


def offset_of(shares, number=0, topic="trips", given=COUNT, **more):
    """The offset of a batch with `shares` as its partitions 0, 1, ..."""
    partitions = {Partition(topic, n): each for n, each in enumerate(shares)}
    cti_us = min_cti(each.clock.cti_us for each in shares if not each.idle)
    return StreamOffset("me", given, 1, partitions, number, cti_us, **more)


def event(*offsets, batch=0, query="q", run="r", name="rides", left=3, second=0, **more):
    """The progress of a batch with a source for each offset, or for each report as it is."""
    sources = []
    for offset in offsets:
        report, end = offset, None
        if isinstance(offset, StreamOffset):
            ends = {part: each.start_inclusive + left for part, each in offset.partitions.items()}
            report, end = report_progress(offset, ends), json.dumps(offset.to_json())
        sources.append({"endOffset": end, "latestOffset": json.dumps(report)})
    at = format_instant(1_704_110_400_000_000 + second * 1_000_000)
    return {
        "id": query, "runId": run, "name": name, "timestamp": at, "batchId": batch,
        "sources": sources, **more,
    }  # fmt: skip


SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (-?[0-9.e+-]+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,|$)')
ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parse_page(text):
    """The samples of a page by (name, {(label, text)}), read from the format's description."""
    found, types, current = {}, {}, None
    assert text == "" or text.endswith("\n")
    for line in text.split("\n")[:-1]:
        if line.startswith("# TYPE "):
            _, _, current, types[current] = line.split(" ")
            assert types[current] in ("counter", "gauge")
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels, value = match.groups()
            # All lines of a metric are one group, behind its type.
            assert name == current
            assert LABEL.sub("", labels or "") == "", line
            pairs = frozenset(
                (label, re.sub(r'\\[\\"n]', lambda each: ESCAPED[each[0]], each))
                for label, each in LABEL.findall(labels or "")
            )
            assert (name, pairs) not in found, line
            found[name, pairs] = float(value)
    return found


def values(page, name, **labels):
    """The numbers of a metric with labels that include `labels`."""
    wanted = set(labels.items())
    return [each for (metric, pairs), each in page.items() if metric == name and wanted <= pairs]
