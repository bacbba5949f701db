"""Made the store and the position beside it, once; a later version must read them as they are.

Run as `python tests/tseries/formats/make_v1.py` with tests/lib on the path, in an empty directory.
Until the first tag it may be made again where the format changes.
"""

import json
import shutil
from pathlib import Path

from tseries.builders import batch, new_store

from pyspark_tseries.model.commits import CommitId
from pyspark_tseries.read.delivery import Position

HOUR_US = 3_600_000_000
HERE = Path(__file__).parent
POSITION = Position(
    store="8c0f1a52-0000-0000-0000-000000000000",
    began=3,
    upto="a",
    initial=False,
    commit=5,
    after=("b", 2),
    seen=9,
    missed=1,
    retained="limit 3 last 1H",
    retained_since=2,
    due=None,
    cti=7,
    commit_id=CommitId(5, 0x3AD61AF69EF9AD8B),
)


def main() -> None:
    path = Path("/tmp/v1")  # It is noted in the log, for people only.
    store = new_store(path, {"limit": 3, "last_us": HOUR_US})
    store.append(batch(("a", 0, 0.5), ("a", 1, 1.5), ("b", 0, 2.5)), clock=lambda: 10)
    rows = batch(("a", 2, None), ("c", None, 3.5), authors=["ann", None], token=("q", 0))
    store.append(rows, clock=lambda: 20)
    store.append(batch(("a", 1, 4.5), ("b", 2 * HOUR_US, 5.5), policy="adjust"), clock=lambda: 15)
    store.append(batch(("a", 1, 6.5), ("b", 2 * HOUR_US, 7.5), policy="drop"), clock=lambda: 30)
    shutil.copytree(path, HERE / "v1", ignore=shutil.ignore_patterns("*.lock", "clock", "staging"))
    shutil.rmtree(path)
    (HERE / "position-v1.json").write_text(json.dumps(POSITION.to_json(), indent=1) + "\n")


if __name__ == "__main__":
    main()
