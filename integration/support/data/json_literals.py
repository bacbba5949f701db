"""JSON for the comparison with `from_json`: literals and documents, and where the two differ.

`IN_FIELDS` and `OF_DOCUMENTS` are the list of docs/explanation/from-json.md: the items that a pair
of literal and type falls under, and the documents. Other pairs must come out the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from pyspark_timestream.core.instants import FINAL_US, MIN_US

TYPES = (
    "byte", "short", "int", "long", "float", "double", "decimal(5,2)", "decimal(38,0)",
    "decimal(38,18)", "decimal(2,2)", "boolean", "string", "binary", "timestamp", "timestamp_ntz",
    "date", "struct<x:int,seen:timestamp>", "struct<x:array<int>>", "array<long>", "array<double>",
    "array<string>", "array<date>", "array<decimal(5,2)>", "array<array<long>>",
    "array<struct<x:int>>", "map<string,long>", "map<string,string>", "map<string,struct<x:int>>",
    "array<map<string,long>>",
)  # fmt: skip

_NUMBERS = r"""
0 -0 1 -1 127 128 200 255 256 32767 32768 2147483647 2147483648 9223372036854775807
9223372036854775808 -9223372036854775808 -9223372036854775809 1.0 1.5 -0.0 1e2 1E-2 1e40 1e400
1e-400 -1e400 999.99 1000 999.995 0.999 0.995 0.994 -1.235 -0.005 1.234 1.235 1.230 0.1 0.001
0.00099 9999999.5 10000000.5 123456.789 1e-7 1.5e-5 1e37 1e38 3.4028235677973366e38
99999999999999999999999999999999999999 -99999999999999999999999999999999999999
100000000000000000000000000000000000000 0.1000000000000000055511151231257827 16777217
9007199254740993 1.00000017881393432617187499 123456789012345678901234 12345678901234567890.5
1357017420 1357017420.5 1357017420123 01 -01 .5 5. +1 1e NaN Infinity -Infinity +Infinity INF
-INF +INF
"""
_TEXTS = r"""
null true false True nul "true" "false" "" " " "x" "5" "1.5" " 1" "1 " "NaN" "Infinity" "-Infinity"
"+Infinity" "INF" "-INF" "+INF" "nan" "1e2" "1E2" "1e-2" ".5" "5." "+5" "--5" "0x10" "1_0" "1,000"
"null" "\u00e9" "é" "\ud83d\ude00" "\ud800" "\udc00" "\u0000" "a\nb" "\x" "\/" "\b\f\r\t\\\""
"\u00E9" "\uZZZZ" 'x' "a'b" "aGk=" "aGk" "aGk==" "aGk-" "aGk_" " aGk=" "aGk= " "a"
"""
_TIMES = r"""
"2013-01-01" "2013-1-1" "2013" "2013-01" "2013-02-30" "2013-13-01" "0001-01-01" "9999-12-31"
"10000-01-01" " 2013-01-01 " "2013-01-01T05:00:00Z" "2013-01-01T05:00:00" "2013-01-01T05:00"
"2013-01-01T05" "2013-01-01T05:00Z" "2013-01-01T5:0:0Z" "2013-01-01T05:00:00.5+01:00"
"2013-01-01T05:00:00+0100" "2013-01-01T05:00:00+01" "2013-01-01T05:00:00,5Z"
"2013-01-01T05:00:00.123456Z" "2013-01-01T05:00:00.1234567Z" "2013-01-01T05:00:00.123456789Z"
"2013-01-01T24:00:00Z" "2013-01-01T05:00:60Z" "2013-01-01t05:00:00z" "2013-01-01T05:00:00.000+00:00"
"2013-01-01 05:00:00" "2013-01-01 05:00:00 Z" "2013-01-01T05:00:00UTC" "1357017420123"
"1357017420" "-5" "T05:00:00" "05:00:00" "1969-12-31T23:59:59.999999Z" "9999-12-31T23:59:59Z"
"9999-12-31T23:59:59.999999Z" "2013-01-01T05:00:00+14:30" "20130101T050000Z" "20130101T0500"
"2013-01-01T05:00.5" "20130101" "2013-01-01T05:00:00-0530" "2013-01-01T05:00:00 UTC"
"2013-01-01T05:00:00GMT" "2013-01-01T05:00:00 GMT+1" "2013-01-01T05:00:00 Europe/Berlin"
"2013-01-01 05:00:00 CET" "2013-01-01T05:00:00 PST" "2013-01-01T05:00:00EST" "2013-01-01T05:00:00+1"
"2013-01-01T05:00:00+1:00" "2013-01-01T05:00:00+01:0" "2013-01-01T05:00:00 UTC+02:00"
"2013-01-01T05:00:00+01:00[Europe/Berlin]" "2013-01-01T05:00:00Z[UTC]"
"2013-01-01T05:00:00+01:00:30" "2013-01-01T05:00:00 +01:00" "2013-01-01T05:00:00 Mars/Base"
"2013-01-01T05:00:00." "+2013-01-01" "0000-12-31T23:00:00Z" "2013-01-01T05:00:00+18:00"
"2013-01-01T05:00:00-18:01" "2013-01-01T05:00:00+23:59" "2013-01-01T05:00:00+24:00"
"""
_NESTED = r"""
{} [] [1] [1,2] [null] [1,"x"] [1,"x",5] [1.5] [1.50,1e10] ["x"] [true] ["2013-01-01"] [[1]]
[[1],["x"]] [[1],null] {"x":1} {"x":"y"} {"x":null} {"seen":"never"} {"x":1,"seen":"2013-01-01"}
{"x":1,"seen":"never"} {"x":1,"x":2} {"y":1} {"x":{"x":1}} {"x":["y",1]} {"x":[1,2]} {"":1}
{"a":{"x":"y"},"b":{"x":1}} {"a":"x","b":3} {"a":[1]} [{"x":1}] [{"x":"y"},{"x":2}] [{"x":1},5]
[{"a":1},{"b":"x"}] {"\u0078":1} {"X":1}
"""


def _split(lines: str) -> list[str]:
    """The literals of a list: separated by blanks, except inside of quotes."""
    return re.findall(r'(?:"(?:[^"\\]|\\.)*"|[^\s"])+', lines)


_ARABIC_ONE = '"\N{ARABIC-INDIC DIGIT ONE}"'
_LEAST_DOUBLE = "5e-324"

LITERALS = (
    *_split(_NUMBERS), *_split(_TEXTS), *_split(_TIMES), *_split(_NESTED),
    _ARABIC_ONE, _LEAST_DOUBLE,
    '{ "x" : 1 }', "[1, 2]", '{"x": 1.50, "z": [1 , 2]}', '"a\tb"', '"a\nb"', '"\x7f"', "1 ",
)  # fmt: skip

_TIMES_ELSEWHERE = {"timestamp", "timestamp_ntz", "date"}
_SHORT = ["2013-1-1", "2013", "2013-01", "2013-01-01T05", "2013-01-01T5:0:0Z", "T05:00:00",
          "05:00:00", "2013-01-01T05:00:00.", "+2013-01-01"]  # fmt: skip
_ZONES = [
    f"2013-01-01T05:00:00{zone}"
    for zone in (
        "UTC", " UTC", "GMT", " GMT+1", " Europe/Berlin", " PST", "EST", "+1", "+1:00", "+01:0",
        " UTC+02:00", "+01:00:30",
    )
] + ["2013-01-01 05:00:00 CET"]  # fmt: skip
_OURS = ["2013-01-01T05:00Z", "2013-01-01T05:00:00,5Z", "2013-01-01t05:00:00z", "20130101T050000Z",
         "20130101T0500"]  # fmt: skip
_FAR = ["2013-01-01T05:00:00-18:01", "2013-01-01T05:00:00+23:59"]
_DAYS = ["5", "+5", "-5", "1357017420", "20130101"]
_BEYOND = ["0000-12-31T23:00:00Z", "10000-01-01", "9999-12-31T23:59:59.999999Z"]


def _quoted(texts: list[str]) -> set[str]:
    return {f'"{text}"' for text in texts}


def _is_no_json(literal: str, kind: str) -> bool:
    return literal in {"+Infinity", "+INF", "-INF", "'x'"}


def _is_high_byte(literal: str, kind: str) -> bool:
    return kind == "byte" and literal in {"128", "200", "255"}


def _is_minus_zero(literal: str, kind: str) -> bool:
    return kind in {"float", "double"} and literal == "-0"


def _has_other_digits(literal: str, kind: str) -> bool:
    kinds = {"decimal(5,2)", "decimal(38,0)", "decimal(38,18)", "date"}
    return literal == _ARABIC_ONE and kind in kinds


def _is_printed_otherwise(literal: str, kind: str) -> bool:
    return kind == "string" and literal == _LEAST_DOUBLE


def _is_surrogate(literal: str, kind: str) -> bool:
    return kind == "string" and literal in _quoted([r"\ud800", r"\udc00"])


def _has_a_name_twice(literal: str, kind: str) -> bool:
    return literal == '{"x":1,"x":2}' and kind in {
        "string", "map<string,long>", "map<string,string>"
    }  # fmt: skip


def _is_no_base64(literal: str, kind: str) -> bool:
    """Broken text, or base64 with one character left over; both read other bad base64 alike."""
    if kind != "binary" or not literal.startswith('"'):
        return False
    try:
        text = json.loads(literal).lstrip()
    except ValueError:
        return True
    return re.fullmatch("([A-Za-z0-9+/]{4})*[A-Za-z0-9+/]", text) is not None


def _is_short_time(literal: str, kind: str) -> bool:
    short = _quoted(_SHORT)
    if kind == "date":
        return literal in _quoted(["2013-1-1", "2013", "2013-01", "+2013-01-01", *_DAYS])
    if kind == "timestamp_ntz":
        short -= _quoted(["2013-01-01T5:0:0Z", "T05:00:00", "05:00:00"])
    return kind in _TIMES_ELSEWHERE and literal in short


def _has_named_zone(literal: str, kind: str) -> bool:
    return kind == "timestamp" and literal in _quoted(_ZONES)


def _is_our_time(literal: str, kind: str) -> bool:
    has_zone = literal.lower().endswith('z"')
    kinds = {"timestamp"} if has_zone else {"timestamp", "timestamp_ntz"}
    return kind in kinds and literal in _quoted(_OURS)


def _has_far_zone(literal: str, kind: str) -> bool:
    return kind == "timestamp" and literal in _quoted(_FAR)


def _is_out_of_range(literal: str, kind: str) -> bool:
    if kind == "timestamp" and re.fullmatch("-?[0-9]+", literal.strip()):
        seconds = int(literal)
        return -(2**63) <= seconds < 2**63 and not MIN_US <= seconds * 1_000_000 <= FINAL_US
    if kind == "timestamp":
        return literal in _quoted(_BEYOND)
    beyond = _BEYOND[:2] if kind == "date" else _BEYOND[1:2]
    return kind in _TIMES_ELSEWHERE and literal in _quoted(beyond)


IN_FIELDS: dict[str, Callable[[str, str], bool]] = {
    "numbers such as `+INF` and `+Infinity`, text in single quotes": _is_no_json,
    "`128` to `255` as a byte": _is_high_byte,
    "`-0` as a float or double": _is_minus_zero,
    "digits of other scripts, such as `\N{ARABIC-INDIC DIGIT ONE}`, in a text, as a decimal or "
    "date": _has_other_digits,
    "a double that Java prints with other than the fewest digits, such as `5e-324`, and `1e23` in "
    "Java 17, as a string": _is_printed_otherwise,
    "half a surrogate pair such as `\\ud800`, as a string": _is_surrogate,
    "a name twice in an object, read as a string or map": _has_a_name_twice,
    "base64 with one character left over, or broken text, as binary": _is_no_base64,
    "short forms such as `2013`, `2013-1-1`, `05:00:00`, a dot without a fraction, a sign before "
    "the year, as a time; `5` as a day": _is_short_time,
    "a zone's name such as `UTC`, `CET`, `GMT+1` or `Europe/Berlin`, an offset such as `+1`, "
    "`+1:00` or `+01:00:30`, as a timestamp": _has_named_zone,
    "`T05:00Z`, a comma before the fraction, a small `t` and `z`, basic form such as "
    "`20130101T050000Z`, as a timestamp": _is_our_time,
    "an offset beyond 18 hours, up to `+23:59`, as a timestamp": _has_far_zone,
    "times before year 1 or after 9999-12-31T23:59:59Z": _is_out_of_range,
}
"""Item of the page -> whether it is about a literal that is read as a type."""

OF_DOCUMENTS: dict[str, tuple[bytes, ...]] = {
    "an empty value, or only blanks": (b"", b" ", b"\r\n"),
    # No test says which fields may be kept.
    "JSON that breaks off or is broken inside a nested value": (),
    "anything after the object": (
        b'{"w":7}x', b'{"w":7}}', b'{"w":7},', b'{"w":7}{"w":8}', b'{"w":7}\n{"w":8}',
        b'{"w":7} 5', b'{"w":7}\0', b'{"w":7}//x',
    ),
    "bytes that are not UTF-8": (
        b'{"v":"\xff","w":7}', b'{"v":"\xed\xa0\x80","w":7}', b'{"w":7,"\xff":1}',
    ),
    "a name twice, one of the two values not of its type": (
        b'{"w":7,"w":"x"}', b'{"w":"x","w":7}',
    ),
    "numbers of more than 1,000 digits, names of more than 50,000 letters": (
        b'{"w":7,"z":' + b"1" * 1_001 + b"}", b'{"w":7,"' + b"k" * 50_001 + b'":1}',
    ),
}  # fmt: skip
"""Item of the page -> documents that it is about."""

PLAIN_DOCUMENTS = (
    None, b"null", b" null ", b"5", b'"x"', b"true", b"[]", b"[{}]", b'[{"w":1}]', b"{}", b" { } ",
    b'\xef\xbb\xbf{"w":7}', b' {"w":7}\n', b"{", b'{"w":7', b'{"w":7,', b'{"w":7,}', b"{,}",
    b'{"w"}', b'{"w":}', b'{"w" 7}', b'{"w":7 "v":"a"}', b'{"w":7;"v":"a"}', b"{w:7}",
    b'/**/{"w":7}', b'{"w":7/*x*/}', b'#x\n{"w":7}', b'{"v":"a', b'{"w":7]', b'\x0b{"w":7}',
    b'\xa0{"w":7}', b'\xc2\xa0{"w":7}', b'\0{"w":7}', b'{"w":7,"w":8}', b'{"w":7,"w":null}',
    b'{"W":7}', b'{"\\u0077":7}', b'{"":1,"w":7}', b'{"w":7,"z":1e400}', b'{"w":7,"z":01}',
    b'{"w":7,"z":NaN}', b'{"w":7,"z":"\\x"}', b'{"w":7,"z":nul}', b'{"w":7,"z":"\\ud800"}',
    b'{"w":7,"z":"a\tb"}', b'{"w":7,"z":{"z":{"z":[1,{"w":9}]}}}', b'{"v":"\xc3\xa9","w":7}',
    *(b'{"w":7,"z":' + b"[" * deep + b"]" * deep + b"}" for deep in (10, 200, 400, 1_100, 5_000)),
    *(b'{"w":7,"z":' + b"1" * digits + b"}" for digits in (300, 1_000, 5_000)),
    b'{"w":7,"' + b"k" * 49_999 + b'":1}', b'{"v":"' + b"a" * 5_000 + b'","w":7}',
    '{"w":7}'.encode("utf-16"), '{"w":7}'.encode("utf-16-le"),
)  # fmt: skip
"""Documents, odd ones among them, that both read alike."""
