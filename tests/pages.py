"""A page taken apart: its elements and its words."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Elements and text of a page."""

    def __init__(self, markup):
        super().__init__()
        self.elements, self.words = [], []
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    handle_startendtag = handle_starttag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def count(self, tag):
        return sum(name == tag for name, _ in self.elements)
