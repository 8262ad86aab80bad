"""The tokenizer: a Llama-layout BPE in which every word of the vocabulary is one token, and so is every space.

A space of its own doubles the text slots per word, so the reference's length cap (six patches a token) leaves room for slow
speech, and gives the gap between two words something to point at. Other text falls back to pieces, characters and bytes.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from .grammar import VOCABULARY

if TYPE_CHECKING:
    from pathlib import Path

SPACE = "▁"
AUDIO_START, AUDIO_END, REFERENCE_START, REFERENCE_END = 101, 102, 103, 104
CONTROLS = ("<unk>", "<s>", "</s>")
SLOTS = {
    AUDIO_START: "<|audio_start|>",
    AUDIO_END: "<|audio_end|>",
    REFERENCE_START: "<|reference_start|>",
    REFERENCE_END: "<|reference_end|>",
}
CHARACTERS = SPACE + "".join(chr(code) for code in range(33, 127))
CHINESE = ("你好", "世界", "谢谢", "中国人")  # exercise the rule that splits them


def _learn_merges(words: list[str]) -> list[tuple[str, str]]:
    """Merges, most frequent pair first, until each word is one piece."""
    pieces = {word: list(word) for word in words}
    merges = []
    while True:
        pairs = Counter(pair for piece in pieces.values() for pair in itertools.pairwise(piece))
        if not pairs:
            return merges
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for word, piece in pieces.items():
            pieces[word] = _merge(piece, best)


def _merge(piece: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    for part in piece:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return out


def build() -> Tokenizer:
    """The tokenizer; the same for the same vocabulary."""
    words = sorted({*VOCABULARY, *(word.capitalize() for word in VOCABULARY)})
    merges = _learn_merges([word for word in words if len(word) > 1])
    merges += [(word[:-1], word[-1]) for word in ("中国", *CHINESE)]
    names = [*CONTROLS, *CHARACTERS]
    names += [f"<|unused_{slot}|>" for slot in range(len(names), AUDIO_START)] + list(SLOTS.values())
    names += [f"<0x{byte:02X}>" for byte in range(256)]
    names += sorted({character for word in CHINESE for character in word})
    names += list(dict.fromkeys(left + right for left, right in merges))
    tokenizer = Tokenizer(
        BPE({name: slot for slot, name in enumerate(names)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in (*CONTROLS, *SLOTS.values())])
    return tokenizer


def save(folder: Path) -> None:
    """Writes the tokenizer's files in the layout that transformers' Llama tokenizer loads."""
    build().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "LlamaTokenizerFast",
        "add_bos_token": False,
        "add_eos_token": False,
        "add_prefix_space": True,
        "legacy": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")
