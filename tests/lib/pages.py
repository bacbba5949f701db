"""Pages that a command serves: the parts of their HTML, hostile names, and requests."""

import http.client
from html.parser import HTMLParser

from hypothesis import strategies as st

VOID = ("br", "img", "input", "link", "meta", "wbr")
SCRIPTED = {"script", "style", "iframe", "img", "object", "embed", "form", "a", "link", "base"}
"""Tags that load or run something."""

NAMES = st.one_of(
    st.sampled_from(
        [
            "<script>alert(1)</script>",
            "a' onload='x",
            'b" style="x',
            "&lt;i&gt;",
            "</svg><b>",
            "\x1b[2J",
        ]
    ),
    st.text(
        st.characters(exclude_characters="\x00", exclude_categories=("Cs",)),
        min_size=1,
        max_size=20,
    ),
)


class Tags(HTMLParser):
    """Collects tags and attributes; an unbalanced tag is an error."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        # An element of one tag, as <br/>, has no end of its own.
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parse(html):
    """The tags of balanced HTML."""
    tags = Tags()
    tags.feed(html)
    tags.close()
    assert not tags.open
    return tags


def parse_html(html):
    """The tags of HTML made from names that others chose: they load nothing and run nothing."""
    tags = parse(html)
    assert SCRIPTED.isdisjoint(tags.tags), tags.tags
    odd = [name for name in tags.attributes if name.startswith("on") or name in ("href", "src")]
    assert not odd, odd
    return tags


def request(server, path="/", host=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    headers = {} if host is None else {"Host": host}
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    answer.text = answer.read().decode()
    return answer
