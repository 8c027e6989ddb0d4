"""The tokenizer that a GGUF carries in its metadata: byte-level BPE ('gpt2') or SentencePiece ('llama')."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core.errors import UserError
from core.models.special_tokens import ID_KEYS
from core.models.tokenizer import TokenType
from core.runtime.tokenizer.json_vocabulary import from_merges
from core.runtime.tokenizer.piece_vocabulary import from_scores
from core.runtime.tokenizer.text import Text, special_ids, token_names
from core.runtime.tokenizer.vocabulary import Vocabulary

_AGAIN = "Download or convert the file again."
_MORE_KEYS = {"eom": "tokenizer.ggml.eom_token_id"}
# Ids of a 'llama' file that does not name them, by llama.cpp.
_LLAMA_IDS = {"bos": 1, "eos": 2, "unk": 0}
# Splitters whose files want a start token though they do not say so, by llama.cpp.
_STARTED = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"}
)


def open_gguf(metadata: Mapping[str, Any]) -> Text:
    """Raises UserError when there is no tokenizer, it is of an unknown kind, or its lists contradict each other."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(kind, str) or not isinstance(tokens, list) or not tokens:
        raise UserError(
            "The file has no tokenizer in it.", "Choose a GGUF of a whole language model, or convert the folder again."
        )
    splitter = metadata.get("tokenizer.ggml.pre")
    splitter = splitter if isinstance(splitter, str) and splitter else "default"
    types = _types(metadata, len(tokens))
    found = _ids(metadata, len(tokens), _LLAMA_IDS if kind == "llama" else {})
    vocabulary: Vocabulary
    if kind == "gpt2":
        merges = metadata.get("tokenizer.ggml.merges")
        if not isinstance(merges, list):
            raise UserError("The tokenizer in this file has no merges.", _AGAIN)
        vocabulary = from_merges(tokens, types, merges, splitter)
    elif kind == "llama":
        space = metadata.get("tokenizer.ggml.add_space_prefix")
        scores = _scores(metadata, len(tokens))
        vocabulary = from_scores(tokens, types, scores, found.get("unk"), space if isinstance(space, bool) else True)
    else:
        raise UserError(
            f"The file has a tokenizer of the kind {kind[:40]!r}, which is not known here.",
            "Choose a model with a byte-level BPE or SentencePiece tokenizer.",
        )
    starts = _flag(metadata, "bos", kind == "llama" or splitter in _STARTED)
    before = [found["bos"]] if starts and "bos" in found else []
    after = [found["eos"]] if _flag(metadata, "eos", False) and "eos" in found else []
    more = [found["eom"]] if "eom" in found else []
    ids = special_ids(vocabulary, found, more, before, after)
    template = metadata.get("tokenizer.chat_template")
    return Text(vocabulary, ids, template if isinstance(template, str) else "", token_names(vocabulary, ids))


def _is_id(value: Any, count: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count


def _ids(metadata: Mapping[str, Any], count: int, default: Mapping[str, int]) -> dict[str, int]:
    given = {kind: metadata.get(key, default.get(kind)) for kind, key in {**ID_KEYS, **_MORE_KEYS}.items()}
    return {kind: value for kind, value in given.items() if _is_id(value, count)}


def _flag(metadata: Mapping[str, Any], kind: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.add_{kind}_token")
    return value if isinstance(value, bool) else default


def _types(metadata: Mapping[str, Any], count: int) -> list[int]:
    given = metadata.get("tokenizer.ggml.token_type")
    if given is None:
        return [int(TokenType.NORMAL)] * count
    if not isinstance(given, np.ndarray) or len(given) < count or given.dtype.kind not in "iu":
        raise UserError("The tokenizer in this file has fewer token types than tokens.", _AGAIN)
    found: list[int] = given[:count].tolist()
    return found


def _scores(metadata: Mapping[str, Any], count: int) -> Sequence[float]:
    given = metadata.get("tokenizer.ggml.scores")
    if given is None:
        return [0.0] * count
    if not isinstance(given, np.ndarray) or len(given) < count or given.dtype.kind not in "iuf":
        raise UserError("The tokenizer in this file has fewer scores than tokens.", _AGAIN)
    found: list[float] = np.nan_to_num(given[:count].astype(np.float64)).clip(-3e38, 3e38).tolist()
    return found
