"""A live query in a process of its own, so that a test can kill it: see `test_stream_cti.py`.

Arguments: the broker, the topic, where rows and checkpoint go, and the options as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kafka_query import Stream
from spark_session import local_spark


def main() -> None:
    """Run until killed."""
    bootstrap, topic, place, options = sys.argv[1:]
    broker: Any = SimpleNamespace(bootstrap=bootstrap)
    made = Stream(local_spark("cti"), broker, topic, Path(place), json.loads(options))
    made.start(once=False).awaitTermination()


if __name__ == "__main__":
    main()
