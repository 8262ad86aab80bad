"""Tokenizers in Llama's layout, small, with every case that the Chinese rule knows."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

HAN = "你好世界中国人说话一"
WORDS = ["▁hello", "▁the", "th", "he", "lo", "llo"]
MERGES = [
    ("你", "好"),  # plain, in the vocabulary
    ("世", "界"),
    ("▁", "你好"),  # marked, the unmarked one is there too: split, mark lost
    ("中", "国"),
    ("中国", "人"),
    ("说", "话"),
    ("话", "a"),  # mixed: stays
    ("▁", "一"),  # one character with a mark: stays
    ("▁", "h"),
    ("t", "h"),
    ("h", "e"),
    ("▁", "th"),
    ("▁th", "e"),
]
TEXTS = [
    "hello",
    "hello the world",
    "你好",
    "你好世界",
    "你好 世界",
    "hello 你好 世界hello",
    "中国人说话a",
    "一 一",
    "龘龘 rare",
    "emoji 😀👩‍👩‍👧 and ｆｕｌｌ width，。",
    "(young woman, gentle)hello 你好",
    "<b>bold</b> &amp; {ni3}{hao3}",
    "</s><s>special<|audio_start|>你好",
    "1234567890 3.14 $5",
    "a",
    "é ü ñ ب",
    "trailing ",
]
LEADING = [" leading", "  two", " 你好"]


def make(folder: Path, *, layout: str) -> Path:
    """`metaspace`: the layout that transformers 5 makes of every Llama tokenizer. `prepend`: the one that older files have."""
    names = ["<unk>", "<s>", "</s>", "<|audio_start|>", *(f"<0x{i:02X}>" for i in range(256))]
    names += ["▁", *map(chr, range(33, 127)), *HAN]
    names += [left + right for left, right in MERGES]
    vocab = {name: slot for slot, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if layout == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ("<unk>", "<s>", "</s>", "<|audio_start|>")
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
