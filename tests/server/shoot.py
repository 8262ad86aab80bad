"""Pictures of the page for the docs, from a server that runs: python -m tests.server.shoot http://127.0.0.1:8000 docs"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.server import browser

TEXT = "The quick brown fox jumps over the lazy dog."


def shoot(url: str, folder: Path) -> None:
    """`playground.png` and `playground-dark.png`, taken while the page plays."""
    binary = browser.find()
    if binary is None:
        sys.exit("needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile, browser.browser(binary, Path(profile)) as page:
        for scheme, name in (("light", "playground"), ("dark", "playground-dark")):
            page.size(1180, 1180)
            page.scheme(scheme)
            page.open(url)
            page.wait("document.querySelector('#ready').textContent === 'ready'")
            page.run("document.querySelector('#text').value = ''; document.querySelector('#text').focus()")
            page.type(TEXT)
            page.run("document.querySelector('#more').open = true; document.querySelector('#seed').value = '7'")
            page.press("Enter", 13, ctrl=True)
            page.wait("document.body.dataset.state === 'done'", 120)
            if page.run("!document.querySelector('#replay').disabled"):
                page.run("document.querySelector('#replay').click()")
            page.wait("Number(document.body.dataset.heard) > 0.6")
            page.screenshot(folder / f"{name}.png")


if __name__ == "__main__":
    shoot(sys.argv[1], Path(sys.argv[2]))
