"""JSON texts, odd ones among them, and values that equal only themselves."""

from hypothesis import strategies as st


def bits(value):
    """A value that equals only itself: NaN is NaN, and -0.0 is not 0.0."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {name: bits(inner) for name, inner in value.items()}
    return [bits(inner) for inner in value] if isinstance(value, list) else value


NUMBERS = """0 -0 1 -1 127 128 1.0 1.5 1e2 1E-2 -0.0 1e40 1e400 1e-400 12345 999.99 1000 1.234
1.230 16777217 9007199254740993 9223372036854775807 9223372036854775808 123456789012345678901234
1.00000017881393432617187499 3.4028235677973366e38 0.1 01 .5 5. +1 NaN Infinity -Infinity
1357017420123 1357017420.123"""
numbers = st.sampled_from(NUMBERS.split())
strings = st.sampled_from(
    [
        '""',
        '"x"',
        '"5"',
        '"1.5"',
        '" 1"',
        '"start"',
        '"\\u00e9"',
        '"é"',
        '"\\ud83d\\ude00"',
        '"\\ud800"',
        '"\\udc00"',
        '"\\u0000"',
        '"a\\nb"',
        '"a\nb"',
        '"a\tb"',
        '"}"',
        '"{"',
        '"\\""',
        '"\\x"',
        '"2013-01-01T05:00:00Z"',
        '"2013-01-01 05:00:00.5+01:00"',
        '"2013-02-30T00:00:00Z"',
        '"2013-01-01"',
        '"2013-02-30"',
        '"1357017420123"',
        '"aGk="',
        '"NaN"',
        '"+INF"',
    ]
)
words = st.sampled_from(["null", "true", "false", "nul", "True"])
scalars = numbers | strings | words
others = st.sampled_from(["when", "edge", "extra", "I", "\\u0069", "", "\\u0000", "x", "seen"])
space = st.sampled_from(["", "", "", " ", "\n", "\t", "\r\n", "\x0b", "\xa0"])


def joined(inner, opening, closing):
    return st.lists(inner, max_size=3).map(lambda all_: opening + ",".join(all_) + closing)


def objects(of, values):
    pair = st.tuples(of.map(lambda key: f'"{key}"'), space, values).map(
        lambda kv: f"{kv[0]}:{kv[1]}{kv[2]}"
    )
    return joined(pair, "{", "}")


odd_texts = st.one_of(
    st.sampled_from([None, b"", b" ", b"{}", b"{ }", b"[]", b"[{}]", b"null", b"5", b'"{}"']),
    st.sampled_from([b"\xff", b'{"s":"\xff"}', b'{"\xff":1}', b'{"s":"\xed\xa0\x80"}', b"{]}"]),
    st.sampled_from([b"\xef\xbb\xbf{}", b'{"i":1,}', b'{"a":{}', b"/**/{}", b'{"i":1}//}', b"{"]),
    st.sampled_from([b'{"i":1}{"i":2}', b'{"i":1}\n{"i":2}', b'{"i":1}{"i":2}\0}']),
)
"""Values that are not objects, or that only look like one."""
