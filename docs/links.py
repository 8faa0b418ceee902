"""Finds broken links of a built site:  python docs/links.py build/docs

Checks only links inside the site: pages, anchors, pictures, styles and scripts.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit


class Page(HTMLParser):
    """The links of a page, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.anchors = set[str](), {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects links and anchors."""
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.links.add(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(site: Path) -> list[str]:
    """Returns a line per broken link. Raises ValueError for a folder without pages."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    if not pages:
        raise ValueError(f"no page in {site}")
    return sorted(
        f"{path.relative_to(site)}: {link}"
        for path, page in pages.items()
        for link in page.links
        if not _is_reachable(path, link, pages)
    )


def _is_reachable(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    if urlsplit(link).scheme:
        return True
    address, anchor = urldefrag(link)
    target = (path.parent / unquote(urlsplit(address).path)).resolve() if address else path
    if target in pages:
        return unquote(anchor) in pages[target].anchors
    return target.is_file()


if __name__ == "__main__":
    lines = broken_links(Path(sys.argv[1]).resolve())
    print("\n".join(lines) or "no broken links")
    sys.exit(bool(lines))
