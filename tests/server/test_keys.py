from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2
import pytest
from openai import AuthenticationError, OpenAI
from tests.server.fake import FakeEngine

from evervox.errors import ConfigError
from evervox.server.admission import Keys

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.conftest import Start

KEY = "a-key-of-sixteen"
HEADERS = [None, "", "Bearer", f"Basic {KEY}", KEY, f"Bearer {KEY}x", f"Bearer {KEY[:-1]}"]
OTHER = "b-key-of-sixteen"


def test_the_openai_client_needs_and_gives_a_key(start: Start) -> None:
    running = start(keys=f"acme:{KEY}")
    base = f"{running.url}/v1"
    with pytest.raises(AuthenticationError, match="needs a key"):
        OpenAI(base_url=base, api_key=OTHER, max_retries=0).audio.speech.create(model="fake-voice", voice="default", input="hi")
    OpenAI(base_url=base, api_key=KEY, max_retries=0).audio.speech.create(model="fake-voice", voice="default", input="hi")
    assert running.engine.requests[-1].tenant == "acme"


def test_no_route_of_the_api_opens_without_one(start: Start) -> None:
    running = start(keys=f"acme:{KEY}")
    for header in HEADERS:
        headers = {} if header is None else {"Authorization": header}
        for route in ("/v1/models", "/v1/voices", "/v1/stats"):
            response = httpx2.get(running.url + route, headers=headers)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        assert httpx2.post(f"{running.url}/v1/audio/speech", json={"input": "hi"}, headers=headers).status_code == 401
        assert httpx2.delete(f"{running.url}/v1/voices/a", headers=headers).status_code == 401
    assert not running.engine.requests


def test_probes_and_the_page_need_no_key(start: Start) -> None:
    url = start(keys=f"acme:{KEY}").url
    assert {httpx2.get(url + route).status_code for route in ("/health", "/ready", "/metrics", "/")} == {200}


def test_a_key_names_its_tenant_and_no_other(start: Start) -> None:
    running = start(keys=f"acme:{KEY}")
    headers = {"Authorization": f"Bearer {KEY}"}
    other = httpx2.post(f"{running.url}/v1/audio/speech", json={"input": "hi", "tenant": "else"}, headers=headers)
    assert (other.status_code, other.json()["error"]["param"]) == (422, "tenant")
    own = httpx2.post(f"{running.url}/v1/audio/speech", json={"input": "hi", "tenant": "acme"}, headers=headers)
    assert own.status_code == 200


def test_keys_come_from_a_file_and_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\nacme:{KEY}\n\n", encoding="utf-8")
    keys = Keys.read(file, f"umbra:{OTHER}")
    assert (keys.tenant(f"Bearer {KEY}"), keys.tenant(f"bearer {OTHER}")) == ("acme", "umbra")
    assert keys.tenants == {"acme", "umbra"}


@pytest.mark.parametrize("inline", ["acme", "acme:short", f"../x:{KEY}", f":{KEY}", " , "])
def test_a_bad_entry_keeps_the_server_from_starting(inline: str) -> None:
    with pytest.raises(ConfigError, match="key") as caught:
        Keys.read(None, inline)
    assert KEY not in str(caught.value)


def test_a_file_that_cannot_be_read_keeps_it_from_starting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keys_file"):
        Keys.read(tmp_path / "none", None)
    (tmp_path / "empty").write_text("# nobody\n")
    with pytest.raises(ConfigError, match="none were found"):
        Keys.read(tmp_path / "empty", None)


def test_other_sites_pages_are_turned_away_unless_allowed(start: Start) -> None:
    running = start(FakeEngine(), cors_origins=("https://good.example",))
    url, body = f"{running.url}/v1/audio/speech", {"input": "hi"}
    assert httpx2.post(url, json=body, headers={"Origin": "https://bad.example"}).status_code == 403
    assert httpx2.post(url, json=body, headers={"Origin": "null"}).status_code == 403
    assert httpx2.post(url, json=body, headers={"Origin": running.url}).status_code == 200
    good = httpx2.post(url, json=body, headers={"Origin": "https://good.example"})
    assert good.headers["access-control-allow-origin"] == "https://good.example"
    assert "X-Seed" in good.headers["access-control-expose-headers"]


def test_cross_origin_is_off_by_default(start: Start) -> None:
    response = httpx2.get(f"{start().url}/v1/models", headers={"Origin": "https://bad.example"})
    assert "access-control-allow-origin" not in response.headers
