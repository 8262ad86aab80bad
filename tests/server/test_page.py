"""The page in a real browser: it is opened, typed into by keyboard, and what it plays is counted by its audio clock."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
from tests.server import browser
from tests.server.fake import FakeEngine
from tests.server.test_voices import CLIP

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.conftest import Running, Start

BINARY = browser.find()
pytestmark = pytest.mark.skipif(BINARY is None, reason="needs Chromium: apt-get install chromium")
KEY = "a-key-of-sixteen"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    assert BINARY is not None
    with browser.browser(BINARY, tmp_path_factory.mktemp("profile")) as page:
        page.size(1180, 900)
        yield page


def speak(page: browser.Page, running: Running, text: str) -> None:
    """By keyboard alone."""
    page.open(running.url)
    page.wait("document.querySelector('#ready').textContent === 'ready'")
    page.run("document.querySelector('#text').focus(); document.querySelector('#text').select()")
    page.type(text)
    page.press("Enter", 13, ctrl=True)


def test_it_plays_what_is_typed(page: browser.Page, start: Start) -> None:
    running = start(FakeEngine(step=0.05))
    speak(page, running, "one two three four five six seven eight")
    page.wait("document.body.dataset.state === 'speaking' && Number(document.body.dataset.heard) > 0")
    page.wait("document.body.dataset.state === 'done'")
    page.wait("Number(document.body.dataset.heard) > 1.27")
    assert running.engine.requests[-1].text == "one two three four five six seven eight"
    assert page.run("document.querySelector('#length').textContent") == "1.28 s"
    assert page.run("document.querySelector('#ttfa').textContent").endswith(" ms")
    assert page.run("document.querySelector('#used-seed').textContent").isdigit()
    assert page.run("document.querySelector('#cached').textContent") == "3 of 7"
    assert "open requests" in page.run("document.querySelector('#ledger').textContent")
    assert not page.problems


def test_escape_stops_it(page: browser.Page, start: Start) -> None:
    running = start(FakeEngine(step=0.05))
    speak(page, running, "word " * 300)
    page.wait("Number(document.body.dataset.heard) > 0.2")
    page.press("Escape", 27)
    page.wait("document.querySelector('#message').textContent === 'Stopped.'")
    for _ in range(40):
        if not running.engine.open:
            return
        page.run("new Promise((done) => setTimeout(done, 50))")
    pytest.fail("the stream goes on")


def test_a_cut_stream_says_what_failed(page: browser.Page, start: Start) -> None:
    speak(page, start(FakeEngine(step=0.02, fail_at=2)), "one two three four five")
    page.wait("document.body.dataset.state === 'error'")
    assert page.run("document.querySelector('#message').textContent") == "the step failed"


def test_a_refusal_says_why(page: browser.Page, start: Start) -> None:
    speak(page, start(FakeEngine(max_open=0)), "hello")
    page.wait("document.body.dataset.state === 'error'")
    assert "max_waiting" in page.run("document.querySelector('#message').textContent")


def test_a_recording_becomes_a_voice(page: browser.Page, start: Start) -> None:
    running = start(FakeEngine())
    page.open(running.url)
    page.wait("document.querySelector('#ready').textContent === 'ready'")
    page.run("document.querySelector('#clone').open = true; document.querySelector('#record').click()")
    page.wait("document.querySelector('#record').ariaPressed === 'true'")
    page.run("new Promise((done) => setTimeout(done, 400))")
    page.run("document.querySelector('#record').click()")
    page.wait("document.querySelector('#clip-name').textContent === 'recorded just now'")
    page.run("document.querySelector('#name').value = 'ada'; document.querySelector('#save').click()")
    page.wait("document.querySelector('#voice').value === 'ada'")
    assert running.state.voices.load("", "ada").clip
    page.run("document.querySelector('#delete').click()")
    page.wait("document.querySelector('#voice').value === 'default' && document.querySelector('#voice').options.length === 1")


def test_a_chosen_clip_is_spoken_with(page: browser.Page, start: Start) -> None:
    running = start(FakeEngine())
    page.open(running.url)
    page.wait("document.querySelector('#ready').textContent === 'ready'")
    clip = base64.b64encode(CLIP).decode()
    page.run(f"""(() => {{
        const files = new DataTransfer(), file = document.querySelector('#file');
        files.items.add(new File([Uint8Array.from(atob('{clip}'), (c) => c.charCodeAt(0))], 'me.wav'));
        file.files = files.files;
        file.dispatchEvent(new Event('change'));
    }})()""")
    page.wait("document.querySelector('#clip-name').textContent === 'me.wav'")
    page.run("document.querySelector('#speak').click()")
    page.wait("document.body.dataset.state === 'done'")
    assert running.engine.requests[-1].reference == CLIP


def test_a_key_is_asked_for_and_used(page: browser.Page, start: Start) -> None:
    running = start(keys=f"acme:{KEY}")
    page.open(running.url)
    page.wait("!document.querySelector('#key-form').hidden")
    page.run("document.querySelector('#key').focus()")
    page.type(KEY)
    page.press("Enter", 13)
    page.run("document.querySelector('#key-form button').click()")
    page.wait("document.querySelector('#key-form').hidden && document.querySelector('#model').textContent.includes('fake-voice')")
    page.run("document.querySelector('#speak').click()")
    page.wait("document.body.dataset.state === 'done'")
    assert running.engine.requests[-1].tenant == "acme"


@pytest.mark.parametrize("width", [1180, 400])
def test_every_control_has_a_name_and_fits(page: browser.Page, start: Start, width: int, tmp_path: Path) -> None:
    page.size(width, 900)
    page.open(start().url)
    page.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    nameless = page.run("""[...document.querySelectorAll('input, select, textarea, button')]
        .filter((e) => !(e.labels && e.labels.length) && !e.textContent.trim()).map((e) => e.id)""")
    assert nameless == []
    assert page.run("document.documentElement.scrollWidth") <= width
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000
    page.size(1180, 900)
