"""Text becomes the tokens that llama.cpp makes of it, from the same file."""

from __future__ import annotations

import ctypes
import importlib.util
import random
from pathlib import Path

import pytest

from core.checkpoint import open_checkpoint
from core.runtime.tokenizer import open_text

pytestmark = pytest.mark.interop

SAMPLES = [
    "",
    " ",
    "Hello world",
    "  two  spaces ",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈",
    "中文字符 日本語 한국어",
    "a\t b\n\n\n c\r\n  \n d",
    "1234567 3.14159 0x1F",
    "<|im_start|>user\nhi<|im_end|>",
    "x<eos>y",
    "<start_of_turn>user\nhi<end_of_turn>\n",
    "x<unused5>y",
    "naïve café e\u0301",
    "don't WON'T I'LL",
    "\u2581under\u2581",
    "\u200b\u00a0\ufeffz",
    "\x01a",
    "<h1>t</h1>",
    "<0x0A>",
    "𝒳𝒴 𐍈",
    "a" * 300,
    " " * 77,
    "\n" * 40,
]


class _Params(ctypes.Structure):
    """llama_model_params without its fields: longer than it is, and only ever handed back as it came."""

    _fields_ = (("bytes", ctypes.c_uint8 * 512),)


class Tokens:
    """llama.cpp's own tokenizer of a GGUF, out of the library inside the package `xllamacpp`."""

    def __init__(self, path: Path) -> None:
        spec = importlib.util.find_spec("xllamacpp")
        assert spec is not None
        assert spec.origin is not None
        import xllamacpp  # noqa: F401 - it loads what its library needs

        self._library = library = ctypes.CDLL(str(next(Path(spec.origin).parent.glob("xllamacpp*.so"))))
        library.llama_model_default_params.restype = _Params
        library.llama_model_load_from_file.argtypes = [ctypes.c_char_p, _Params]
        library.llama_model_load_from_file.restype = ctypes.c_void_p
        library.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
        library.llama_model_get_vocab.restype = ctypes.c_void_p
        library.llama_model_free.argtypes = [ctypes.c_void_p]
        library.llama_tokenize.argtypes = [
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_int32,
            ctypes.POINTER(ctypes.c_int32),
            ctypes.c_int32,
            ctypes.c_bool,
            ctypes.c_bool,
        ]
        self._model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
        assert self._model

    def encode(self, text: str, parse_special: bool) -> list[int]:
        data = text.encode()
        room = len(data) + 16
        found = (ctypes.c_int32 * room)()
        vocabulary = self._library.llama_model_get_vocab(self._model)
        count = self._library.llama_tokenize(vocabulary, data, len(data), found, room, True, parse_special)
        return list(found[:count])

    def close(self) -> None:
        self._library.llama_model_free(self._model)


def compare(path: Path) -> None:
    rng = random.Random(1)
    letters = "ab 1\n\t<>|_é中🙂\u2581'.,-\u0301{}()  "
    samples = SAMPLES + ["".join(rng.choice(letters) for _ in range(rng.randrange(1, 60))) for _ in range(300)]
    with open_checkpoint(path) as checkpoint:
        text = open_text(checkpoint)
    theirs = Tokens(path)
    try:
        for sample in samples:
            for parse in (False, True):
                assert text.encode(sample, parse_special=parse) == theirs.encode(sample, parse), (sample, parse)
    finally:
        theirs.close()


def test_byte_level(smollm2_gguf: Path) -> None:
    compare(smollm2_gguf)


@pytest.mark.slow
def test_sentencepiece(gemma3_gguf: Path) -> None:
    compare(gemma3_gguf)
