"""Made the store beside it, `v1`, once; a later version must read it as it is.

Run as `python tests/tseries/stores/make_v1.py` with tests/lib on the path, into an empty directory.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "lib"))

from tseries.builders import batch, new_store

HOUR_US = 3_600_000_000


def main() -> None:
    path = Path(__file__).parent / "v1"
    store = new_store(path, {"limit": 3, "last_us": HOUR_US})
    store.append(batch(("a", 0, 0.5), ("a", 1, 1.5), ("b", 0, 2.5)), clock=lambda: 10)
    rows = batch(("a", 2, None), ("c", None, 3.5), authors=["ann", None], token=("q", 0))
    store.append(rows, clock=lambda: 20)
    store.append(batch(("a", 1, 4.5), ("b", 2 * HOUR_US, 5.5), policy="adjust"), clock=lambda: 15)
    store.append(batch(("a", 1, 6.5), ("b", 2 * HOUR_US, 7.5), policy="drop"), clock=lambda: 30)
    for lock in path.glob("_tseries/*.lock"):
        lock.unlink()
    # Delta notes where a table was created, for people only; the place is of no interest here.
    created = path / "_delta_log" / f"{0:020d}.json"
    created.write_text(created.read_text().replace(str(path), "/v1"))


if __name__ == "__main__":
    main()
