"""Chains of queries: from topics through queries and stores, and how far each hop is behind.

A checkpoint names the topics and stores that its query reads, and the store or topic that it
writes. A hop's distance is the time between the clocks at its two ends: a query is behind the
newest event of a topic, a store behind the query that writes it, a query behind the store that it
reads. The length of windows is part of the distance to a store.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark_timestream.commands.explanation import PartitionFacts
from pyspark_timestream.commands.watch.follow import QueryView
from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.core.report import cut_text, format_time, shorten_duration, svg, to_html

_LETTERS: Final = 19


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """A store as it is now.

    Attributes:
        id: its id, which subscriptions name.
        location: where it is.
        cti_us: its CTI; None: it has none, or could not be read.
        trouble: why it could not be read; empty if it could.
    """

    id: str
    location: str
    cti_us: int | None
    trouble: str = ""


class Node(NamedTuple):
    """A topic, query or store, with its clock; `level` counts the hops to it."""

    kind: str
    name: str
    cti_us: int | None
    level: int = 0
    trouble: str = ""


class Hop(NamedTuple):
    """From one node to another, by their places; None: a clock at one end is not known."""

    source: int
    target: int
    behind_us: int | None


@dataclass(frozen=True, slots=True)
class Chain:
    """The nodes, each with its level, and the hops between them."""

    nodes: tuple[Node, ...]
    hops: tuple[Hop, ...]

    def name_hop(self, hop: Hop) -> tuple[str, str, str, str]:
        """Return the kind and name of both ends."""
        source, target = self.nodes[hop.source], self.nodes[hop.target]
        return source.kind, source.name, target.kind, target.name

    def describe_hop(self, hop: Hop) -> str:
        """Say in words how far the hop is behind."""
        source, target = self.nodes[hop.source], self.nodes[hop.target]
        far = "unknown"
        if hop.behind_us is not None:
            far = f"{shorten_duration(hop.behind_us)} behind" if hop.behind_us else "level"
        return f"{source.kind} {source.name} to {target.kind} {target.name}: {far}"


def build_chain(views: Sequence[QueryView], stores: Sequence[StoreFacts]) -> Chain | None:
    """Return the chain of these queries; None if there is none beyond the topics that they read."""
    nodes: dict[tuple[str, str], Node] = {}
    hops: dict[tuple[tuple[str, str], tuple[str, str]], int | None] = {}
    ids = {each.location: each.id for each in stores} | {
        view.links.store[1]: view.links.store[0] for view in views if view.links.store
    }
    for each in stores:
        nodes["store", each.id] = Node("store", each.location, each.cti_us, 0, each.trouble)
    for place, view in enumerate(views):
        clocks = [stream.explanation.cti_us for stream in view.streams]
        clocks += [cti_us for _, cti_us in view.links.subscriptions]
        cti_us = min((us for us in clocks if us is not None), default=None)
        own = "query", str(place)
        nodes[own] = Node("query", view.name, None if None in clocks else cti_us)
        for stream in view.streams:
            for topic, newest_us in _find_newest(stream.explanation.partitions).items():
                key = "topic", topic
                known_us = nodes[key].cti_us if key in nodes else None
                newest = max((us for us in (known_us, newest_us) if us is not None), default=None)
                nodes[key] = Node("topic", topic, newest)
                hops[key, own] = stream.explanation.cti_us
        for store, subscribed_us in view.links.subscriptions:
            key = "store", store
            nodes.setdefault(key, Node("store", f"id {store}", None))
            hops[key, own] = subscribed_us
        if view.links.store:
            store, location = view.links.store
            key = "store", ids.get(location, store)
            if key not in nodes or nodes[key].name.startswith("id "):
                nodes[key] = Node("store", location, None)
            hops[own, key] = nodes[key].cti_us
        if view.links.topic:
            key = "topic", view.links.topic
            nodes.setdefault(key, Node("topic", view.links.topic, None))
            hops[own, key] = None
    if all(source[0] == "topic" for source, _ in hops) and not stores:
        return None
    return _arrange(nodes, hops)


def _find_newest(facts: Iterable[PartitionFacts]) -> dict[str, int | None]:
    newest: dict[str, int | None] = {}
    for fact in facts:
        before = newest.get(fact.partition.topic)
        times = [us for us in (before, fact.last_us) if us is not None]
        newest[fact.partition.topic] = max(times, default=None)
    return newest


def _arrange(
    nodes: Mapping[tuple[str, str], Node],
    hops: Mapping[tuple[tuple[str, str], tuple[str, str]], int | None],
) -> Chain:
    levels = dict.fromkeys(nodes, 0)
    for _ in nodes:  # A circle ends as well: no level is higher than the number of nodes.
        for source, target in hops:
            levels[target] = min(max(levels[target], levels[source] + 1), len(nodes))
    ordered: list[tuple[str, str]] = []
    for level in sorted(set(levels.values())):  # Near their sources, so that few lines cross.
        own = [key for key in nodes if levels[key] == level]
        rows = {key: [ordered.index(a) for a, b in hops if b == key and a in ordered]
                for key in own}  # fmt: skip
        ordered += sorted(own, key=lambda key: (sum(rows[key]) / max(len(rows[key]), 1), key))
    places = {key: place for place, key in enumerate(ordered)}
    made = []
    for (source, target), reached_us in hops.items():
        ahead_us, behind = nodes[source].cti_us, None
        if ahead_us is not None and reached_us is not None:
            behind = 0 if reached_us >= FINAL_US else max(ahead_us - reached_us, 0)
        if ahead_us is not None and ahead_us >= FINAL_US and behind:
            behind = None  # The source has ended, which is no time to be behind.
        made.append(Hop(places[source], places[target], behind))
    return Chain(
        tuple(nodes[key]._replace(level=levels[key]) for key in ordered), tuple(sorted(made))
    )


# -- how it is drawn -------------------------------------------------------------------------------


def render_chain(chain: Chain) -> str:
    """Return the section of a chain: a picture, one that runs down for phones, and a list."""
    trouble = "".join(
        f'<p class="note">{to_html(node.name)}: {to_html(node.trouble)}</p>'
        for node in chain.nodes
        if node.trouble
    )
    hops = "".join(f"<li>{to_html(chain.describe_hop(hop))}</li>" for hop in chain.hops)
    return (
        "<header><h2>Chain</h2></header>"
        f'<div class="lanes scroll" tabindex="0" role="region" aria-label="chain" data-key="chain">'
        f"{_draw(chain, _WIDE)}{_draw(chain, _DOWN)}</div>{trouble}"
        f'<details data-key="hops"><summary>the same as a list</summary><ul>{hops}</ul></details>'
    )


class _Look(NamedTuple):
    """How a chain is laid out: sizes along its hops, and across them."""

    is_down: bool
    box: tuple[int, int]
    gap: tuple[int, int]
    lane: int
    """The room of a hop that passes other boxes."""


_WIDE: Final = _Look(False, (164, 66), (70, 18), 24)
"""Four hops fit a page of 1280 pixels."""

_DOWN: Final = _Look(True, (66, 158), (44, 12), 56)
"""Two boxes fit side by side on a phone."""

_Points = tuple[tuple[int, int], ...]


def _draw(chain: Chain, look: _Look) -> str:
    (along, across), (gap, between) = look.box, look.gap
    rows: dict[int, int] = {}
    corners = []
    for node in chain.nodes:
        row = rows.get(node.level, 0)
        rows[node.level] = row + 1
        corners.append((4 + node.level * (along + gap), 4 + row * (across + between)))
    edge = rim = max(rows.values()) * (across + between)
    lines: list[_Points] = []
    for hop in chain.hops:
        (x1, y1), (x2, y2) = corners[hop.source], corners[hop.target]
        x1, y1, y2 = x1 + along, y1 + across // 2, y2 + across // 2
        if x2 - x1 == gap:
            lines.append(((x1, y1), (x2, y2)))
        else:  # Around the boxes between, on a lane of its own.
            turns = (x1 + 10, y1), (x1 + 10, edge + 8), (x2 - 10, edge + 8), (x2 - 10, y2)
            lines.append(((x1, y1), *turns, (x2, y2)))
            edge += look.lane
    length = 8 + max(rows) * (along + gap) + along + (12 if edge > rim else 0)
    width, height = (edge + 8, length) if look.is_down else (length, edge + 8)
    places = _place_labels(lines, look)
    parts = [
        svg("path", "", d="M" + "L".join(f"{x} {y}" for x, y in (_turn(at, look) for at in line)))
        for line in lines
    ]
    parts += [
        _draw_distance(chain, hop, place) for hop, place in zip(chain.hops, places, strict=True)
    ]
    size = (across, along) if look.is_down else (along, across)
    nodes = zip(chain.nodes, corners, strict=True)
    parts += [_draw_node(node, _turn(corner, look), size) for node, corner in nodes]
    title = svg("title", "topics, queries and stores, and how far each hop is behind")
    return svg(
        "svg", "", title, *parts, class_=f"chain {'down' if look.is_down else 'wide'}", role="img",
        viewBox=f"0 0 {width} {height}", width=width, height=height,
    )  # fmt: skip


def _turn(point: tuple[int, int], look: _Look) -> tuple[int, int]:
    return (point[1], point[0]) if look.is_down else point


def _place_labels(lines: Sequence[_Points], look: _Look) -> list[tuple[int, int]]:
    """Return where the distance of each hop stands: on its line, and over no other one."""
    placed: list[tuple[int, int]] = []
    for line in lines:
        is_level = len(line) > 2 or line[0][1] == line[1][1]
        (x1, y1), (x2, y2) = (line[0], line[1]) if len(line) == 2 else (line[2], line[3])
        spots = [
            _turn((round(x1 + (x2 - x1) * part), round(y1 + (y2 - y1) * part)), look)
            for part in ((0.5, 0.3, 0.7) if is_level else (0.75, 0.25, 0.5, 0.65, 0.35))
        ]
        free = (
            (x, y)
            for x, y in spots
            if all(abs(x - x3) >= _LABEL[0] or abs(y - y3) >= _LABEL[1] for x3, y3 in placed)
        )
        placed.append(next(free, spots[0]))
    return placed


_LABEL: Final = (46, 16)
"""The room of a distance."""


def _draw_node(node: Node, corner: tuple[int, int], size: tuple[int, int]) -> str:
    (x, y), (width, height) = corner, size
    name = node.name if len(node.name) <= _LETTERS else f"…{node.name[1 - _LETTERS :]}"
    clock = "newest event" if node.kind == "topic" else "CTI"
    time = "none" if node.cti_us is None else format_time(node.cti_us)[:19]
    if node.cti_us is not None and node.cti_us >= FINAL_US:
        time = "final"
    return svg(
        "svg", "",
        svg("title", f"{node.kind} {node.name}, {clock} {format_time(node.cti_us)}"),
        svg("rect", "", x=1, y=1, width=width - 2, height=height - 2, rx=8),
        svg("text", f"{node.kind}, {clock}", x=9, y=18, class_="time"),
        svg("text", cut_text(name, _LETTERS), x=9, y=36),
        svg("text", time, x=9, y=55, class_="time"),
        class_=node.kind, x=x, y=y, width=width, height=height,
    )  # fmt: skip


def _draw_distance(chain: Chain, hop: Hop, place: tuple[int, int]) -> str:
    far = "?" if hop.behind_us is None else shorten_duration(hop.behind_us)
    far = "level" if hop.behind_us == 0 else far
    (x, y), width = place, 8 * len(far) + 4
    ground = svg("rect", "", x=x - width // 2, y=y - 8, width=width, height=16)
    label = svg("text", far, x=x, y=y + 4, text_anchor="middle")
    return svg("g", "", svg("title", chain.describe_hop(hop)), ground, label, class_="hop")
