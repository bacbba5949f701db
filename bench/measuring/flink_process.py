"""Flink's mini cluster; `flink.py` runs this in Flink's own environment.

Each line of input is a list of SQL statements; the last one is a job. The answer is a line {"took":
seconds}, from the job's submission to its end.
"""

import json
import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment


def main():
    """Answer requests until there are no more."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = tables.get_config()
    settings.set("pipeline.jars", sys.argv[1])
    settings.set("parallelism.default", "2")
    settings.set("table.local-time-zone", "UTC")
    for line in sys.stdin:
        *prepared, job = json.loads(line)
        for statement in prepared:
            tables.execute_sql(statement)
        began = time.perf_counter()
        tables.execute_sql(job).wait()
        print(json.dumps({"took": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main()
