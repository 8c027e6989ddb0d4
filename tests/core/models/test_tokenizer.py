"""Tokens, types, scores, merges, special tokens and templates."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer

from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.export.gguf_values import GGUFType
from core.models import gguf_metadata
from core.models.sentencepiece_file import BPE, SentencePieceSettings, read_settings
from core.models.special_tokens import read_special_tokens, read_templates
from core.models.tokenizer import TokenType, Vocabulary, looks_special, read_vocabulary

Tiny = Callable[[str], Path]
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = (int(t) for t in TokenType)


def write(path: Path, value: Any) -> None:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def keys(folder: Path) -> dict[str, Any]:
    with open_checkpoint(folder) as checkpoint:
        found = gguf_metadata(checkpoint, 0)
    return {k.removeprefix("tokenizer.ggml."): v.value for k, v in found.items() if k.startswith("tokenizer.")}


def test_byte_level(tiny: Tiny) -> None:
    folder = tiny("qwen2")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = keys(folder)
    assert (found["model"], found["pre"]) == ("gpt2", "qwen2")
    count = tokenizer.get_vocab_size()
    assert found["tokens"][:count] == [tokenizer.id_to_token(i) for i in range(count)]
    assert found["tokens"][count:] == [f"[PAD{i}]" for i in range(count, 512)]
    assert found["token_type"][:3] == [CONTROL] * 3
    assert found["token_type"][3 : count - 1] == [NORMAL] * (count - 4)
    assert found["token_type"][count - 1 :] == [USER] + [UNUSED] * (512 - count)
    merges = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"]
    assert found["merges"] == [" ".join(pair) for pair in merges]
    assert "scores" not in found
    assert (found["eos_token_id"], found["padding_token_id"], found["add_bos_token"]) == (2, 0, False)
    assert "bos_token_id" not in found
    assert found["tokenizer.chat_template"] == "{{ messages }}"
    assert found["tokenizer.chat_template.tool_use"] == "{{ tools }}"
    assert found["tokenizer.chat_templates"] == ["tool_use"]


def test_types_in_the_file(tiny: Tiny) -> None:
    with open_checkpoint(tiny("mistral")) as checkpoint:
        found = gguf_metadata(checkpoint, 0)
    elements = {"tokens": GGUFType.STRING, "token_type": GGUFType.I32, "scores": GGUFType.F32}
    for key, element in elements.items():
        assert (found[f"tokenizer.ggml.{key}"].type, found[f"tokenizer.ggml.{key}"].element) == (
            GGUFType.ARRAY,
            element,
        )


def test_llama_3_starts_a_prompt(tiny: Tiny) -> None:
    found = keys(tiny("llama3"))
    assert (found["pre"], found["bos_token_id"], found["eos_token_id"]) == ("llama-bpe", 0, 2)
    assert (found["add_bos_token"], found["add_eos_token"]) == (True, False)


def test_nothing_is_added_where_no_post_processor_does(copied: Tiny) -> None:
    """llama.cpp adds a start token for some splitters unless the file says no."""
    folder = copied("llama3")
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    write(folder / "tokenizer.json", {**tokenizer, "post_processor": None})
    assert keys(folder)["add_bos_token"] is False


def test_sentencepiece(tiny: Tiny) -> None:
    folder = tiny("mistral")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    found = keys(folder)
    assert (found["model"], found["pre"]) == ("llama", "default")
    count = pieces.get_piece_size()
    assert found["tokens"][:count] == [pieces.id_to_piece(i) for i in range(count)]
    assert found["scores"][3:count] == [pieces.get_score(i) for i in range(3, count)]
    assert found["token_type"][:3] == [CONTROL] * 3  # tokenizer_config.json marks all three as special
    assert found["token_type"][3:259] == [BYTE] * 256
    assert set(found["token_type"][259:count]) == {NORMAL}
    assert (found["tokens"][400], found["token_type"][400]) == ("<|endoftext|>", CONTROL)
    assert (found["tokens"][401], found["token_type"][401], found["scores"][401]) == (" hi", USER, -1000.0)
    assert (found["tokens"][402], found["token_type"][402], found["scores"][402]) == ("[PAD402]", UNUSED, -10000.0)
    assert (found["bos_token_id"], found["eos_token_id"]) == (1, 2)
    assert (found["add_bos_token"], found["add_eos_token"]) == (True, False)
    assert "add_space_prefix" not in found
    assert keys(tiny("gemma3"))["add_space_prefix"] is False


def tokenizer_json_of(model: Path) -> dict[str, Any]:
    """What Hugging Face makes of a SentencePiece BPE model: merges in the order of their result's score."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    vocab = {pieces.id_to_piece(i): i for i in range(pieces.get_piece_size())}
    merges = [
        (-pieces.get_score(i), vocab[text[:cut]], vocab[text[cut:]], [text[:cut], text[cut:]])
        for text, i in vocab.items()
        for cut in range(1, len(text))
        if text[:cut] in vocab and text[cut:] in vocab
    ]
    added = [{"id": i, "content": t, "special": True} for i, t in enumerate(("<unk>", "<s>", "</s>"))]
    bpe = {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "vocab": vocab}
    return {
        "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": None,
        "model": {**bpe, "merges": [pair for _, _, _, pair in sorted(merges)]},
    }


def test_sentencepiece_from_tokenizer_json(copied: Tiny, tiny: Tiny) -> None:
    """Without tokenizer.model the order of the merges gives scores of the same order."""
    folder = copied("mistral")
    with_model = keys(folder)
    write(folder / "tokenizer.json", tokenizer_json_of(folder / "tokenizer.model"))
    (folder / "tokenizer.model").unlink()
    write(folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})
    found = keys(folder)
    assert (found["model"], found["pre"]) == ("llama", "default")
    assert found["tokens"][:360] == with_model["tokens"][:360]
    assert found["token_type"][3:360] == with_model["token_type"][3:360]
    assert found["token_type"][0] == UNKNOWN
    assert found["add_space_prefix"] is False
    merged = [i for i in range(259, 360) if len(found["tokens"][i]) > 1]
    assert len(merged) > 20
    by_model = sorted(merged, key=lambda i: with_model["scores"][i])
    assert sorted(merged, key=lambda i: found["scores"][i]) == by_model
    write(folder / "tokenizer.json", tokenizer_json_of(tiny("mistral") / "tokenizer.model") | {"normalizer": None})
    with pytest.raises(UserError, match="keeps spaces"):
        keys(folder)


def test_merges_as_strings_and_pairs(tmp_path: Path) -> None:
    def read(merges: list[Any]) -> list[str]:
        vocab = {"a": 0, "b": 1, "ab": 2, "\u0120": 3}
        steps = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
        write(
            tmp_path / "tokenizer.json",
            {"model": {"type": "BPE", "vocab": vocab, "merges": merges}, "pre_tokenizer": steps},
        )
        return read_vocabulary(tmp_path, "llama", 4).merges

    assert read(["a b"]) == ["a b"]
    assert read([["a", "b"]]) == ["a b"]
    assert read([["a b", " "]]) == ["a\u0120b \u0120"]


def test_vocab_json_and_merges_txt(copied: Tiny) -> None:
    folder = copied("qwen2")
    before = keys(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    (folder / "tokenizer.json").unlink()
    write(folder / "vocab.json", tokenizer["model"]["vocab"])
    write(
        folder / "merges.txt", "#version: 0.2\n" + "\n".join(" ".join(m) for m in tokenizer["model"]["merges"]) + "\n"
    )
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["added_tokens_decoder"] = {str(t["id"]): t for t in tokenizer["added_tokens"]}
    write(folder / "tokenizer_config.json", settings)
    assert keys(folder) == before
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        read_vocabulary(folder, "llama", 512)


@pytest.mark.parametrize("token", ["<pad>", "<mask>", "<|x|>", "<\uff5cx\uff5c>", "<unused12>"])
def test_tokens_that_look_special(token: str) -> None:
    assert looks_special(token)
    assert not looks_special("x" + token)


def test_no_tokenizer(copied: Tiny) -> None:
    folder = copied("qwen2")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="no tokenizer"):
        keys(folder)


def test_more_tokens_than_rows(tiny: Tiny) -> None:
    with pytest.raises(UserError, match="100 rows"):
        read_vocabulary(tiny("qwen2"), "qwen2", 100)
    assert len(read_vocabulary(tiny("mistral"), "llama", 350).tokens) == 350


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", {"model": {"type": "WordPiece"}}),
        ("tokenizer.json", {"model": "BPE"}),
        ("tokenizer.json", {"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}, "added_tokens": 3}),
        ("tokenizer_config.json", {"chat_template": [3], "eos_token": 4}),
    ],
)
def test_damaged_files(file: str, content: Any, copied: Tiny) -> None:
    folder = copied("qwen2")
    write(folder / file, content)
    with pytest.raises(UserError) as caught:
        keys(folder)
    assert caught.value.hint


def test_a_tokenizer_model_that_is_no_sentencepiece(copied: Tiny) -> None:
    """Llama 3's folders hold one in a format of its own, beside the tokenizer.json that counts."""
    folder = copied("llama3")
    wanted = keys(folder)
    write(folder / "tokenizer.model", "IQ== 0\nIg== 1\n")
    assert keys(folder) == wanted
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.model is not"):
        keys(folder)


def test_a_token_twice(copied: Tiny) -> None:
    folder = copied("qwen2")
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["added_tokens"].append({"id": 500, "content": "a", "special": False})
    write(folder / "tokenizer.json", tokenizer)
    with pytest.raises(UserError, match="'a' twice"):
        keys(folder)
    tokenizer["added_tokens"][-1]["content"] = "[PAD505]"  # the name that padding would have
    write(folder / "tokenizer.json", tokenizer)
    tokens = keys(folder)["tokens"]
    assert tokens[500] == "[PAD505]"
    assert len(set(tokens)) == len(tokens) == 512


@pytest.mark.parametrize(
    ("normalizer", "fits"),
    [
        ({"type": "NFC"}, True),
        ({"type": "Sequence", "normalizers": []}, True),
        ({"type": "Lowercase"}, False),
        ({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace"}]}, False),
    ],
)
def test_text_that_is_changed_first(normalizer: dict[str, Any], fits: bool, copied: Tiny) -> None:
    folder = copied("qwen2")
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    write(folder / "tokenizer.json", tokenizer | {"normalizer": normalizer})
    if fits:
        assert keys(folder)["model"] == "gpt2"
        return
    with pytest.raises(UserError, match="changes text first"):
        keys(folder)


def test_unigram_is_refused(copied: Tiny, tmp_path: Path) -> None:
    """llama.cpp joins pieces greedily by score; a Unigram model takes the likeliest split of the whole text."""
    folder = copied("mistral")
    text = tmp_path / "text.txt"
    write(text, "The quick brown fox jumps over the lazy dog near the river bank.\n" * 20)
    sentencepiece.SentencePieceTrainer.Train(
        input=str(text),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=60,
        model_type="unigram",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    with pytest.raises(UserError, match="Unigram"):
        keys(folder)
    (folder / "tokenizer.model").unlink()
    write(folder / "tokenizer.json", {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0]]}})
    with pytest.raises(UserError, match="Unigram"):
        keys(folder)


def test_settings_inside_tokenizer_model(tiny: Tiny, tmp_path: Path) -> None:
    for name, space in (("mistral", True), ("gemma2", False)):
        settings = read_settings((tiny(name) / "tokenizer.model").read_bytes())
        assert settings == SentencePieceSettings(BPE, space)
    whole = (tiny("mistral") / "tokenizer.model").read_bytes()
    for end in range(1, len(whole), 501):  # cut anywhere, it is read or refused
        with contextlib.suppress(ValueError):
            read_settings(whole[:end])


@pytest.mark.parametrize(
    ("steps", "space"),
    [
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend"}, {"type": "Replace"}]}}, True),
        ({"normalizer": {"type": "Replace"}}, False),
        ({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}}, True),
        ({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "never"}}, False),
        ({}, False),
    ],
)
def test_a_space_in_front(steps: dict[str, Any], space: bool, copied: Tiny) -> None:
    folder = copied("mistral")
    write(folder / "tokenizer.json", tokenizer_json_of(folder / "tokenizer.model") | {"normalizer": None} | steps)
    assert keys(folder).get("add_space_prefix", True) is space


def test_where_ids_come_from(tmp_path: Path) -> None:
    """The text in tokenizer_config.json, then special_tokens_map.json, then ids in config and generation config."""
    write(tmp_path / "tokenizer_config.json", {"bos_token": {"content": "<s>"}})
    write(tmp_path / "special_tokens_map.json", {"bos_token": "</s>", "pad_token": "<p>"})
    write(tmp_path / "generation_config.json", {"unk_token_id": 3, "eos_token_id": 9, "pad_token_id": 1})
    ids = {"<s>": 0, "</s>": 1, "<p>": 2}
    found = read_special_tokens(tmp_path, {"eos_token_id": [5, 6], "sep_token_id": 50}, None, ids, 10)
    assert found.ids == {"bos": 0, "pad": 2, "unk": 3, "eos": 9}
    several = read_special_tokens(tmp_path, {"bos_token_id": [7], "cls_token_id": [6, 5]}, None, ids, 10)
    assert (several.ids["bos"], several.ids["cls"]) == (0, 6), "of several ends the first, where nothing else is said"
    nested = read_special_tokens(tmp_path, {"text_config": {"eos_token_id": 4}}, None, ids, 10)
    assert nested.ids["eos"] == 4


def test_a_template_that_ends_a_prompt(tmp_path: Path) -> None:
    """When the post-processor ends a text with another token than eos_token, the latter ends a turn."""
    write(tmp_path / "tokenizer_config.json", {"eos_token": "<turn>"})
    single = [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<end>"}}]
    tokenizer = {"post_processor": {"type": "TemplateProcessing", "single": single}, "model": {}}
    found = read_special_tokens(tmp_path, {}, tokenizer, {"<turn>": 4, "<end>": 5}, 10)
    assert (found.ids["eos"], found.ids["eot"], found.add["eos"]) == (5, 4, True)


def test_chat_templates_in_files(tmp_path: Path) -> None:
    assert read_templates(tmp_path, {}) == {}
    assert read_templates(tmp_path, {"chat_template": "config"}) == {"": "config"}
    assert read_templates(tmp_path, {"chat_template": {"default": "a", "rag": "b"}}) == {"": "a", "rag": "b"}
    write(tmp_path / "chat_template.json", {"chat_template": "json"})
    assert read_templates(tmp_path, {}) == {"": "json"}
    write(tmp_path / "chat_template.jinja", "jinja")
    assert read_templates(tmp_path, {}) == {"": "jinja"}
    assert read_templates(tmp_path, {"chat_template": "config"}) == {"": "jinja"}, "as transformers takes them"
    (tmp_path / "additional_chat_templates").mkdir()
    write(tmp_path / "additional_chat_templates" / "tool-use.jinja", "tools")
    assert read_templates(tmp_path, {}) == {"": "jinja", "tool_use": "tools"}


def test_padding_is_no_token(tmp_path: Path) -> None:
    vocabulary = Vocabulary("llama", "default", ["a", "[PAD1]"], [NORMAL, UNUSED])
    assert vocabulary.ids == {"a": 0}


@pytest.mark.slow
def test_smollm2_as_published(smollm2_folder: Path, smollm2_gguf: Path) -> None:
    """The folder's tokenizer comes out as that of the published GGUF, which llama.cpp's converter wrote."""
    with open_checkpoint(smollm2_gguf) as published:
        want = published.metadata
        found = keys(smollm2_folder)
        for key in ("model", "pre", "bos_token_id", "eos_token_id", "padding_token_id", "add_bos_token"):
            assert found[key] == want[f"tokenizer.ggml.{key}"], key
        for key in ("tokens", "token_type", "merges"):
            assert list(found[key]) == list(want[f"tokenizer.ggml.{key}"]), key
