"""llama.cpp, as the package `xllamacpp` brings it: load a GGUF on the CPU, greedy text and next-token probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xllamacpp


class Llama:
    """One loaded model. llama.cpp's own server runs inside this process and is asked through functions, not a port."""

    def __init__(self, path: Path, context: int = 512, threads: int = 2) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        params.warmup = False
        params.fit_params = False  # it would choose another context length by the memory that is free
        params.verbosity = -1
        self._server = xllamacpp.Server(params)  # raises RuntimeError when llama.cpp refuses the file

    def complete(self, prompt: str, tokens: int) -> str:
        """Greedy continuation of raw text; special tokens written out in the prompt are taken as such."""
        return self._ask(prompt, tokens)["text"]

    def logprobs(self, prompt: str, top: int = 20) -> dict[int, float]:
        """The `top` likeliest next tokens by id, with natural log-probabilities before any sampling."""
        (first,) = self._ask(prompt, 1, n_probs=top)["logprobs"]["content"]
        return {entry["id"]: entry["logprob"] for entry in first["top_logprobs"]}

    def chat(self, question: str, tokens: int, system: str = "") -> str:
        """Greedy answer to one question through the file's own chat template."""
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": question})
        answer = self._server.handle_chat_completions(
            {"messages": messages, "max_tokens": tokens, "temperature": 0, "cache_prompt": False}
        )
        return checked(answer)["message"]["content"]

    def _ask(self, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
        request = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "cache_prompt": False} | more
        return checked(self._server.handle_completions(request))


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """The first choice of an answer; an error that the server reports fails the test with its own words."""
    assert "choices" in answer, answer
    return answer["choices"][0]


def generate(path: Path, prompt: str, tokens: int) -> str:
    """Greedy continuation of `prompt` by the model in `path`."""
    return Llama(path).complete(prompt, tokens)
