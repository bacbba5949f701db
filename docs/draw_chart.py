"""The picture of how-to/draw-charts.md, made by the page's own first block.

`python docs/draw_chart.py` draws it again, when charts have changed; a test compares them.
"""

import re
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
PAGE = DOCS / "how-to/draw-charts.md"
PICTURE = DOCS / "pictures/rooms.svg"


def draw() -> str:
    """Run the page's first block; return the picture that it saves."""
    found = re.search(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found
    with tempfile.TemporaryDirectory() as place:
        exec(found[1].replace("/data/", f"{place}/"), {})
        return (Path(place) / "drawn.svg").read_text("utf-8")


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
