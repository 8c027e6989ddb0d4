"""The tokenizer of a Hugging Face folder: tokenizer.json, else tokenizer.model, and the side files around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.models.side_files import read_json
from core.models.special_tokens import read_special_tokens
from core.models.tokenizer import TokenType, looks_special
from core.runtime.tokenizer import json_vocabulary
from core.runtime.tokenizer.json_vocabulary import JsonVocabulary
from core.runtime.tokenizer.piece_vocabulary import PieceVocabulary
from core.runtime.tokenizer.text import Text, special_ids, token_names
from core.runtime.tokenizer.vocabulary import Vocabulary


def open_folder(folder: Path, config: Mapping[str, Any]) -> Text:
    """config: the checkpoint's config.json. Raises UserError when there is no tokenizer that can be read."""
    settings = json_vocabulary.read_settings(folder / "tokenizer.json")
    vocabulary: JsonVocabulary | PieceVocabulary
    if settings is not None:
        vocabulary = json_vocabulary.from_file(folder / "tokenizer.json", settings)
    elif (folder / "tokenizer.model").is_file():
        vocabulary = from_sentencepiece(folder)
    else:
        raise UserError(
            "The folder has no tokenizer (tokenizer.json or tokenizer.model).",
            "Download the tokenizer files of the model into the same folder.",
        )
    try:
        special = read_special_tokens(folder, config, settings, _Ids(vocabulary), vocabulary.count)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            "The tokenizer's side files hold a list or text where something else belongs.",
            "Download the tokenizer files again from the model's page.",
        ) from error
    before, after = _around(vocabulary, special.add, special.ids)
    generation = read_json(folder / "generation_config.json")
    nested = config.get("text_config")
    sources = (config, nested if isinstance(nested, Mapping) else {}, generation)
    ends = [i for source in sources for i in _numbers(source.get("eos_token_id"))]
    ids = special_ids(vocabulary, special.ids, ends, before, after)
    return Text(vocabulary, ids, special.templates.get("", ""), token_names(vocabulary, ids))


class _Ids(dict[str, int]):
    """Id by text, asked of the vocabulary one at a time: a list of all would take as long as reading the file."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._vocabulary = vocabulary

    def get(self, text: str, default: Any = None) -> Any:
        found = self._vocabulary.find(text)
        return default if found is None else found


def _numbers(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0]


def _around(
    vocabulary: JsonVocabulary | PieceVocabulary, add: Mapping[str, bool], ids: Mapping[str, int]
) -> tuple[Sequence[int], Sequence[int]]:
    """What really runs, where a post-processor says so; else what the settings ask for."""
    if isinstance(vocabulary, JsonVocabulary):
        before, after = vocabulary.around()
        if before or after:
            return before, after
    sentencepiece = isinstance(vocabulary, PieceVocabulary)  # these models were all trained with a start token
    before = [ids["bos"]] if add.get("bos", sentencepiece) and "bos" in ids else []
    return before, [ids["eos"]] if add.get("eos") and "eos" in ids else []


def from_sentencepiece(folder: Path) -> PieceVocabulary:
    """tokenizer.model with the tokens that the side files add. Raises UserError when it is no SentencePiece model."""
    from sentencepiece import SentencePieceProcessor

    from core.models.sentencepiece_file import read_settings

    processor = SentencePieceProcessor()
    try:
        data = (folder / "tokenizer.model").read_bytes()
        space_in_front = read_settings(data).space_in_front
        processor.LoadFromSerializedProto(data)
    except (OSError, RuntimeError, ValueError) as e:
        raise UserError(
            "tokenizer.model is not a SentencePiece model.", "Download the file again from the model's page."
        ) from e
    numbers = list(range(processor.GetPieceSize()))
    tokens: list[str] = processor.IdToPiece(numbers)
    types = [int(TokenType.NORMAL)] * len(numbers)
    for test, kind in (
        (processor.IsByte, TokenType.BYTE),
        (processor.IsUnused, TokenType.UNUSED),
        (processor.IsControl, TokenType.CONTROL),
        (processor.IsUnknown, TokenType.UNKNOWN),
    ):
        types = [int(kind) if yes else old for yes, old in zip(test(numbers), types, strict=True)]
    for number, content, special in _added(folder):
        if 0 <= number < len(tokens) + 4096:
            missing = number + 1 - len(tokens)
            tokens += [""] * missing
            types += [int(TokenType.UNUSED)] * missing
            tokens[number] = content
            types[number] = int(TokenType.CONTROL if special or looks_special(content) else TokenType.USER_DEFINED)
    return PieceVocabulary(processor, tokens, types, space_in_front)


def _added(folder: Path) -> list[tuple[int, str, bool]]:
    """Id, text and whether it steers, of the tokens that were added to the trained ones."""
    found = [
        (number, content, False)
        for content, number in read_json(folder / "added_tokens.json").items()
        if isinstance(number, int)
    ]
    decoder = read_json(folder / "tokenizer_config.json").get("added_tokens_decoder")
    for number, token in (decoder if isinstance(decoder, Mapping) else {}).items():
        if str(number).isdigit() and isinstance(token, Mapping) and isinstance(token.get("content"), str):
            found.append((int(number), token["content"], bool(token.get("special"))))
    return found
