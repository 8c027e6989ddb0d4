"""Text into tokens and back, against the libraries that define it: tokenizers, sentencepiece, transformers."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import byte_tokens, write_llama
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.models.pre_tokenizer import detect_pre_tokenizer, split_expressions
from core.runtime.tokenizer import Message, Text, open_text
from core.runtime.tokenizer.folder import open_folder
from core.runtime.tokenizer.gguf import open_gguf
from core.runtime.tokenizer.stream import Stream
from core.runtime.tokenizer.vocabulary import byte_of, byte_symbols

NASTY = [
    "",
    " ",
    "  two  spaces ",
    "Hello world",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈",
    "中文字符 日本語 한국어",
    "a\t b\n\n\n c\r\n  \n d",
    "1234567 3.14159 0x1F",
    "<|im_start|>user\nhi<|im_end|>",
    "<s>x</s>",
    "naïve café e\u0301",
    "don't WON'T I'LL",
    "\u200b\u00a0\ufeffz",
    "\x00a\x01",
    "\u0e2a\u0e27 \u0928\u092e\u0938\u094d",
    "𝒳𝒴 𐍈",
    "a" * 300,
    " " * 77,
    "\n" * 40,
    "<0x0A>",
]


def mixed(count: int = 60, seed: int = 3) -> list[str]:
    rng = random.Random(seed)
    letters = "ab 1\n\t<>|_é中🙂'.,-\u0301{}()  "
    return ["".join(rng.choice(letters) for _ in range(rng.randrange(1, 60))) for _ in range(count)]


def streamed(text: Text, ids: list[int], **options: Any) -> str:
    stream = text.stream(**options)
    parts = [stream.push(i) for i in ids] + [stream.finish()]
    assert all("\ufffd" not in part for part in parts[:-1])
    return "".join(parts)


# ---- byte-level BPE --------------------------------------------------------------------------------------------------

TRAINED = (
    "The quick brown fox isn't 1234 years old. Hello world, naïve café! def f(a):\n    return a\n" * 3 + "中文 🙂🙂"
)


def trained(expressions: tuple[str, ...], whole_words: bool = False) -> Tokenizer:
    from tokenizers import trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=whole_words))
    splits = [pre_tokenizers.Split(Regex(e), "isolated") for e in expressions]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=byte_tokens(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([TRAINED], trainer)
    return tokenizer


def as_gguf(tokenizer: Tokenizer, splitter: str, **more: Any) -> dict[str, Any]:
    state = json.loads(tokenizer.to_str())["model"]
    tokens = [text for text, _ in sorted(state["vocab"].items(), key=lambda item: item[1])]
    types = np.array([3 if t.startswith("<|") else 1 for t in tokens], np.int32)
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": splitter,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        **more,
    }


def test_a_long_text_has_the_tokens_of_its_lines() -> None:
    """It goes another way through the library, which lets other threads go on."""
    expected = trained(split_expressions("gpt-2"))
    text = open_gguf(as_gguf(expected, "gpt-2", **{"tokenizer.ggml.add_bos_token": False}))
    sample = "".join(NASTY + mixed()) * 60
    assert len(sample) > 4096
    assert text.encode(sample, parse_special=True) == expected.encode(sample).ids


@pytest.mark.parametrize(
    "splitter", ["smollm", "gpt-2", "llama-bpe", "qwen2", "qwen35", "tekken", "gpt-4o", "deepseek-v3"]
)
def test_bytes_out_of_gguf_split_as_the_library_does(splitter: str) -> None:
    expected = trained(split_expressions(splitter), whole_words=splitter in ("llama-bpe", "tekken"))
    text = open_gguf(as_gguf(expected, splitter, **{"tokenizer.ggml.add_bos_token": False}))
    for sample in NASTY + mixed():
        ids = expected.encode(sample).ids
        assert text.encode(sample, parse_special=True) == ids
        assert text.decode(ids, skip_special=False) == sample
        assert streamed(text, ids, skip_special=False) == sample


def test_every_splitter_that_is_detected_can_be_run() -> None:
    """The names that writing uses are names that reading knows."""
    for splitter in (
        "gpt-2",
        "smollm",
        "llama-bpe",
        "dbrx",
        "qwen2",
        "qwen35",
        "tekken",
        "gpt-4o",
        "seed-coder",
        "viking",
    ):
        for expression in split_expressions(splitter):
            Regex(expression)
        if splitter in ("qwen2", "tekken", "gpt-4o", "seed-coder"):
            split = {"type": "Split", "pattern": {"Regex": split_expressions(splitter)[0]}, "behavior": "Isolated"}
            steps = [split, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]
            assert detect_pre_tokenizer({"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}) == splitter
    with pytest.raises(UserError, match="not known here"):
        split_expressions("of-tomorrow")


def test_special_tokens_in_text_steer_only_when_asked() -> None:
    text = open_gguf(as_gguf(trained(split_expressions("smollm")), "smollm"))
    sample = "a<|im_end|>b"
    assert 1 in text.encode(sample, parse_special=True)
    plain = text.encode(sample)
    assert not set(plain) & text.vocabulary.special
    assert text.decode(plain) == sample
    assert text.decode(text.encode(sample, parse_special=True)) == "ab"


def test_start_and_end_tokens_by_the_metadata() -> None:
    made = trained(split_expressions("smollm"))
    assert open_gguf(as_gguf(made, "smollm")).encode("a")[0] != 0
    assert open_gguf(as_gguf(made, "llama-bpe")).encode("a")[0] == 0  # llama.cpp's default for this splitter
    both = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    text = open_gguf(as_gguf(made, "smollm", **both))
    assert [text.encode("a")[i] for i in (0, -1)] == [0, 1]
    assert text.encode("", add_special=True) == [0, 1]
    assert text.encode("a", add_special=False) == text.encode("a")[1:-1]
    once = text.encode("<|im_start|>a", parse_special=True)
    assert once.count(0) == 1  # one that is written out is not doubled
    assert text.ids.ends == {1}


def test_chat_by_the_template_in_the_file() -> None:
    turn = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    template = "{% for m in messages %}" + turn + "{% endfor %}{{ '<|im_start|>assistant\n' }}"
    text = open_gguf(as_gguf(trained(split_expressions("smollm")), "smollm", **{"tokenizer.chat_template": template}))
    ids = text.chat_ids([Message("user", "Hello 🙂")])
    assert text.decode(ids, skip_special=False) == "<|im_start|>user\nHello 🙂<|im_end|>\n<|im_start|>assistant\n"
    assert ids.count(0) == 2
    assert ids.count(1) == 1
    none = open_gguf(as_gguf(trained(split_expressions("smollm")), "smollm"))
    with pytest.raises(UserError, match="no chat template"):
        none.chat_ids([Message("user", "Hello")])
    assert none.encode("Hello")


def test_half_a_surrogate_pair_is_no_character() -> None:
    text = open_gguf(as_gguf(trained(split_expressions("smollm")), "smollm"))
    assert text.decode(text.encode("a\ud83d\ude42b\ud800")) == "a🙂b\ufffd"


# ---- SentencePiece ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pieces() -> bytes:
    """A BPE model file that falls back to bytes, trained on a few sentences."""
    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINED.replace("\n", " ").split(". ") * 5),
        model_writer=out,
        vocab_size=360,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return out.getvalue()


def pieces_as_gguf(data: bytes, **more: Any) -> dict[str, Any]:
    from sentencepiece import SentencePieceProcessor

    sp = SentencePieceProcessor()
    sp.LoadFromSerializedProto(data)
    count = range(sp.GetPieceSize())
    kinds = [6 if sp.IsByte(i) else 3 if sp.IsControl(i) else 2 if sp.IsUnknown(i) else 1 for i in count]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [sp.IdToPiece(i) for i in count],
        "tokenizer.ggml.scores": np.array([sp.GetScore(i) for i in count], np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        **more,
    }


def test_pieces_out_of_gguf_are_those_of_the_model_file(pieces: bytes) -> None:
    from sentencepiece import SentencePieceProcessor

    sp = SentencePieceProcessor()
    sp.LoadFromSerializedProto(pieces)
    text = open_gguf(pieces_as_gguf(pieces))
    for sample in NASTY + mixed():
        ids = sp.EncodeAsIds(sample)
        assert text.encode(sample, add_special=False) == ids
        assert text.encode(sample) == [1, *ids]
        assert text.decode(ids) == sample
        assert streamed(text, ids) == sample


def test_a_space_in_front_belongs_to_the_tokenizer(pieces: bytes) -> None:
    text = open_gguf(pieces_as_gguf(pieces))
    ids = text.encode("fox", add_special=False)
    assert text.vocabulary.piece(ids[0]).startswith(b" ")
    assert text.decode(ids) == "fox"
    prompt = text.encode("The quick")
    assert streamed(text, ids, after=prompt) == " fox"  # between two words
    assert streamed(text, ids, after=[*prompt, 2]) == "fox"  # after the end of a turn
    without = open_gguf(pieces_as_gguf(pieces, **{"tokenizer.ggml.add_space_prefix": False}))
    assert without.decode(without.encode(" fox")) == " fox"
    assert without.decode(without.encode("fox")) == "fox"


def test_byte_pieces_make_whole_characters(pieces: bytes) -> None:
    text = open_gguf(pieces_as_gguf(pieces))
    ids = text.encode("𐍈", add_special=False)
    assert [text.vocabulary.token_text(i) for i in ids][-4:] == ["<0xF0>", "<0x90>", "<0x8D>", "<0x88>"]
    stream = text.stream()
    assert [stream.push(i) for i in ids][-4:] == ["", "", "", "𐍈"]
    assert text.token_text(ids[-1]) == "<0x88>"


def test_user_defined_and_special_tokens_among_pieces(pieces: bytes) -> None:
    metadata = pieces_as_gguf(pieces)
    added = ["<b>", "<b>>", "  ", "<|im_end|>"]
    first = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *added]
    metadata["tokenizer.ggml.scores"] = np.append(metadata["tokenizer.ggml.scores"], [-1000.0] * 4).astype(np.float32)
    metadata["tokenizer.ggml.token_type"] = np.append(metadata["tokenizer.ggml.token_type"], [4, 4, 4, 3]).astype(
        np.int32
    )
    text = open_gguf(metadata | {"tokenizer.ggml.add_space_prefix": False})
    assert text.encode("<b>>", add_special=False) == [first + 1]  # the longest
    assert text.encode("<b><b>>", add_special=False) == [first, first + 1]
    assert first + 3 not in text.encode("x<|im_end|>")
    assert text.encode("x<|im_end|>", parse_special=True)[-1] == first + 3
    assert first + 3 in text.ids.ends
    assert text.decode(text.encode("a  b<b>")) == "a  b<b>"


def test_a_vocabulary_without_unknown_or_bytes(pieces: bytes) -> None:
    metadata = pieces_as_gguf(pieces)
    keep = [i for i, kind in enumerate(metadata["tokenizer.ggml.token_type"]) if kind == 1]
    bare = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [metadata["tokenizer.ggml.tokens"][i] for i in keep],
        "tokenizer.ggml.scores": metadata["tokenizer.ggml.scores"][keep],
        "tokenizer.ggml.unknown_token_id": 9999,
    }
    text = open_gguf(bare)
    assert text.decode(text.encode("fox 𐍈", add_special=False)) == "fox "


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_a_model_file_in_a_folder(tmp_path: Path, pieces: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(pieces)
    settings = {
        "chat_template": "{{ bos_token }}[{{ messages[0].content }}]",
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "added_tokens_decoder": {"361": {"content": "<|im_end|>", "special": True}},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}', encoding="utf-8")
    text = open_folder(tmp_path, {"eos_token_id": 2})
    same = open_gguf(pieces_as_gguf(pieces))
    for sample in NASTY:
        assert text.encode(sample) == same.encode(sample)
    assert text.ids.ends == {2, 7, 361}
    assert text.chat_ids([Message("user", "fox")])[0] == 1
    assert text.chat([Message("user", "fox")]) == "<s>[fox]"


@pytest.mark.parametrize(
    "left",
    [
        {"model": {"dropout": 0.9}},
        {"truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}},
        {
            "padding": {
                "strategy": {"Fixed": 64},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "<|start|>",
            }
        },
    ],
    ids=lambda left: next(iter(left)),
)
def test_what_training_left_in_tokenizer_json_changes_no_tokens(left: dict[str, Any], tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "m")
    sample = "the weather, the other, the rest; " * 30
    want = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(sample).ids
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["model"] |= left.get("model", {})
    path.write_text(json.dumps({**data, **left, "model": data["model"]}), encoding="utf-8")
    with open_checkpoint(folder) as checkpoint:
        assert open_text(checkpoint).encode(sample, parse_special=True) == want


def test_a_folder_with_tokenizer_json(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "m")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}{{ eos_token }}", encoding="utf-8")
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 5]}', encoding="utf-8")
    with open_checkpoint(folder) as checkpoint:
        text = open_text(checkpoint)
    reference = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for sample in NASTY + mixed():
        assert text.encode(sample, parse_special=True) == reference.encode(sample).ids
        assert streamed(text, reference.encode(sample).ids, skip_special=False) == sample
    assert (text.ids.bos, text.ids.eos, text.ids.ends) == (0, 1, {1, 5})
    assert text.chat([Message("user", "x")]) == "x<|end|>"
    assert text.vocabulary.piece(10**6) == b""  # a padding row of the embedding


def test_pieces_in_tokenizer_json(tmp_path: Path) -> None:
    """As Llama 2 has them: spaces marked, one put in front and taken away again, bytes for what no piece covers."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581", "f", "o", "x", "\u2581f", "ox"]
    tokens += ["\u2581fox"]
    model = models.BPE(
        {t: i for i, t in enumerate(tokens)},
        [("\u2581", "f"), ("o", "x"), ("\u2581f", "ox")],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    theirs = Tokenizer(model)
    theirs.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    theirs.decoder = decoders.Sequence(steps)
    theirs.add_special_tokens(["<unk>", "<s>", "</s>"])
    theirs.save(str(tmp_path / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    text = open_folder(tmp_path, {})
    for sample in NASTY + mixed():
        ids = theirs.encode(sample).ids
        assert text.encode(sample, parse_special=True) in ([1, *ids], ids)
        if "<" not in sample:
            assert text.encode(sample) == [1, *ids]
            assert streamed(text, ids) == theirs.decode(ids) == sample
    assert [text.vocabulary.token_text(i) for i in text.encode("fox fox")] == ["<s>", "\u2581fox", "\u2581fox"]
    assert streamed(text, text.encode("fox")[1:], after=text.encode("fox")) == " fox"
    assert text.ids.ends == {2}


def test_what_the_post_processor_adds(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "m")
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|start|>": {"id": "<|start|>", "ids": [0], "tokens": ["<|start|>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    text = open_folder(folder, {})
    assert text.encode("a") == Tokenizer.from_file(str(folder / "tokenizer.json")).encode("a").ids
    assert text.encode("") == [0]
    assert text.encode("<|start|>a", parse_special=True).count(0) == 1


def test_what_is_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no tokenizer"):
        open_folder(tmp_path, {})
    (tmp_path / "tokenizer.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(UserError, match="not a tokenizer"):
        open_folder(tmp_path, {})
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Future"}}', encoding="utf-8")
    with pytest.raises(UserError, match="not a tokenizer"):
        open_folder(tmp_path, {})
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x03abc")
    with pytest.raises(UserError, match="not a SentencePiece"):
        open_folder(tmp_path, {})


def test_a_damaged_tokenizer_json(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m") / "tokenizer.json"
    good = json.loads(path.read_text(encoding="utf-8"))
    for text in ('{"a":' * 50_000, "", "\x00", json.dumps(good | {"decoder": ["a"]})):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match="read"):
            open_folder(path.parent, {})
    # The library finds out only when it meets a letter that no piece covers.
    unigram = {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]], "byte_fallback": False}
    path.write_text(json.dumps(good | {"model": unigram, "pre_tokenizer": None}), encoding="utf-8")
    text = open_folder(path.parent, {})
    assert text.encode("a")
    with pytest.raises(UserError, match="can not split this text"):
        text.encode("b")


def test_side_files_with_values_that_are_none(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "m")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({"eos_token": "\ud800", "chat_template": 3}), encoding="utf-8")
    text = open_folder(folder, {})
    assert text.decode(text.encode("the fox")) == "the fox"
    assert text.template == ""
    for templates in ([1], ["a"], [None], [[]]):
        path.write_text(json.dumps({"chat_template": templates}), encoding="utf-8")
        with pytest.raises(UserError, match="side files"):
            open_folder(folder, {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.tokens": None}, "has no tokenizer"),
        ({"tokenizer.ggml.model": "t5"}, "'t5'"),
        ({"tokenizer.ggml.pre": "of-tomorrow"}, "of-tomorrow"),
        ({"tokenizer.ggml.merges": None}, "no merges"),
        ({"tokenizer.ggml.merges": ["zz zz"]}, "damaged"),
        ({"tokenizer.ggml.token_type": np.array([1], np.int32)}, "fewer token types"),
    ],
)
def test_damaged_metadata(change: dict[str, Any], words: str) -> None:
    metadata = as_gguf(trained(split_expressions("smollm")), "smollm")
    with pytest.raises(UserError, match=words):
        open_gguf({key: value for key, value in (metadata | change).items() if value is not None})


# ---- bytes -----------------------------------------------------------------------------------------------------------


def test_byte_tables() -> None:
    table = byte_symbols()
    assert sorted(table.values()) == list(range(256))
    assert [next(s for s, b in table.items() if b == n) for n in range(256)] == byte_tokens()
    assert [byte_of(t) for t in ("<0x0A>", "<0xff>", "<0xZZ>", "x", "<0x0A>>")] == [10, 255, None, None, None]


def test_broken_bytes_are_one_mark_for_each_broken_character() -> None:
    data = b"a\xf0\x9f\x99b\xffc\xe4\xb8"
    stream = Stream(lambda token: bytes([token]))
    assert "".join([*map(stream.push, data), stream.finish()]) == data.decode("utf-8", "replace")
    assert data.decode("utf-8", "replace") == "a\ufffdb\ufffdc\ufffd"


# ---- real models -----------------------------------------------------------------------------------------------------


@pytest.mark.interop
def test_smollm2_agrees_with_transformers(smollm2_folder: Path, smollm2_gguf: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_file=str(smollm2_folder / "tokenizer.json"))
    settings = json.loads((smollm2_folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    chat = [
        {"role": "user", "content": "Hi 🙂"},
        {"role": "assistant", "content": "Yo"},
        {"role": "user", "content": "?"},
    ]
    for path in (smollm2_folder, smollm2_gguf):
        with open_checkpoint(path) as checkpoint:
            text = open_text(checkpoint)
        for sample in NASTY + mixed(200):
            ids = theirs.encode(sample)
            assert text.encode(sample, parse_special=True) == ids
            assert text.decode(ids, skip_special=False) == theirs.decode(ids) == streamed(text, ids, skip_special=False)
        expected = theirs.apply_chat_template(
            chat, chat_template=settings["chat_template"], tokenize=False, add_generation_prompt=True
        )
        assert text.chat([Message(**turn) for turn in chat]) == expected
        assert text.chat_ids([Message(**turn) for turn in chat]) == theirs.encode(expected)
        assert text.ids.ends == {0, 2}
