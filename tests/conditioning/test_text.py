"""Token ids equal those of transformers' Llama tokenizer inside the reference's wrapper."""

from pathlib import Path
from typing import Any

import pytest
from tests.conditioning.tokenizers_made import LEADING, TEXTS, make
from tests.oracle import quiet, reference

from evervox.conditioning.text import TextTokenizer, collapse
from evervox.errors import BadRequest, CheckpointError


@pytest.fixture(scope="module", params=["metaspace", "prepend"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(layout: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp(layout), layout=layout)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    reference()
    from voxcpm.model.utils import mask_multichar_chinese_tokens

    with quiet():
        return mask_multichar_chinese_tokens(transformers.LlamaTokenizerFast.from_pretrained(str(folder)))


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_the_reference(folder: Path, layout: str, theirs: Any, text: str) -> None:
    if layout == "prepend" and "<" in text:
        pytest.skip("transformers 5 marks only the first piece between special tokens; an old file marks each")
    assert TextTokenizer.from_checkpoint(folder).ids(text) == theirs(text)


@pytest.mark.parametrize("text", LEADING)
def test_a_leading_space(folder: Path, layout: str, theirs: Any, text: str) -> None:
    if layout == "prepend":
        pytest.skip("transformers 5 rebuilds old files without their second space mark; the file is what we follow")
    assert TextTokenizer.from_checkpoint(folder).ids(text) == theirs(text)


def test_chinese_is_read_character_by_character(folder: Path) -> None:
    tokenizer = TextTokenizer.from_checkpoint(folder)
    vocabulary = tokenizer._tokenizer.get_vocab()
    assert tokenizer.ids("你好") == [vocabulary["你"], vocabulary["好"]]  # the marked token loses its mark
    assert tokenizer.ids("a中国人") == [vocabulary[c] for c in "▁a中国人"]


def test_a_file_that_truncates_is_read_whole(folder: Path, tmp_path: Path) -> None:
    tokenizer = TextTokenizer.from_checkpoint(folder)._tokenizer
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert len(TextTokenizer.from_checkpoint(tmp_path).ids("a b c d e f")) == 12


@pytest.mark.parametrize(
    ("raw", "clean"),
    [("a\nb", "a b"), ("a \t\r\n b", "a b"), ("\u3000a\u00a0b", " a b"), ("a", "a"), ("  a  ", " a "), ("a\x85b", "a b")],
)
def test_whitespace_collapses(raw: str, clean: str) -> None:
    assert collapse(raw) == clean


def test_a_lone_surrogate_is_refused(folder: Path) -> None:
    with pytest.raises(BadRequest, match=r"text.*Unicode"):
        TextTokenizer.from_checkpoint(folder).ids("a\ud800b")


@pytest.mark.parametrize("content", [None, "not json", "{}"])
def test_a_bad_file_is_a_checkpoint_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        TextTokenizer.from_checkpoint(tmp_path)
