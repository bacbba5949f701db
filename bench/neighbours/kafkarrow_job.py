"""The process of kafkarrow: reads a topic to its end for each line that asks for it.

It runs in kafkarrow's own environment, which has neither this project nor confluent-kafka. A line
is JSON: `settings` of librdkafka, `topic`, `records`, `contents`; an answer has the tally's `sums`,
and the seconds `whole_s` and, of a core, `core_s`. kafkarrow gives records in the order of time
over all partitions, which the job does not need. These sizes of batches and timeouts were the
fastest of those tried; with its own default of 10,000 rows it returns ever smaller batches here,
and takes several times as long.
"""

import json
import sys
import time

from kafkarrow import ConsumerManager, SourceTopic
from tally import Tally

PATIENCE_S = 30
POLL_MS = 10
BATCH = 100_000


def read(settings, topic, records, contents):
    """The tally of all records."""
    tally = Tally(contents)
    texts = {
        name: str(each).lower() if isinstance(each, bool) else str(each)
        for name, each in settings.items()
    }
    manager = ConsumerManager(
        config=texts, topics=[SourceTopic.from_earliest(topic)], batch_size=BATCH
    )
    since = time.monotonic()
    while tally.sums["records"] < records:
        batch = manager.poll(timeout_ms=POLL_MS)
        if batch.num_rows:
            tally.add(*(batch[name] for name in ("offset", "timestamp", "key", "value")))
            since = time.monotonic()
        elif time.monotonic() - since > PATIENCE_S:
            raise SystemExit(f"kafkarrow: {tally.sums['records']} of {records} records came")
    return tally.sums


def main():
    """Answer requests until there are no more."""
    for line in sys.stdin:
        began, spent = time.perf_counter(), time.process_time()
        sums = read(**json.loads(line))
        whole_s, core_s = time.perf_counter() - began, time.process_time() - spent
        print(json.dumps({"sums": sums, "whole_s": whole_s, "core_s": core_s}), flush=True)


if __name__ == "__main__":
    main()
