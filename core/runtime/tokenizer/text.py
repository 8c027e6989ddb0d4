"""Text into tokens and back, the tokens that start and end it, and chats: what the runtime knows of language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from core.errors import UserError
from core.runtime.tokenizer.stream import Stream
from core.runtime.tokenizer.template import Message, render
from core.runtime.tokenizer.vocabulary import Vocabulary

# Names that end a turn or a text in every model that has them as tokens, whatever its settings say.
# Sources: the chat templates of Llama 3, ChatML models, Phi-3, Gemma, GPT-NeoX, Granite, Kimi, DeepSeek, SmolVLM.
END_NAMES = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<end_of_utterance>",
)


@dataclass(frozen=True)
class SpecialIds:
    """Token ids, None where the model has none. ends: every token that ends a text or a turn.

    before, after: what is put around a text that is not written as a chat.
    """

    bos: int | None = None
    eos: int | None = None
    eot: int | None = None
    pad: int | None = None
    unk: int | None = None
    ends: frozenset[int] = frozenset()
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Text:
    """The tokenizer of one checkpoint. template: its chat template, '' without one."""

    vocabulary: Vocabulary
    ids: SpecialIds
    template: str = ""
    names: Mapping[str, str] = field(default_factory=dict)  # 'bos_token' … → text, for the template

    @property
    def count(self) -> int:
        """Tokens in the vocabulary; the embedding may have more rows."""
        return self.vocabulary.count

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        add_special: with the tokens that the model wants around it. parse_special: '<|im_end|>' and the like in the
        text are those tokens; otherwise they are text as any other, so that a document can not steer the model.
        """
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a pair is no character
        ids = self.vocabulary.encode(text, parse_special) if text else []
        if not add_special:
            return ids
        before = list(self.ids.before)
        if parse_special and before and ids[: len(before)] == before:
            before = []  # already written out
        return [*before, *ids, *self.ids.after]

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        """The text of a whole sequence. skip_special: leave out tokens that are no text."""
        stream = self.stream(skip_special=skip_special)
        return "".join([*map(stream.push, tokens), stream.finish()])

    def stream(self, after: Sequence[int] = (), skip_special: bool = True) -> Stream:
        """Decodes the tokens that follow `after`, one by one.

        A SentencePiece model writes a space in front of a text; the one in front of an answer is dropped, the one
        between a prompt and its continuation is not.
        """
        starts = not after or after[-1] in self.vocabulary.special
        return Stream(self._text_piece if skip_special else self.vocabulary.piece, starts and self._space_in_front)

    def chat(self, messages: Sequence[Message]) -> str:
        """The chat as the model was trained to read it, up to where the assistant speaks. Raises UserError."""
        if not self.template:
            raise UserError(
                "This model has no chat template.",
                "Give a prompt instead of a chat; its text is continued as it stands.",
            )
        if not messages:
            raise UserError("The chat has no message.", "Write one.")
        return render(self.template, messages, self.names)

    def chat_ids(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of `chat`; the start token is added when the template leaves it to the tokenizer."""
        ids = self.encode(self.chat(messages), add_special=False, parse_special=True)
        before = list(self.ids.before)
        return ids if ids[: len(before)] == before else [*before, *ids]

    def token_text(self, token: int) -> str:
        """One token for people: its text when it is whole, else as the vocabulary writes it ('<0xF0>')."""
        try:
            return self.vocabulary.piece(token).decode()
        except UnicodeDecodeError:
            return self.vocabulary.token_text(token)

    @property
    def _space_in_front(self) -> bool:
        return self.vocabulary.space_in_front

    def _text_piece(self, token: int) -> bytes:
        return b"" if token in self.vocabulary.special else self.vocabulary.piece(token)


def special_ids(
    vocabulary: Vocabulary,
    found: Mapping[str, int],
    ends: Sequence[int] = (),
    before: Sequence[int] = (),
    after: Sequence[int] = (),
) -> SpecialIds:
    """found: 'bos', 'eos', 'eot', 'pad', 'unk' → id. ends: more that the settings name."""
    known = {kind: i for kind, i in found.items() if i >= 0}
    named = {name: i for name in END_NAMES if (i := vocabulary.find(name)) is not None}
    if "<|return|>" in named and "<|call|>" in named:
        named.pop("<|end|>", None)  # there it parts the messages of one turn
    if named.get("</s>") not in vocabulary.special:
        named.pop("</s>", None)  # Gemma has it as a word, for struck-out text in HTML
    stops = {known[kind] for kind in ("eos", "eot") if kind in known} | set(ends) | set(named.values())
    return SpecialIds(
        known.get("bos"),
        known.get("eos"),
        known.get("eot"),
        known.get("pad"),
        known.get("unk"),
        frozenset(stops),
        tuple(before),
        tuple(after),
    )


def token_names(vocabulary: Vocabulary, ids: SpecialIds) -> dict[str, str]:
    """What templates call the special tokens → their text; '' for those that the model does not have."""
    kinds = {"bos": ids.bos, "eos": ids.eos, "pad": ids.pad, "unk": ids.unk}
    return {f"{kind}_token": "" if i is None else vocabulary.token_text(i) for kind, i in kinds.items()}
