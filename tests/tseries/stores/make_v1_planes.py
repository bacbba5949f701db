"""Made the store beside it, `v1_planes`, once, when statistics were written as escaped JSON.

deltalake 1.6 reads names with characters of even planes wrongly from it. Run as
`python tests/tseries/stores/make_v1_planes.py` with a version of before 2026-11-22.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "lib"))

from tseries.builders import batch, new_store

NAMES = ("a", "野家", "\U0001f600", "\U00020bb7野家", "\U000e0001", "\U0010ffff")
"""Of planes 0, 0, 1, 2, 14 and 16; in this order."""


def main() -> None:
    path = Path(__file__).parent / "v1_planes"
    store = new_store(path)
    for n, name in enumerate(NAMES):
        store.append(batch((name, n), (name, n)), clock=lambda n=n: 10 * n)
    store.append(batch(*((name, 10) for name in NAMES[1:-1])), clock=lambda: 100)
    store.append(batch(edits=[("a", 0)]), clock=lambda: 200)
    for lock in path.glob("_tseries/*.lock"):
        lock.unlink()
    created = path / "_delta_log" / f"{0:020d}.json"
    created.write_text(created.read_text().replace(str(path), "/v1_planes"))


if __name__ == "__main__":
    main()
