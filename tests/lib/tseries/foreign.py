"""The SQL of docs/how-to/other-engines.md, made for any retained range."""

import re
from pathlib import Path

from pyspark_tseries.model.ranges import parse_range

PAGE = (Path(__file__).parents[3] / "docs/how-to/other-engines.md").read_text()
COLUMNS = ("series", "sequence", "value", "original_sequence")


def current_values(retained: str) -> str:
    """The SQL of the page, with its two lines of the retained range from `retained`."""
    (sql,) = re.findall(r'current_values = """(.*?)"""', PAGE, flags=re.DOTALL)
    bounds = parse_range(retained)
    last, limit = "INTERVAL 7 DAY", "-- AND place > last - 10"
    assert sql.count(last) == sql.count(limit) == 1
    if bounds.last_us is None:
        sql = sql.replace("AND since", "-- AND since")
    else:
        sql = sql.replace(last, f"INTERVAL {bounds.last_us // 1_000_000} SECOND")
    if bounds.limit is not None:
        sql = sql.replace(limit, f"AND place > last - {bounds.limit}")
    return sql
