"""Unpacks what the version before the move left."""

import json
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def unpacked(query: str, into: Path) -> Path:
    """The folder of one query: `checkpoint`, and `store` or `rows`, and `records.jsonl`."""
    with tarfile.open(HERE / f"{query}.tar.gz") as archive:
        # The newer patch releases of Python 3.11 and 3.12 alone have filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(into)
    return into / query


def left_in_kafka(topic: str) -> dict[str, Any]:
    """The id of a topic, and the name and the metadata of the query's consumer group."""
    topics = json.loads((HERE / "kafka.json").read_text())
    return next(each for each in topics if each["topic"] == topic)


def last_offset(place: Path) -> dict[str, Any]:
    """The newest offset of a checkpoint whose batch had records or ticks."""
    files = sorted(
        (place / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name)
    )
    offsets = [json.loads(file.read_text().splitlines()[-1]) for file in files]
    return [each for each in offsets if not each.get("closing")][-1]
