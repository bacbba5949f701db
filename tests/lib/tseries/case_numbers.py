"""The numbers of Diffusion's conformance list, and the cases that our options cannot ask."""

_LIST = {
    "W": (*range(1, 11), *range(12, 18)),
    "Q": (
        1,
        2,
        *range(4, 9),
        *range(10, 14),
        15,
        17,
        18,
        20,
        22,
        23,
        24,
        27,
        29,
        30,
        *range(32, 38),
    ),
    "E": (1, 2, 3, 5, 7, *range(11, 17)),
    "R": (*range(1, 5), *range(6, 9), *range(11, 22)),
    "B": (*range(1, 5), *range(6, 14)),
}
NUMBERS = [f"{kind}{number}" for kind, numbers in _LIST.items() for number in numbers]
"""In the order of the list; where its vendor is silent (Q8, Q32, R16, R18, B6) we chose."""

NO_COUNTERPART = {
    "B12": "the vendor contradicts itself about a switch that no store has",
}

NO_OPTIONS = {
    "W15": "a second way to append, in one language; Spark has one",
    "Q35": "a result's own count, which rows do not carry",
    "E11": "a rule of the builder",
    "E12": "a rule of the builder",
    "E13": "a rule of the builder",
    "E14": "a rule of the builder",
    "E15": "a rule of the builder",
    "E16": "merging results",
    "B8": "a second subscriber of a session; each of Spark's has its own query",
}
"""Cases of the Python client that Spark's options cannot ask for, and why."""
