"""`python -m fuzz GROUP SEED SECONDS FILE`: the process that a test of the fuzzer starts."""

import json
import logging
import sys
from pathlib import Path

from fuzz.engine import is_asked_for, limit_memory, run_cases
from fuzz.targets import GROUPS

# The log does not matter here, and slows the cases.
logging.disable(logging.CRITICAL)
group, seed, seconds, at = sys.argv[1:]
limit_memory()
for name, target in GROUPS[group].items():
    if is_asked_for(name):
        ends = run_cases(name, target(), seed, float(seconds), Path(at))
        print(name, json.dumps(ends, sort_keys=True))
