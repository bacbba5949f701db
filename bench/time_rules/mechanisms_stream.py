"""Mechanisms of the stream beside the simpler way (decisions.md): `processor_time.py`.

Marks as interval algebra beside a loop over them, JSON with every check of parity and without.
"""

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

import numpy as np
import pyarrow as pa
from fold_by_loop import fold_by_loop
from processor_time import Part, Work, in_turns, report_parts
from side_by_side import Comparison
from sizes import size

from pyspark_timestream.core.instants import NEVER
from pyspark_timestream.kafka.decode.json import by_block, by_row
from pyspark_timestream.kafka.decode.json.by_block import parse_json
from pyspark_timestream.kafka.decode.records import RequestedFields
from pyspark_timestream.rules.clocks import PartitionClock, TimeRules
from pyspark_timestream.rules.marks import MarkEffects, Marks, fold_marks

ROWS: Final = size(1_000_000, 200_000)

BLOCK: Final = 20_000
"""Records of a block, as the Kafka reader hands them over."""


def random_fold(random: np.random.Generator) -> tuple[Any, ...]:
    """Rules, a state, and blocks of marks and closes of few records, each with what it needs."""
    names = ["", "a", "b", "c"]
    timeout = None if random.random() < 0.5 else int(random.integers(1, 6))
    listed = [(), ("a",), ("a", "b")][random.integers(3)]
    rules = TimeRules(
        writers=listed, writer_timeout_us=timeout, time_window=bool(random.integers(2))
    )
    blocks = []
    for _ in range(random.integers(1, 4)):
        rows = int(random.integers(0, 12))
        places = np.flatnonzero(random.random(rows) < 0.6)
        count = len(places)
        marked = random.random(count) < 0.8
        marks = Marks(
            places,
            random.integers(0, 15, count),
            marked,
            random.random(count) < 0.9,
            pa.array([names[at] for at in random.integers(4, size=count)], pa.string()),
            ~marked | (random.random(count) < 0.3),
        )
        stamps = np.where(random.random(rows) < 0.2, NEVER, random.integers(0, 20, rows))
        blocks.append((marks, stamps, rows))
    return rules, blocks


def plain(effects: MarkEffects) -> list[Any]:
    """All of it, as values that can be compared."""
    columns = [*effects.proposals, effects.unreadable, *(effects.window or ())]
    return [*effects[:5], *(column.tolist() for column in columns)]


def check_folds(cases: int = 2000) -> dict[str, int]:
    """How many proposals of random marks both folds have; SystemExit if they differ."""
    random, compared = np.random.default_rng(14), 0
    for case in range(cases):
        rules, blocks = random_fold(random)
        clock = PartitionClock()
        for marks, stamps, rows in blocks:
            effects, loop = (
                f(rules, clock, marks, stamps, rows) for f in (fold_marks, fold_by_loop)
            )
            if plain(effects) != plain(loop):
                raise SystemExit(
                    f"case {case}: {rules} {clock} {marks} {stamps}:\n{effects}\n{loop}"
                )
            compared += len(effects.proposals.us)
            clock = PartitionClock(
                writers=effects.writers,
                noted_us=effects.noted_us,
                record_us=effects.record_us,
                begun=effects.begun,
            )
    return {"cases": cases, "proposals": compared}


def folds() -> Iterator[Comparison]:
    """A mark every so many records, in blocks of a million: by a loop and as intervals."""
    cases = [
        (1000, 4, TimeRules()),
        (100, 4, TimeRules()),
        (10, 4, TimeRules()),
        (1, 4, TimeRules()),
        (1, 100, TimeRules()),
        (1, 4, TimeRules(time_window=True)),
        (1000, 4, TimeRules(writer_timeout_us=1_000_000)),
        (1, 4, TimeRules(writer_timeout_us=1_000_000)),
    ]
    stamps = np.arange(BLOCK) * 1000
    for every, writers, rules in cases:
        places = np.arange(0, BLOCK, every)
        count = len(places)
        yes, names = np.ones(count, np.bool_), [f"w{at % writers}" for at in range(count)]
        marks = Marks(places, places * 1000 - 60_000, yes, yes, pa.array(names), ~yes)

        blocks = (ROWS if every > 1 else ROWS // 5) // BLOCK
        fold = functools.partial(fold_blocks, rules, marks, stamps, blocks)
        ways: dict[str, Work] = {
            "loop": functools.partial(fold, fold_by_loop),
            "intervals": functools.partial(fold, fold_marks),
        }
        more = ", timeWindow" if rules.windows else ", writerTimeout" if rules.timeout_us else ""
        yield in_turns(f"a mark in {every:,}, {writers} writers{more}", ways, blocks * BLOCK)


def fold_blocks(
    rules: TimeRules,
    marks: Marks,
    stamps: np.ndarray,
    blocks: int,
    way: Callable[..., MarkEffects],
) -> int:
    """Fold a block again and again; how many proposals it has."""
    found = [way(rules, PartitionClock(), marks, stamps, BLOCK) for _ in range(blocks)]
    return sum(len(effects.proposals.us) for effects in found)


def json_paths() -> Iterator[Comparison]:
    """JSON by Arrow's parser without checks, with the checks for parity, and row by row."""
    fields = RequestedFields(
        pa.schema([("device", pa.int64()), ("reading", pa.float64())]), ("ts",)
    )
    fixed = {"unit": "celsius", "site": "north-hall"}

    def texts(bad_in: int) -> pa.Array:
        told = (
            {"device": "x" if bad_in and i % bad_in == 50 else i % 100, "ts": 1_700_000_000_000 + i,
             "reading": i % 977 / 7, **fixed}
            for i in range(BLOCK)
        )  # fmt: skip
        return pa.array([json.dumps(value).encode() for value in told], pa.binary())

    def parsed(block: Any) -> int:
        if isinstance(block, by_block._ParseFailure):
            raise SystemExit("Arrow refused what it should read")
        return len(block.malformed)

    clean = texts(0)
    as_text = clean.cast(pa.string())
    ways: dict[str, Work] = {
        "Arrow alone": lambda: parsed(by_block._parse_joined(fields, as_text)),
        "parse_json": lambda: parsed(parse_json(fields, clean)),
    }
    yield in_turns("JSON, Arrow alone / with checks", ways, BLOCK)
    for bad_in in (1000, 100):
        some = texts(bad_in)
        ways = {
            "none": lambda: parsed(parse_json(fields, clean)),
            "some": lambda some=some: parsed(parse_json(fields, some)),
        }
        yield in_turns(f"JSON, none / 1 in {bad_in:,} not of its type", ways, BLOCK)
    values = clean.to_pylist()
    decoder = by_row._DECODER

    def by_rows(with_decoder: json.JSONDecoder) -> int:
        with mock.patch.object(by_row, "_DECODER", with_decoder):
            return parsed(by_row.parse_rows(fields, values))

    ways = {
        "plain decoder": lambda: by_rows(json.JSONDecoder()),
        "exact decoder": lambda: by_rows(decoder),
    }
    yield in_turns("JSON row by row, plain / exact numbers", ways, BLOCK)
    ways = {
        "by block": lambda: parsed(parse_json(fields, clean)),
        "by row": lambda: by_rows(decoder),
    }
    yield in_turns("JSON, by block / row by row", ways, BLOCK)


if __name__ == "__main__":
    report_parts(
        __file__,
        {
            "folds": Part(folds, check_folds),
            "json": Part(json_paths),
        },
    )
