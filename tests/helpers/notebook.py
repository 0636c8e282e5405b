"""Reading the HTML that notebooks get."""

import html.parser

# Elements without an end.
VOID = {"br", "hr", "img", "input", "link", "meta", "wbr"}


class Reader(html.parser.HTMLParser):
    """Checks that elements nest, and gathers their text, with a bar between parts, and names."""

    def __init__(self, text):
        super().__init__()
        self.open, self.names, self.text = [], set(), ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data + "|"
