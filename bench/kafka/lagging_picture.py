"""The picture of `lagging_partition.py`, from what it has measured: event time over records read.

python bench/kafka/lagging_picture.py    # draws the kept result again, without Spark or Kafka
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any, Final

__all__ = ["draw"]

WIDTH: Final = 860
HEIGHT: Final = 440
LEFT, RIGHT, TOP, BOTTOM = 70, 560, 96, 384
BAR_LEFT, BAR_WIDTH = 620, 210

STYLE: Final = """
  svg { font: 13px system-ui, sans-serif }
  .page { fill: #ffffff } text { fill: #1f2328 } .small { font-size: 12px; fill: #59636e }
  .head { font-size: 17px; font-weight: 600 } .big { font-size: 22px; font-weight: 600 }
  .grid { stroke: #d1d9e0 } .axis { stroke: #59636e }
  .line { fill: none; stroke-width: 2.5 } .others { stroke: #818b98 } .lagging { stroke: #0969da }
  .spark { stroke: #cf222e; stroke-dasharray: 7 4 } .ours { stroke: #1a7f37; stroke-dasharray: 2 3 }
  .lost { fill: #cf222e; fill-opacity: .10 } .bar-spark { fill: #cf222e } .bar-all { fill: #d1d9e0 }
  text.is-others { fill: #59636e } text.is-lagging { fill: #0969da }
  text.is-spark { fill: #cf222e } text.is-ours { fill: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } text { fill: #f0f6fc } .small { fill: #9198a1 }
    .grid { stroke: #3d444d } .axis { stroke: #9198a1 } .bar-all { fill: #3d444d }
    .others { stroke: #9198a1 } .lagging { stroke: #4493f8 } .spark { stroke: #f85149 }
    .ours { stroke: #3fb950 } .lost { fill: #f85149; fill-opacity: .15 }
    .bar-spark { fill: #f85149 }
    text.is-others { fill: #9198a1 } text.is-lagging { fill: #4493f8 }
    text.is-spark { fill: #f85149 } text.is-ours { fill: #3fb950 }
  }
"""


def draw(found: Mapping[str, Any]) -> str:
    """The picture as the text of an SVG file."""
    batches: Sequence[Mapping[str, Any]] = found["batches"]
    lagging = found["lagging"]
    series = {"lagging": [each["newest"][lagging] for each in batches]}
    others = [name for name in batches[0]["newest"] if name != lagging]
    of_others = [[each["newest"][name] for each in batches] for name in others]
    # After the last batch the stream has ended.
    series["ours"] = [each["cti"] for each in batches if each["cti"]]
    series["spark"] = [each["watermark"] for each in batches]
    records = [each["records"] for each in batches]
    known = [hour(instant) for each in (*series.values(), *of_others) for instant in each]
    area = Area(0, max(records), int(min(known)), int(max(known)) + 1)
    parts = [
        *heading(found),
        *area.frame(),
        area.between(records, series["spark"], series["lagging"]),
        *(area.line("others", records, each) for each in of_others),
        *(area.line(name, records, each) for name, each in series.items()),
        *labels(area, records, lagging, others, series),
        *bars(found),
    ]
    body = "\n".join(f"  {part}" for part in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(summary(found))}">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def summary(found: Mapping[str, Any]) -> str:
    """The picture in a sentence."""
    lost = found["lost"]
    return (
        f"Of {found['trips']:,} trips Spark's watermark loses {lost['spark']:,}, and CTIs lose "
        f"{lost['timestream']:,}, where one partition of four is {found['lag_hours']} hours behind"
    )


class Area:
    """Where the lines are: records to the right, hours upwards."""

    def __init__(self, first: int, last: int, lowest: int, highest: int) -> None:
        self._records = (first, last)
        self._hours = (lowest, highest)

    def x(self, records: float) -> float:
        """The place of a number of records."""
        first, last = self._records
        return round(LEFT + (records - first) / (last - first) * (RIGHT - LEFT), 1)

    def y(self, hours: float) -> float:
        """The place of a time, in hours of the day."""
        lowest, highest = self._hours
        return round(BOTTOM - (hours - lowest) / (highest - lowest) * (BOTTOM - TOP), 1)

    def line(self, name: str, records: Sequence[int], instants: Sequence[str]) -> str:
        """One line; what is missing at its end is left out."""
        return f'<polyline class="line {name}" points="{self._points(records, instants)}"/>'

    def between(self, records: Sequence[int], upper: Sequence[str], lower: Sequence[str]) -> str:
        """The area between two lines."""
        back = self._points(records[::-1], lower[::-1])
        return f'<polygon class="lost" points="{self._points(records, upper)} {back}"/>'

    def _points(self, records: Sequence[int], instants: Sequence[str]) -> str:
        pairs = zip(records, instants, strict=False)
        return " ".join(f"{self.x(count)},{self.y(hour(instant))}" for count, instant in pairs)

    def frame(self) -> Iterable[str]:
        """Axes with their units."""
        lowest, highest = self._hours
        for each in range(lowest, highest + 1, 2):
            y = self.y(each)
            yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}"/>'
            yield text(LEFT - 8, y + 4, f"{each:02}:00", "small", "end")
        for each in range(0, self._records[1] + 1, 5_000):
            yield text(self.x(each), BOTTOM + 20, f"{each:,}", "small", "middle")
        yield f'<path class="axis" fill="none" d="M{LEFT},{TOP} V{BOTTOM} H{RIGHT}"/>'
        yield text((LEFT + RIGHT) / 2, BOTTOM + 42, "records read", "small", "middle")
        yield text(20, TOP - 18, "event time, UTC", "small")


def heading(found: Mapping[str, Any]) -> Iterable[str]:
    """The page and its title."""
    yield f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
    title = f"One topic, four partitions; {found['lagging']}'s is {found['lag_hours']} hours behind"
    yield text(20, 30, title, "head")
    below = f"The same records and the same delay of {found['delay']}; trips by station and hour"
    yield text(20, 50, below, "small")


def labels(
    area: Area,
    records: Sequence[int],
    lagging: str,
    others: Sequence[str],
    series: Mapping[str, Sequence[str]],
) -> Iterable[str]:
    """The names of lines, in the room beside them: the lines rise."""

    def beside(name: str, share: float) -> tuple[float, float]:
        number = round(share * (len(series["spark"]) - 1))
        return area.x(records[number]), area.y(hour(series[name][number]))

    x, y = beside("spark", 0.35)
    yield text(x - 6, y - 12, ", ".join(others), "is-others", "end")
    x, y = beside("spark", 0.66)
    yield text(x - 6, y - 12, "Spark's watermark", "is-spark", "end")
    x, y = beside("lagging", 0.85)
    yield text(x - 10, y - 6, lagging, "is-lagging", "end")
    x, y = beside("lagging", 0.35)
    yield text(x + 10, y + 24, "CTI of timestream", "is-ours")
    (x, upper), (_, lower) = beside("spark", 0.5), beside("lagging", 0.5)
    yield text(x, (upper + lower) / 2 + 8, "late", "big is-spark", "middle")


def bars(found: Mapping[str, Any]) -> Iterable[str]:
    """How many trips each has lost."""
    total = found["trips"]
    names = {"spark": "Spark's watermark", "timestream": "CTIs of timestream"}
    yield text(BAR_LEFT, TOP + 16, f"Lost, of {total:,} trips", "small")
    for number, (key, name) in enumerate(names.items()):
        y = TOP + 52 + 110 * number
        lost = found["lost"][key]
        colour = "is-spark" if lost else "is-ours"
        yield text(BAR_LEFT, y, name)
        yield text(BAR_LEFT, y + 30, f"{lost:,}  ({lost / total:.0%})", f"big {colour}")
        yield rectangle("bar-all", y + 42, BAR_WIDTH)
        yield rectangle("bar-spark", y + 42, BAR_WIDTH * lost / total)


def rectangle(name: str, y: float, width: float) -> str:
    """A bar."""
    return f'<rect class="{name}" x="{BAR_LEFT}" y="{y}" width="{width:.1f}" height="14"/>'


def text(x: float, y: float, words: str, name: str = "", anchor: str = "start") -> str:
    """Words at a place."""
    return f'<text class="{name}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def hour(instant: str) -> float:
    """The hour of the day, with its fraction."""
    at = datetime.fromisoformat(instant)
    return at.hour + at.minute / 60 + at.second / 3600


if __name__ == "__main__":
    root = Path(__file__).parents[2]
    result = root / "bench" / "results" / "lagging_partition.json"
    picture = root / "docs" / "pictures" / "lagging-partition.svg"
    picture.write_text(draw(json.loads(result.read_text())))
