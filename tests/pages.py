"""A page taken apart, its elements and its words; and a page that is open in a browser."""

from html.parser import HTMLParser
from pathlib import Path


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


class Visit:
    """A page that is open, and what it asked for and complained of meanwhile."""

    def __init__(self, browser, path):
        self.tab = browser.new_page()
        self.requests, self.complaints, self.failures = [], [], {}
        self.tab.on("requestfailed", lambda request: self.failures.update({request.url: request.failure}))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.complaints.append(dialog.message) or dialog.dismiss())
        self.address = Path(path).as_uri()
        self.tab.goto(self.address)

    @property
    def outside(self):
        """What was asked for besides the page itself and what is inside it."""
        return [url for url in self.requests if url != self.address and not url.startswith("data:")]

    def pictures(self):
        """What the four pictures show, point by point."""
        return self.tab.evaluate(
            """() => Promise.all([...document.querySelectorAll("#viewer img")].map(async (picture) => {
                await picture.decode();
                const canvas = document.createElement("canvas");
                [canvas.width, canvas.height] = [picture.naturalWidth, picture.naturalHeight];
                const context = canvas.getContext("2d");
                context.drawImage(picture, 0, 0);
                return [...context.getImageData(0, 0, canvas.width, canvas.height).data];
            }))"""
        )

    def slide_to(self, frame, mode=2):
        self.slider(mode).fill(str(frame))

    def slider(self, mode=2):
        return self.tab.locator(".slide input").nth(mode)

    def tip(self):
        """What stands beside the pointer."""
        self.tab.locator("#tip").wait_for(state="visible")
        return self.tab.locator("#tip").text_content()

    def point_at(self, picture, row, column, shape):
        """Move the pointer to the middle of a cell."""
        picture.scroll_into_view_if_needed()
        box = picture.bounding_box()
        x = box["x"] + (column + 0.5) / shape[1] * box["width"]
        self.tab.mouse.move(x, box["y"] + (row + 0.5) / shape[0] * box["height"])


def looked_at(visit, path):
    """A page that was opened in a browser, light, dark, narrow and on paper: whole, quiet, and never too wide."""
    seen, backgrounds = visit(path), {}
    looks = {"light": (1280, "screen"), "dark": (1280, "screen"), "narrow": (380, "screen"), "paper": (690, "print")}
    for look, (width, media) in looks.items():
        seen.tab.set_viewport_size({"width": width, "height": 900})
        seen.tab.emulate_media(media=media, color_scheme="dark" if look == "dark" else "light")
        assert seen.tab.evaluate("document.documentElement.scrollWidth") <= width, look
        backgrounds[look] = seen.tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert len(seen.tab.screenshot()) > 5000, look
    assert backgrounds["dark"] != backgrounds["light"]
    assert seen.tab.pdf(format="A4", prefer_css_page_size=True).startswith(b"%PDF")
    assert (seen.complaints, seen.outside, seen.failures) == ([], [], {})
    return seen
