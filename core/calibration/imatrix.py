"""Importance matrices: how large each input channel of each weight is, as mean squares over a calibration text.

Tensors have GGUF's names, so that one matrix serves a model in any container, and llama.cpp's files (`imatrix_file`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from core.checkpoint.base import Checkpoint, Container
from core.errors import UserError
from core.models.gguf_names import GGUFName, gguf_name
from core.tensor_info import TensorInfo
from core.units import format_count

_EXPERT = re.compile(r"^(blk\.\d+\.ffn_(?:gate|up|down))\.(\d+)\.weight$")  # as `core.runtime.decoder` names them
# Weights that meet the same input: one stands for the other where a model has them fused, or apart.
_SAME_INPUT = {
    "attn_qkv": ("attn_q", "attn_k", "attn_v"),
    "attn_q": ("attn_qkv",),
    "attn_k": ("attn_qkv",),
    "attn_v": ("attn_qkv",),
    "ffn_gate": ("ffn_up",),
    "ffn_up": ("ffn_gate",),
    "ffn_gate_exps": ("ffn_gate_up_exps", "ffn_up_exps"),
    "ffn_up_exps": ("ffn_gate_up_exps", "ffn_gate_exps"),
    "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps"),
}


@dataclass(frozen=True, eq=False)
class Importance:
    """Of one weight. sums: float32 [E, K], Σx² of each input channel; counts: int64 [E], over how many tokens.

    E is the number of experts, 1 for a dense weight. Files of llama.cpp's older format have E = 1 for experts too:
    their values stand one after the other, and `ImportanceMatrix.means` parts them.
    """

    sums: np.ndarray
    counts: np.ndarray

    @property
    def unseen(self) -> int:
        """Experts that no token was sent to."""
        return int((self.counts == 0).sum())

    @property
    def means(self) -> np.ndarray:
        """Mean squares, float32 [E, K]. An expert without tokens has the mean over all others' tokens; all of them
        without any, ones."""
        counts = self.counts[:, None].astype(np.float64)
        if not counts.any():
            return np.ones_like(self.sums, np.float32)
        sums = self.sums.astype(np.float64)
        others = sums[self.counts > 0].sum(0) / counts.sum()
        return np.where(counts > 0, sums / np.maximum(counts, 1), others).astype(np.float32)


@dataclass(frozen=True, eq=False)
class ImportanceMatrix:
    """entries: by GGUF tensor name ('blk.0.attn_q.weight', 'blk.0.ffn_up_exps.weight').

    chunks, chunk_size: of tokens, by which it was measured; chunk_size is 0 where a file does not say. datasets: names
    of the texts. notes: what was found odd while it was read.
    """

    entries: Mapping[str, Importance]
    chunks: int = 0
    chunk_size: int = 512
    datasets: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def means(self, name: str, experts: int, columns: int) -> np.ndarray | None:
        """Mean squares of a weight's input channels, float32 [experts, columns]; None when it has none.

        A weight that is fused with others here and not there, or the other way round, has those of the shared input.
        Raises UserError when the sizes are others.
        """
        entry = self._entry(name, experts)
        if entry is None:
            return None
        means = entry.means
        if means.size == experts * columns and len(means) in (1, experts):
            return means.reshape(experts, columns)
        raise UserError(
            f"The importance matrix has {format_count(means.size)} values for {name}, where the model has "
            f"{format_count(experts * columns)} input channels.",
            "Use the matrix that was computed for this model.",
        )

    def _entry(self, name: str, experts: int = 0) -> Importance | None:
        if name in self.entries:
            return self.entries[name]
        head, _, kind = name.rpartition(".")
        at, _, part = head.rpartition(".")
        for other in _SAME_INPUT.get(part, ()):
            if found := self.entries.get(f"{at}.{other}.{kind}"):
                return found
        if match := _EXPERT.match(name):
            return self._of_stack(match[1], int(match[2]))
        return self._stacked(head.removesuffix("_exps"), experts) if part.endswith("_exps") else None

    def _of_stack(self, stack: str, expert: int) -> Importance | None:
        """Of one expert that is a tensor of its own, as old files have them, where the matrix has the stack."""
        found = self.entries.get(f"{stack}_exps.weight")
        if found is None or expert >= len(found.counts):
            return None
        return Importance(found.means[expert : expert + 1], np.ones(1, np.int64))

    def _stacked(self, stack: str, experts: int) -> Importance | None:
        """The other way round: each expert has an entry of its own, and those that are missing met no token."""
        found = {int(m[2]): e for n, e in self.entries.items() if (m := _EXPERT.match(n)) and m[1] == stack}
        if not found or len({e.sums.size for e in found.values()}) > 1:
            return None
        count = max(experts, max(found) + 1)
        sums = np.zeros((count, next(iter(found.values())).sums.size), np.float32)
        counts = np.zeros(count, np.int64)
        for expert, entry in found.items():
            sums[expert], counts[expert] = entry.sums.reshape(-1), entry.counts.sum()
        return Importance(sums, counts)

    def for_checkpoint(self, checkpoint: Checkpoint, architecture: str) -> dict[str, np.ndarray]:
        """Mean squares by the checkpoint's own tensor names, float32 [experts, K]; one expert's tensor has [1, K].

        Weights without an entry (the embedding, often the head) are left out. Raises UserError when a size differs,
        and when no weight of the model has an entry.
        """
        stacks = self._experts(checkpoint, architecture)
        found = {}
        for tensor in checkpoint.tensors:
            target = _target(checkpoint, tensor, architecture)
            if target is None or len(tensor.shape) < 2:
                continue
            experts = stacks.get(target.name, 1)
            means = self.means(target.name, experts, tensor.shape[-1])
            if means is not None:
                found[tensor.name] = means if target.expert is None else means[target.expert : target.expert + 1]
        if not found:
            raise UserError(
                "The importance matrix has none of this model's weights.", "Use the matrix computed for this model."
            )
        return found

    def _experts(self, checkpoint: Checkpoint, architecture: str) -> dict[str, int]:
        """How many experts each stack has, whether they are stacked in the checkpoint or not."""
        sizes: dict[str, int] = {}
        for tensor in checkpoint.tensors:
            target = _target(checkpoint, tensor, architecture)
            if target is not None and target.stacked:
                count = tensor.shape[0] if target.expert is None else target.expert + 1
                sizes[target.name] = max(sizes.get(target.name, 0), count)
        return sizes

    @property
    def remarks(self) -> tuple[str, ...]:
        """All that a person should know of it, each sentence once."""
        return tuple(dict.fromkeys((*self.notes, *self.about_experts())))

    def about_experts(self) -> list[str]:
        """One sentence for each stack with experts that no token reached, how they are handled included."""
        return [
            f"{format_count(entry.unseen)} of {format_count(len(entry.counts))} experts of {name} met no token; they "
            "have the mean of the others."
            for name, entry in self.entries.items()
            if len(entry.counts) > entry.unseen > 0
        ]


def gather(
    sums: Mapping[str, tuple[np.ndarray, int]],
    chunk_size: int,
    datasets: Iterable[str] = (),
    fused: Collection[str] = (),
    experts: int = 0,
) -> ImportanceMatrix:
    """An importance matrix out of Σx² [K] and a number of tokens for each matrix of the running decoder.

    sums: by the decoder's names, an expert's being 'blk.0.ffn_up.3.weight'. experts: of the model; they are stacked,
    and those that are missing met no token. fused: names that the model's GGUF has in place of apart ones, which have
    the same input ('blk.0.attn_qkv.weight').
    """
    entries: dict[str, Importance] = {}
    stacks: dict[str, dict[int, tuple[np.ndarray, int]]] = {}
    for name, (values, count) in sums.items():
        if match := _EXPERT.match(name):
            stacks.setdefault(f"{match[1]}_exps.weight", {})[int(match[2])] = values, count
        else:
            entries[name] = Importance(values.astype(np.float32).reshape(1, -1), np.array([count], np.int64))
    for name, found in stacks.items():
        number, columns = max(experts, max(found) + 1), len(next(iter(found.values()))[0])
        table, counts = np.zeros((number, columns), np.float32), np.zeros(number, np.int64)
        for expert, (values, count) in found.items():
            table[expert], counts[expert] = values, count
        entries[name] = Importance(table, counts)
    most = max((int(e.counts.max()) for e in entries.values()), default=0)
    apart = ImportanceMatrix(entries)
    more = {name: entry for name in fused if name not in entries and (entry := apart._entry(name))}
    return ImportanceMatrix(dict(sorted((entries | more).items())), most // chunk_size, chunk_size, tuple(datasets))


def _target(checkpoint: Checkpoint, tensor: TensorInfo, architecture: str) -> GGUFName | None:
    if checkpoint.container is Container.GGUF:
        return GGUFName(tensor.name, stacked="_exps." in tensor.name)
    return gguf_name(tensor.name, architecture)
