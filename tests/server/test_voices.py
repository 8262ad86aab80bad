from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import numpy as np
import pytest
from openai import OpenAI
from safetensors.numpy import load_file
from tests.server.fake import FakeEngine, FakeInfo, latents_of

from evervox.audio.pcm import to_s16le, wav_header
from evervox.engine.voice import Voice
from evervox.errors import Conflict, EngineFailure, NotFound, TooLarge
from evervox.request import ClipLatents
from evervox.server.voices import VoiceStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.conftest import Running, Start

CLIP = wav_header(16000, 16000) + to_s16le(np.zeros(16000, np.float32))
EVIL = [
    "../ada",
    "/etc/ada",
    "a\0b",
    "n" * 300,
    "🎙",
    "",
    ".",
    "..",
    "a/b",
    "a\\b",
    "_shared",
    "-a",
    "a b",
    "ada\n",
    "a.b",
    "%2e%2e",
]


def add(running: Running, name: str, clip: bytes = CLIP, key: str = "", **fields: str) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx2.post(
        f"{running.url}/v1/voices", data={"name": name, **fields}, files={"clip": ("c.wav", clip)}, headers=headers
    )


def names(running: Running, key: str = "") -> list[str]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return [voice["id"] for voice in httpx2.get(f"{running.url}/v1/voices", headers=headers).json()["data"]]


def speak(running: Running, **body: Any) -> httpx2.Response:
    return httpx2.post(f"{running.url}/v1/audio/speech", json={"input": "Hello.", "response_format": "pcm", **body})


def is_clip(given: object) -> bool:
    return isinstance(given, ClipLatents) and np.array_equal(given.latents, latents_of(CLIP))


def test_a_stored_voice_is_spoken_with(running: Running) -> None:
    card = add(running, "ada").json()
    assert (card["id"], card["object"], card["type"], card["shared"]) == ("ada", "audio.voice", "audio_sample", True)
    assert names(running) == ["default", "ada"]
    assert speak(running, voice="ada").status_code == 200
    assert is_clip(running.engine.requests[-1].reference)
    assert running.engine.requests[-1].prompt is None


def test_a_model_without_references_needs_the_transcript(start: Start) -> None:
    running = start(FakeEngine(info=FakeInfo(has_reference=False)))
    refused = add(running, "ada")
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "transcript")
    assert add(running, "ada", transcript="I say so.").status_code == 201
    speak(running, voice="ada")
    assert running.engine.requests[-1].reference is None
    assert is_clip(running.engine.requests[-1].prompt)
    assert running.engine.requests[-1].prompt_text == "I say so."


def test_voices_outlive_the_server_and_are_safetensors(start: Start, tmp_path: Path) -> None:
    card = add(start(), "ada", transcript="Äh, so…").json()
    again = start()
    found = httpx2.get(f"{again.url}/v1/voices").json()["data"][1]
    assert found == card
    assert np.array_equal(load_file(tmp_path / "voices" / "_shared" / "ada.safetensors")["latents"], latents_of(CLIP))
    assert speak(again, voice="ada").status_code == 200


def test_the_openai_client_manages_voices(running: Running) -> None:
    client = OpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0)
    voice = client.audio.voices.create(audio_sample=("c.wav", CLIP, "audio/wav"), consent="cons_1", name="ada")
    assert (voice.id, voice.object) == ("ada", "audio.voice")
    assert client.audio.speech.create(model="fake-voice", voice={"id": voice.id}, input="Hello.").content
    assert client.audio.voices.delete("ada").deleted
    assert names(running) == ["default"]


def test_a_clip_that_cannot_be_decoded_is_not_stored(running: Running) -> None:
    response = add(running, "ada", b"not audio at all")
    assert (response.status_code, response.json()["error"]["param"]) == (422, "clip")
    assert "clip: not a file" in response.json()["error"]["message"]
    assert names(running) == ["default"]
    assert not running.engine.open


@pytest.mark.parametrize("name", EVIL)
def test_names_that_are_not_names_are_refused(running: Running, name: str, tmp_path: Path) -> None:
    response = add(running, name)
    assert (response.status_code, response.json()["error"]["param"]) == (422, "name")
    assert speak(running, voice=name).status_code == 422
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("path", ["..%2fada", "%2fetc%2fpasswd", "a%00b", "n" * 300, "%F0%9F%8E%99", "_shared", "ada%0a"])
def test_names_that_are_not_names_are_not_deleted(running: Running, path: str) -> None:
    assert httpx2.delete(f"{running.url}/v1/voices/{path}").status_code in (404, 422)


@pytest.mark.parametrize(
    ("fields", "files", "status", "field"),
    [
        ({}, {"clip": CLIP}, 422, "name"),
        ({"name": "a"}, {}, 415, None),
        ({"name": "a"}, {"clip": b""}, 422, "clip"),
        ({"name": "a", "language": "de"}, {"clip": CLIP}, 422, "language"),
        ({"name": "a", "transcript": "x" * 4097}, {"clip": CLIP}, 413, "transcript"),
        ({"name": "a", "clip": "text"}, {"audio_sample": CLIP}, 422, "clip"),
        ({"name": "a"}, {"name": CLIP}, 422, "name"),
        ({"name": "default"}, {"clip": CLIP}, 409, "name"),
    ],
)
def test_bad_uploads_are_refused_by_name(
    running: Running, fields: dict[str, str], files: dict[str, bytes], status: int, field: str | None
) -> None:
    response = httpx2.post(f"{running.url}/v1/voices", data=fields, files=files)
    assert (response.status_code, response.json()["error"]["param"]) == (status, field)


def test_several_clips_or_many_parts_are_refused(running: Running) -> None:
    two = httpx2.post(f"{running.url}/v1/voices", data={"name": "a"}, files=[("clip", CLIP), ("clip", CLIP)])
    many = httpx2.post(f"{running.url}/v1/voices", data={f"f{i}": "x" for i in range(50)}, files={"clip": CLIP})
    torn = httpx2.post(f"{running.url}/v1/voices", content=b"--x", headers={"Content-Type": "multipart/form-data"})
    assert {two.status_code, many.status_code, torn.status_code} == {422}


def test_a_clip_over_its_limit_is_refused(start: Start) -> None:
    response = add(start(max_clip_bytes=4096), "ada")
    assert (response.status_code, response.json()["error"]["param"]) == (413, "clip")


def test_a_name_is_taken_once(running: Running) -> None:
    assert [add(running, "ada").status_code for _ in range(2)] == [201, 409]
    assert httpx2.delete(f"{running.url}/v1/voices/ada").json()["deleted"]
    assert httpx2.delete(f"{running.url}/v1/voices/ada").status_code == 404
    assert add(running, "ada").status_code == 201


def test_a_clip_and_a_stored_voice_exclude_each_other(running: Running) -> None:
    add(running, "ada")
    response = speak(running, voice="ada", reference_audio="YSBjbGlw")
    assert (response.status_code, response.json()["error"]["param"]) == (422, "voice")


def test_keys_keep_voices_apart(start: Start, tmp_path: Path) -> None:
    store(tmp_path / "voices").add("", "house", Voice.from_clip(CLIP))
    one, two = "one-" + "k" * 16, "two-" + "k" * 16
    running = start(keys=f"t1:{one},t2:{two}")
    assert add(running, "ada", key=one).status_code == 201
    assert (names(running, one), names(running, two)) == (["default", "ada", "house"], ["default", "house"])
    headers = {"Authorization": f"Bearer {two}"}
    body = {"input": "Hello.", "voice": "ada"}
    assert httpx2.post(f"{running.url}/v1/audio/speech", json=body, headers=headers).status_code == 404
    assert httpx2.delete(f"{running.url}/v1/voices/ada", headers=headers).status_code == 404
    assert httpx2.delete(f"{running.url}/v1/voices/house", headers=headers).status_code == 403
    assert add(running, "ada", key=two).status_code == 201


def test_a_tenant_in_the_body_opens_nobody_elses_voices(start: Start, tmp_path: Path) -> None:
    store(tmp_path / "voices").add("t1", "ada", Voice.from_clip(CLIP))
    assert speak(start(), voice="ada", tenant="t1").status_code == 404


def store(folder: Path, max_voices: int = 9, max_bytes: int = 1 << 20, model: str = "m") -> VoiceStore:
    return VoiceStore(folder, model=model, max_voices=max_voices, max_bytes=max_bytes)


def test_a_voice_of_another_model_is_not_spoken_with(tmp_path: Path) -> None:
    store(tmp_path, model="VoxCPM2").add("", "ada", voice())
    with pytest.raises(Conflict, match="was stored for VoxCPM2"):
        store(tmp_path, model="VoxCPM1.5").load("", "ada")


def voice(num_bytes: int = 100) -> Voice:
    return Voice.from_clip(bytes(num_bytes))


def test_the_store_is_bounded_per_tenant(tmp_path: Path) -> None:
    full = store(tmp_path, max_voices=2, max_bytes=3000)
    full.add("a", "one", voice())
    full.add("a", "two", voice())
    with pytest.raises(TooLarge, match="the limit is 2"):
        full.add("a", "three", voice())
    with pytest.raises(TooLarge, match="the limit is 3000"):
        full.add("b", "big", voice(3000))
    full.add("b", "one", voice())
    full.delete("a", "one")
    full.add("a", "three", voice())
    assert [entry.name for entry in full.list("a")] == ["three", "two"]
    assert full.num_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())


def test_a_shared_name_cannot_be_taken(tmp_path: Path) -> None:
    shared = store(tmp_path)
    shared.add("", "house", voice())
    with pytest.raises(Conflict):
        shared.add("a", "house", voice())


def test_damage_on_disk_is_noticed(tmp_path: Path) -> None:
    damaged = store(tmp_path)
    damaged.add("", "ada", Voice.from_clip(b"a clip of ada"))
    path = tmp_path / "_shared" / "ada.safetensors"
    path.write_bytes(path.read_bytes().replace(b"a clip of", b"a clip 0f"))
    with pytest.raises(EngineFailure, match="damaged"):
        damaged.load("", "ada")
    path.write_bytes(b"torn")
    with pytest.raises(EngineFailure, match="damaged"):
        damaged.load("", "ada")
    path.unlink()
    with pytest.raises(NotFound):
        damaged.load("", "ada")


def test_what_is_not_a_voice_is_left_out_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "_shared"
    folder.mkdir()
    (folder / "torn.safetensors").write_bytes(json.dumps({}).encode())
    (folder / "no name.safetensors").write_bytes(b"")
    assert (len(store(tmp_path)), len(list(folder.iterdir()))) == (0, 2)


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlucky = store(tmp_path)

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("evervox.server.voices.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        unlucky.add("", "ada", voice())
    monkeypatch.undo()
    assert (len(unlucky), [path for path in tmp_path.rglob("*") if path.is_file()]) == (0, [])
    unlucky.add("", "ada", Voice.from_clip(b"clip"))
    assert unlucky.load("", "ada").clip == b"clip"
