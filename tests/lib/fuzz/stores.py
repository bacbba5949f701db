"""Files of a store: read as they were written, or refused by name; `repair` never makes it worse.

`tests/tseries/maintain/test_damage.py` damages bytes, and this also the structure: entries of the
log with other values, some with the right checksum, as another tool would write them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import secrets
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from tseries.builders import VALUE, batch, forget_stores
from tseries.limits import set_limits

from fuzz.engine import Chance, Target
from fuzz.mutations import damage_bytes, damage_json, damage_json_text
from pyspark_tseries import TimeSeries
from pyspark_tseries.errors import TseriesError
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.repair import repair
from pyspark_tseries.maintain.verify import describe, verify
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.read.delivery import InitialEvents
from pyspark_tseries.read.subscription import Subscription
from pyspark_tseries.storage import location
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.store.admin_commits import add_columns
from pyspark_tseries.store.checkpoints import wait_for_checkpoints
from pyspark_tseries.store.store import Store

NAMES: Final = "ab"
FILES: Final = (
    "_delta_log/*.json", "_delta_log/*.json", "_delta_log/*.json", "_delta_log/_last_checkpoint",
    "_delta_log/*.checkpoint.parquet", "_tseries/head/*.arrow", "kind=*/*.parquet",
    "_tseries/history/*",
)  # fmt: skip
_CHECKSUM: Final = re.compile(rb'"crc32":"[0-9a-f]{8}"')


def make_store(path: Path) -> Path:
    """A store with edits, a query's batches, a later column, a compaction and checkpoints.

    Its files always have the same names and sizes, so that a case can be repeated.
    """
    chance, clock = random.Random("the store"), itertools.count(1_700_000_000_000_000_000, 10**6)
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, checkpoint_interval=5, commits_per_file=4)
        patch.setattr(secrets, "token_hex", lambda n=32: f"{chance.getrandbits(8 * n):0{2 * n}x}")
        patch.setattr(secrets, "randbits", chance.getrandbits)
        patch.setattr(time, "time_ns", lambda: next(clock))
        patch.setattr(location, "_store_tag", lambda table_id: 5)
        store = Store.create(str(path), [VALUE], RetainedRange())
        for number in range(13):
            rows = [(NAMES[(number + n) % 2], number * 10 + n, number + n / 7) for n in range(2)]
            edits = [("a", 0, float(number))] if number % 5 == 4 else []
            token = ("tseries:q:hourly", number) if number % 3 else None
            store.append(batch(*rows, edits=edits, token=token))
            wait_for_checkpoints()
            if number == 3:
                add_columns(store, [pa.field("more", pa.string())])
            if number == 7:
                compact(str(path))
                store.refresh()
    forget_stores()
    return path


def answers(path: Path) -> Any:
    """All events, edits included, as a process reads them that has never seen the store."""
    forget_stores()
    series = TimeSeries.open(path, "me", auto_compact=False)
    edits = series.range_query().for_edits()
    return [str(edits.select_from(name).to_arrow().to_pylist()) for name in NAMES]


def seal(content: bytes) -> bytes:
    """An entry of the log with the right checksum."""
    zeros = _CHECKSUM.sub(b'"crc32":"00000000"', content, count=1)
    return zeros.replace(b'"crc32":"00000000"', b'"crc32":"%08x"' % zlib.crc32(zeros), 1)


def damage_entry(content: bytes, chance: Chance) -> tuple[bytes, bool]:
    """An entry with other JSON, and whether its checksum is still right."""
    lines = [json.loads(line) for line in content.splitlines()]
    place = chance.randrange(len(lines))
    line = lines[place]
    add = line.get("add") if isinstance(line, dict) else None
    if add and chance.random() < 0.4:
        add["stats"] = damage_json_text(json.loads(add["stats"]), chance)
    elif "metaData" in line and chance.random() < 0.6:
        schema = json.loads(line["metaData"]["schemaString"])
        line["metaData"]["schemaString"] = damage_json_text(schema, chance)
    else:
        lines[place] = damage_json(line, chance, chance.choice([1, 1, 3]))
    text = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in lines)
    changed = text.encode()
    is_sealed = chance.random() < 0.6
    return (seal(changed) if is_sealed else changed), is_sealed


def stored_files() -> Target:
    """One file of a store is another one."""
    root = Path(tempfile.mkdtemp())
    sound = make_store(root / "sound")
    right = answers(sound)

    def make(chance: Chance) -> tuple[str, bytes, bool, str]:
        found = sorted(sound.glob(chance.choice(FILES))) or sorted(sound.glob(FILES[0]))
        file = chance.choice(found)
        content, is_forged = file.read_bytes(), False
        if file.suffix == ".json" and chance.random() < 0.8:
            changed, is_forged = damage_entry(content, chance)
        elif file.name == "_last_checkpoint" and chance.random() < 0.7:
            changed = damage_json_text(json.loads(content), chance).encode("utf-8", "surrogatepass")
        else:
            changed = damage_bytes(content, chance)
        return str(file.relative_to(sound)), changed, is_forged, chance.choice(list(ASKED))

    def run(case: tuple[str, bytes, bool, str]) -> str:
        name, content, is_forged, asked = case
        path = root / "s"
        forget_stores()  # A checkpoint of the case before would be written into this store.
        if path.exists():
            shutil.rmtree(path)
        shutil.copytree(sound, path)
        (path / name).write_bytes(content)
        end = "right"
        try:
            assert answers(path) == right or is_forged
        except TseriesError as error:
            end = type(error).__name__
        with contextlib.suppress(TseriesError):
            forget_stores()
            ASKED[asked](str(path))
        return end

    return Target(make, run)


def _subscribe(path: str) -> None:
    subscription = Subscription(parse_location(path), InitialEvents(RetainedRange(), {}))
    start = subscription.find_start()
    subscription.plan_tasks(start, subscription.find_end(start, None, None))


def _append(path: str) -> None:
    TimeSeries.open(path, "me", auto_compact=False).append("b", {"value": 0.5})


ASKED: Final[dict[str, Callable[[str], object]]] = {
    "describe": describe,
    "verify": verify,
    "subscribe": _subscribe,
    "append": _append,
    "dry repair": lambda path: repair(path, dry_run=True),
    "repair": repair,
    "compact": compact,
}

TARGETS: Final = {"stored_files": stored_files}
