"""Text to token ids, as VoxCPM was trained: Chinese is always read character by character.

`tokenizer.json` is used as it lies in the checkpoint. Source of the rules: the `voxcpm` package's `core` and `model.utils`.
"""

from __future__ import annotations

import re
from pathlib import Path

from tokenizers import Tokenizer

from evervox.conditioning.vocabulary import Vocabulary
from evervox.errors import BadRequest, CheckpointError

SPACE = "▁"
FIRST_HAN, LAST_HAN = "\u4e00", "\u9fff"


def collapse(text: str) -> str:
    """Every run of whitespace, newlines too, is one space."""
    return re.sub(r"\s+", " ", text)


class TextTokenizer:
    """A Llama-style tokenizer that splits tokens of several Chinese characters into single ones. Adds no special tokens.

    `vocabulary`: what the model was taught, if that is little.
    """

    def __init__(self, path: Path, vocabulary: Vocabulary | None = None) -> None:
        """Reads `tokenizer.json`. Raises `CheckpointError`."""
        self.vocabulary = vocabulary
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"{path} is not a tokenizer: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        if hasattr(self._tokenizer.model, "_resize_cache"):
            self._tokenizer.model._resize_cache(0)  # it would keep up to 10,000 texts, and saves nothing with texts that differ
        self._splits = _splits(self._tokenizer)

    @classmethod
    def from_checkpoint(cls, folder: str | Path) -> TextTokenizer:
        """The tokenizer of a checkpoint folder."""
        return cls(Path(folder) / "tokenizer.json", Vocabulary.of(Path(folder)))

    def ids(self, text: str, *, field: str = "text") -> list[int]:
        """Token ids of `text`. Raises `BadRequest` for text that is not valid Unicode."""
        if self.vocabulary is not None:
            text = self.vocabulary.spell(text)
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError):  # a lone surrogate cannot be encoded
            raise BadRequest("is not valid Unicode text", field=field) from None
        return [single for token in ids for single in self._splits.get(token, (token,))]


def _splits(tokenizer: Tokenizer) -> dict[int, tuple[int, ...]]:
    """Token id -> ids of its characters, for tokens of two or more Chinese characters, with or without a space mark.

    A marked token counts only where the unmarked one is in the vocabulary too, and loses its mark: so the reference does it.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    unknown = vocabulary.get(getattr(tokenizer.model, "unk_token", None) or "<unk>", 0)
    bare = {token: token.replace(SPACE, "") for token in vocabulary}
    return {
        vocabulary[token]: tuple(vocabulary.get(character, unknown) for character in clean)
        for token, clean in bare.items()
        if clean in vocabulary and _is_several_han(clean)
    }


def _is_several_han(token: str) -> bool:
    return len(token) >= 2 and all(FIRST_HAN <= character <= LAST_HAN for character in token)
