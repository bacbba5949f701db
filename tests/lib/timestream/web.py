"""HTML as a browser reads it: its tags, its attributes, its texts, and that it is balanced."""

from html.parser import HTMLParser

VOID = ("br", "img", "link", "meta", "wbr")
SCRIPTED = {"script", "style", "iframe", "img", "object", "embed", "form", "a", "link", "base"}
"""Tags that load or run something."""


class Tags(HTMLParser):
    """Collects tags and attributes; what it cannot balance is an error."""

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
    """The tags of HTML that was made of names of others: they load nothing and run nothing."""
    tags = parse(html)
    assert SCRIPTED.isdisjoint(tags.tags), tags.tags
    odd = [name for name in tags.attributes if name.startswith("on") or name in ("href", "src")]
    assert not odd, odd
    return tags
