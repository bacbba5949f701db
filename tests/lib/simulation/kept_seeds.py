"""Seeds that have found something, and the longest run so far; numbers for the documents."""

KEPT: dict[int, str] = {
    25: "one slow answer counted as a partition that was missing for five seconds",
    990143406683: "a store whose first creator had died was gone after a power loss",
    918: "a clock that was lost with its topic lay below a CTI that a task had shown",
    55: "the record of a commit that was put back outlived it where one write failed",
    400479: "a store that was put back went unnoticed after one write to the checkpoint failed",
    3801383060091: "two drivers with one process id wrote the record of a checkpoint in one file",
    26: "a first batch died of a bare KeyError while the leader of a partition changed",
    2161095470108: "the oracle took a clock that was lost for one that an import had raised",
    2986187172063: "the simulation let maintenance fail where a clock is set back by an hour",
}
"""Seed -> what it has found."""

LONG_RUN = {
    "date": "2026-11-29",
    "seeds": 432,
    "steps": 511_332,
    "batches": 10_150,
    "faults": 33_052,
    "hours": 45.0,
}
"""The longest run of `make simulate`; the hours are simulated ones."""
