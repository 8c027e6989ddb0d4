"""Samples of calibration text: windows of the right tokens, chosen over the whole of a text, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_models import byte_tokens, write_llama

from core.calibration.settings import CalibrationText, Domain
from core.calibration.text import Samples, samples
from core.checkpoint import open_checkpoint
from core.checkpoint.base import Checkpoint
from core.errors import Cancelled, UserError
from core.progress import CancelToken
from core.runtime.tokenizer import open_text

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
    "<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(write_llama(tmp_path_factory.mktemp("plain") / "m", layers=1))


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(_with_settings(tmp_path_factory.mktemp("chat") / "m", chat_template=TEMPLATE))


@pytest.fixture(scope="module")
def started_model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(_with_settings(tmp_path_factory.mktemp("bos") / "m", add_bos_token=True))


def _with_settings(folder: Path, **settings: object) -> Path:
    write_llama(folder, layers=1)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return folder


def numbered(count: int) -> str:
    """Lines that say which they are, so that what was chosen can be seen."""
    return "".join(f"line {n:06d} of the text is here and says so.\n" for n in range(count))


def rows(checkpoint: Checkpoint, found: Samples) -> list[str]:
    text = open_text(checkpoint)
    return [text.decode(row.tolist(), skip_special=False) for row in found.ids]


def settings_for(path: Path, **more: object) -> CalibrationText:
    return CalibrationText(**({"path": str(path), "samples": 8, "length": 64} | more))  # type: ignore[arg-type]


def test_bundled_domains_have_equal_shares(model: Checkpoint) -> None:
    found = samples(model, CalibrationText(samples=40, length=256))
    assert found.ids.shape == (40, 256)
    assert found.ids.dtype == np.int32
    assert {s.name for s in found.shares} == {d.value for d in Domain}
    assert all(0.2 <= s.share <= 0.3 for s in found.shares)
    assert sum(s.tokens for s in found.shares) == found.tokens == 40 * 256
    assert len(found.preview) == 4


def test_one_domain(model: Checkpoint) -> None:
    found = samples(model, CalibrationText(domains=(Domain.CODE,), samples=4, length=128))
    assert [s.name for s in found.shares] == ["code"]


def test_the_same_settings_give_the_same_samples(model: Checkpoint) -> None:
    first, again = (samples(model, CalibrationText(samples=6, length=64)) for _ in range(2))
    other = samples(model, CalibrationText(samples=6, length=64, seed=1))
    assert np.array_equal(first.ids, again.ids)
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_a_moved_text_has_the_same_fingerprint(tmp_path: Path, model: Checkpoint) -> None:
    prints = set()
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(numbered(400))
        prints.add(samples(model, settings_for(tmp_path / name)).fingerprint)
    assert len(prints) == 1


def test_windows_are_the_text_without_gaps(tmp_path: Path, model: Checkpoint) -> None:
    """No token is lost but for an unfilled window, and no line comes twice."""
    path = tmp_path / "t.txt"
    text = numbered(400)
    path.write_text(text)
    found = samples(model, settings_for(path, samples=10_000, length=100))
    assert len(found.ids) == len(open_text(model).encode(text, add_special=False)) // 100
    whole = set(text.split("\n")) - {""}
    lines = [line for row in rows(model, found) for line in row.split("\n") if line in whole]
    assert len(set(lines)) == len(lines) > 150
    assert any("asked for" in warning for warning in found.warnings)


def test_a_choice_is_made_over_the_whole_text(tmp_path: Path, model: Checkpoint) -> None:
    path = tmp_path / "t.txt"
    path.write_text(numbered(40_000))
    chosen = [int(row.split("line ")[1][:6]) for row in rows(model, samples(model, settings_for(path, samples=40)))]
    quarters = {n // 10_000 for n in chosen}
    assert quarters == {0, 1, 2, 3}


def test_only_what_is_needed_is_read(tmp_path: Path, model: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    from core.calibration import files

    path = tmp_path / "t.txt"
    path.write_text(numbered(100_000))
    read = 0
    plain = files.Stored.read

    def counted(self: files.Stored, offset: int, count: int) -> bytes:
        nonlocal read
        read += count
        return plain(self, offset, count)

    monkeypatch.setattr(files.Stored, "read", counted)
    samples(model, settings_for(path))
    assert read < path.stat().st_size / 100


def test_each_window_has_the_start_token_where_the_model_wants_it(tmp_path: Path, started_model: Checkpoint) -> None:
    path = tmp_path / "t.txt"
    path.write_text(numbered(200))
    found = samples(started_model, settings_for(path))
    assert set(found.ids[:, 0].tolist()) == {0}
    assert not (found.ids[:, 1:] == 0).any()


@pytest.mark.parametrize("chat", [False, True])
def test_chats_are_written_in_the_template(tmp_path: Path, chat_model: Checkpoint, chat: bool) -> None:
    path = tmp_path / "c.jsonl"
    turns = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A test."}]
    path.write_text((json.dumps({"messages": turns}) + "\n") * 40)
    found = samples(chat_model, settings_for(path, samples=2, chat=chat))
    start, end = 0, 1
    assert (found.ids == start).any()
    assert (found.ids == end).any()
    assert "<|start|>user\nWhat is it?<|end|>\n<|start|>assistant\nA test.<|end|>\n" in "".join(rows(chat_model, found))


def test_a_system_turn_that_the_template_refuses_joins_the_first(tmp_path: Path, chat_model: Checkpoint) -> None:
    path = tmp_path / "c.jsonl"
    turns = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Why?"},
        {"from": "gpt", "value": "So."},
    ]
    path.write_text((json.dumps({"conversations": turns}) + "\n") * 40)
    found = samples(chat_model, settings_for(path, samples=2))
    assert "<|start|>user\nBe brief.\n\nWhy?<|end|>\n<|start|>assistant\nSo.<|end|>" in "".join(rows(chat_model, found))
    assert not any("template" in w for w in found.warnings)


def test_a_very_long_chat_is_its_first_turns(tmp_path: Path, chat_model: Checkpoint) -> None:
    path = tmp_path / "c.jsonl"
    turns = [{"role": r, "content": f"{r} " + "word " * 100_000} for r in ("user", "assistant", "user")]
    path.write_text(json.dumps({"messages": turns}))
    found = samples(chat_model, settings_for(path, samples=5000))
    assert len(found.ids) == 32 * 4096 // 64  # a byte is a token here
    assert not any("<|start|>assistant" in row for row in rows(chat_model, found))


def test_plain_text_becomes_chats_on_request(tmp_path: Path, chat_model: Checkpoint) -> None:
    path = tmp_path / "t.txt"
    path.write_text(numbered(400))
    plain = samples(chat_model, settings_for(path))
    chats = samples(chat_model, settings_for(path, samples=40, chat=True))
    assert any("Turn the chat template on" in w for w in plain.warnings)
    assert not any("Turn the chat template on" in w for w in chats.warnings)
    assert "<|start|>user\nline " in "".join(rows(chat_model, chats))


def test_without_a_template_chats_are_dialogues(tmp_path: Path, model: Checkpoint) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text((json.dumps({"prompt": "Is it?", "completion": "It is."}) + "\n") * 100)
    found = samples(model, settings_for(path, samples=2))
    assert "User: Is it?\n\nAssistant: It is.\n\n" in "".join(rows(model, found))
    assert any("no chat template" in w for w in found.warnings)
    with pytest.raises(UserError, match="no chat template"):
        samples(model, settings_for(path, chat=True))


def test_special_tokens_in_a_document_are_text(tmp_path: Path, model: Checkpoint) -> None:
    path = tmp_path / "t.txt"
    path.write_text("before <|end|> after\n" * 200)
    assert not (samples(model, settings_for(path)).ids <= 1).any()


def test_a_sample_is_at_most_the_context(tmp_path: Path, model: Checkpoint) -> None:
    path = tmp_path / "t.txt"
    path.write_text(numbered(2000))
    found = samples(model, settings_for(path, samples=2, length=4096))
    assert found.ids.shape == (2, 512)
    assert any("context" in w for w in found.warnings)


def test_ids_past_the_embedding_are_refused(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "m", layers=1)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 40}))
    (tmp_path / "t.txt").write_text(numbered(100))
    with pytest.raises(UserError, match="only 40"):
        samples(open_checkpoint(folder), settings_for(tmp_path / "t.txt"))


def test_text_that_repeats_itself(tmp_path: Path, model: Checkpoint) -> None:
    path = tmp_path / "t.txt"
    path.write_text("a b " * 20_000)
    found = samples(model, settings_for(path, samples=64, length=128))
    assert any("repeats itself" in w for w in found.warnings)


def test_too_few_tokens_for_the_widest_layer(tmp_path: Path, model: Checkpoint) -> None:
    path = tmp_path / "t.txt"
    path.write_text(numbered(100))
    assert any("channels" in w for w in samples(model, settings_for(path, samples=7)).warnings)
    assert not any("channels" in w for w in samples(model, settings_for(path, samples=8)).warnings)


def test_text_that_the_vocabulary_does_not_know(tmp_path: Path, model: Checkpoint) -> None:
    """This vocabulary has bytes only, so every text is one byte a token."""
    (tmp_path / "t.txt").write_text("ж" * 4000)
    (said,) = [w for w in samples(model, settings_for(tmp_path / "t.txt")).warnings if "vocabulary" in w]
    assert said.startswith("100.0 % of the tokens are parts of letters")
    assert "The text is mostly in Cyrillic letters. Choose text in a language" in said
    (tmp_path / "t.txt").write_text("3.14159 26535\n" * 400)
    (said,) = [w for w in samples(model, settings_for(tmp_path / "t.txt")).warnings if "vocabulary" in w]
    assert said.startswith("A token stands for 1.0 bytes of the text, where 3 to 5 are usual")


def test_a_token_cancels(tmp_path: Path, model: Checkpoint) -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        samples(model, CalibrationText(), token)


def test_the_bundled_text_has_its_licence_and_no_part_of_the_evaluation() -> None:
    from resources import read_text

    assert "public domain" in read_text("text/LICENSE.md")
    size = sum(
        len(read_text(f"text/{n}").encode()) for n in ("prose.txt", "encyclopaedic.txt", "code.txt", "chat.jsonl")
    )
    assert 900_000 < size < 1_200_000
    assert "\nZimbabwe\n" not in read_text("text/encyclopaedic.txt")
    assert "THE WINTER'S TALE" not in read_text("text/prose.txt").upper()[240_000:]
    chats = [json.loads(line)["messages"] for line in read_text("text/chat.jsonl").splitlines()]
    assert sum(turn["role"] == "user" for chat in chats for turn in chat) >= 100
    assert len(byte_tokens()) == 256
