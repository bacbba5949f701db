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

_BOX: Final = 212
_GAP: Final = 90
_HEIGHT: Final = 52
_ROW: Final = 76
_LETTERS: Final = 22


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
    ordered = sorted(nodes, key=lambda key: (levels[key], key))
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
    """Return the section of a chain: a picture, and the same as a list."""
    trouble = "".join(
        f'<p class="note">{to_html(node.name)}: {to_html(node.trouble)}</p>'
        for node in chain.nodes
        if node.trouble
    )
    hops = "".join(f"<li>{to_html(chain.describe_hop(hop))}</li>" for hop in chain.hops)
    return (
        "<header><h2>Chain</h2></header>"
        f'<div class="lanes scroll" tabindex="0" role="region" aria-label="chain" data-key="chain">'
        f"{_draw(chain)}</div>{trouble}"
        f'<details data-key="hops"><summary>the same as a list</summary><ul>{hops}</ul></details>'
    )


def _draw(chain: Chain) -> str:
    rows: dict[int, int] = {}
    corners = []
    for node in chain.nodes:
        row = rows.get(node.level, 0)
        rows[node.level] = row + 1
        corners.append((4 + node.level * (_BOX + _GAP), 4 + row * _ROW))
    width = 8 + max(rows) * (_BOX + _GAP) + _BOX
    height = 8 + max(rows.values()) * _ROW - (_ROW - _HEIGHT)
    parts = [_draw_hop(chain, hop, corners) for hop in chain.hops]
    parts += [_draw_node(*each) for each in zip(chain.nodes, corners, strict=True)]
    title = svg("title", "topics, queries and stores, and how far each hop is behind")
    return svg(
        "svg", "", title, *parts, class_="chain", role="img", viewBox=f"0 0 {width} {height}",
        width=width, height=height,
    )  # fmt: skip


def _draw_node(node: Node, corner: tuple[int, int]) -> str:
    x, y = corner
    name = node.name if len(node.name) <= _LETTERS else f"…{node.name[1 - _LETTERS :]}"
    clock = "newest" if node.kind == "topic" else "CTI"
    time = "no CTI" if node.cti_us is None else f"{clock} {format_time(node.cti_us)[:19]}"
    if node.cti_us is not None and node.cti_us >= FINAL_US:
        time = "final CTI"
    return svg(
        "g", "",
        svg("title", f"{node.kind} {node.name}, {clock} {format_time(node.cti_us)}"),
        svg("rect", "", x=x, y=y, width=_BOX, height=_HEIGHT, rx=8),
        svg("text", f"{node.kind} {cut_text(name, _LETTERS)}", x=x + 8, y=y + 21),
        svg("text", time, x=x + 8, y=y + 41, class_="time"),
        class_=node.kind,
    )  # fmt: skip


def _draw_hop(chain: Chain, hop: Hop, corners: Sequence[tuple[int, int]]) -> str:
    (x1, y1), (x2, y2) = corners[hop.source], corners[hop.target]
    x1, y1, y2 = x1 + _BOX, y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
    far = "?" if hop.behind_us is None else shorten_duration(hop.behind_us)
    far = "level" if hop.behind_us == 0 else far
    middle = svg("text", far, x=x2 - _GAP // 2, y=y2 - 6, text_anchor="middle")
    title = svg("title", chain.describe_hop(hop))
    return svg("g", "", title, svg("path", "", d=f"M{x1} {y1}L{x2} {y2}"), middle, class_="hop")
