"""llama.cpp as an opponent in this process, through the low-level bindings of `llama-cpp-python`.

Build that package from its source distribution, so that llama.cpp is compiled for this very processor. With
LLAMA_CPP_LIB_PATH the bindings take the libraries of another build.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np

BATCH = 512
CACHE_TYPES = {"F16": 1, "Q4_0": 2, "Q8_0": 8}  # of ggml.h
clock = time.perf_counter  # what seconds are measured with


@llama.llama_log_callback  # type: ignore[untyped-decorator]
def _quiet(_level: int, _text: bytes, _data: object) -> None:
    """llama.cpp writes hundreds of lines while it loads."""


def system_info() -> str:
    """The instruction sets and paths llama.cpp was built with."""
    return str(llama.llama_print_system_info().decode())


class Peer:
    """One model in llama.cpp, with its own context."""

    def __init__(self, path: Path, threads: int, capacity: int, cache: str = "F16") -> None:
        llama.llama_log_set(_quiet, None)
        llama.llama_backend_init()
        self._model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp can not load {path}")
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = capacity, BATCH, BATCH
        params.type_k = params.type_v = CACHE_TYPES[cache]
        params.flash_attn_type = 1  # faster behind a long prompt, and values in codes need it
        params.n_threads = params.n_threads_batch = threads
        self._context = llama.llama_init_from_model(self._model, params)
        self.vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))

    def reset(self) -> None:
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)

    def forget(self, position: int) -> None:
        """Tokens from a position on."""
        llama.llama_memory_seq_rm(llama.llama_get_memory(self._context), 0, position, -1)

    def run(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens to the context; float32 [vocab], the logits after the last one."""
        for start in range(0, len(tokens), BATCH):
            piece = np.ascontiguousarray(tokens[start : start + BATCH], np.int32)
            batch = llama.llama_batch_get_one(piece.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)), len(piece))
            if llama.llama_decode(self._context, batch):
                raise RuntimeError("llama_decode failed")
        logits = llama.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(logits, shape=(self.vocab,))

    def prompt_seconds(self, tokens: np.ndarray) -> float:
        """Seconds for a prompt in an empty context."""
        self.reset()
        start = clock()
        self.run(tokens)
        return clock() - start

    def decode_seconds(self, tokens: np.ndarray) -> list[float]:
        """Seconds of each token, one after the other, behind what the context holds."""
        times = []
        for i in range(len(tokens)):
            start = clock()
            self.run(tokens[i : i + 1])
            times.append(clock() - start)
        return times

    def close(self) -> None:
        llama.llama_free(self._context)
        llama.llama_model_free(self._model)
