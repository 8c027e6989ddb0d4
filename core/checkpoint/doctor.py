"""The input doctor: what is wrong or unusual about a checkpoint that does open.

What makes opening impossible is raised by `open_checkpoint` as UserError, in the same kind of sentence. `examine` looks
at headers and small files; `scan_values` reads every value once.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from core.checkpoint.architecture import text_config
from core.checkpoint.base import Checkpoint, Container
from core.checkpoint.dtypes import is_readable
from core.checkpoint.findings import Finding, Severity, some
from core.checkpoint.gguf import is_importance_matrix
from core.checkpoint.hf import says_tied
from core.checkpoint.quantized_source import quantized_source
from core.checkpoint.reading import FileCheckpoint
from core.checkpoint.tokenizer_check import tokenizer_findings
from core.checkpoint.value_scan import ScanStep, scan_values
from core.export.gguf_values import MAX_NAME
from core.models.config import GGUF_ARCHITECTURES
from core.tensor_info import Role
from core.units import format_count

__all__ = ["Finding", "ScanStep", "examine", "scan_values"]

GGUF_WRITABLE = frozenset(GGUF_ARCHITECTURES.values())
_ORDER = {"error": 0, "warning": 1, "info": 2}


def examine(checkpoint: Checkpoint) -> tuple[Finding, ...]:
    """Everything that can be told without reading values, the worst first."""
    checks = (
        _notes,
        _kind,
        _quantized,
        _chosen,
        _names,
        _architecture,
        _layers,
        _tied,
        _types,
        _cache,
        tokenizer_findings,
    )
    found = [finding for check in checks for finding in check(checkpoint)]
    return tuple(sorted(found, key=lambda finding: _ORDER[finding.severity]))


def _notes(checkpoint: Checkpoint) -> Iterator[Finding]:
    """What the reader met while it opened the files."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for code, detail in checkpoint.notes if isinstance(checkpoint, FileCheckpoint) else ():
        grouped[code].append(detail)
    for code, details in grouped.items():
        severity, message, hint = _NOTES[code]
        yield Finding(severity, code, message.format(some(details), format_count(len(details))), hint)


_NOTES: Mapping[str, tuple[Severity, str, str]] = {
    "extra-bytes": (
        "warning",
        "After the last tensor there are bytes that belong to none, in {0}.",
        "Download the file again; strict programs refuse it as it is.",
    ),
    "index-missing": (
        "error",
        "The index names {1} tensors that no file holds: {0}.",
        "Download the index and all weight files again, from the same version of the model.",
    ),
    "index-moved": (
        "warning",
        "The index gives another file than the right one for {1} tensors: {0}.",
        "Nothing to do here, as the files themselves count; other programs may need the right index.",
    ),
    "unfinished": (
        "warning",
        "A download in this folder is not finished: {0}.",
        "If files are missing, start the download again: it goes on where it was.",
    ),
    "wrapped-names": (
        "info",
        "Names of tensors are those of a wrapper of the training program, such as torch.compile or DDP: {0}.",
        "The model's own names are used here, and in what is made of it; other programs refuse the file as it is.",
    ),
    "split-count": (
        "error",
        "The first part promises another number of tensors than all parts hold ({0}).",
        "Download all parts again, from the same version of the model.",
    ),
    "tied-head-differs": (
        "warning",
        "The config says that output head and embedding are one, but a different {0} is stored.",
        "Both are kept as they are; if the model answers badly, set tie_word_embeddings to false in config.json.",
    ),
}


def _kind(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Files that open but are no language model."""
    names = [tensor.name for tensor in checkpoint.tensors]
    if not names:
        yield Finding("error", "no-tensors", "There is no tensor in it.", "Download the file again.")
        return
    if checkpoint.container is Container.GGUF:
        kind = checkpoint.metadata.get("general.type", "model")
        if kind == "mmproj" or checkpoint.architecture == "clip":
            message = "This is the picture or sound encoder that goes with a model (mmproj), not the model."
            yield Finding("error", "not-a-model", message, "Open the model's own GGUF file.")
        elif is_importance_matrix(checkpoint):
            message = "This is an importance matrix, not a model."
            yield Finding("error", "not-a-model", message, "Open the model that it was made for.")
        elif kind == "adapter" or "adapter.type" in checkpoint.metadata:
            yield Finding("error", "adapter", "This is an adapter (LoRA), not a whole model.", _MERGE)
        elif kind == "vocab":
            yield Finding("error", "not-a-model", "This file holds a vocabulary only.", "Open the model's own file.")
        elif not checkpoint.architecture:
            message = "The file does not say which architecture it is (general.architecture)."
            yield Finding("error", "no-architecture", message, "Download the model again, or convert it again.")
    lora = [name for name in names if ".lora_" in name or "lora_A" in name or name.endswith((".lora_a", ".lora_b"))]
    if len(lora) > len(names) // 2 and checkpoint.container is not Container.GGUF:
        yield Finding("error", "adapter", "This is an adapter (LoRA), not a whole model.", _MERGE)
    elif (checkpoint.path / "adapter_config.json").is_file():
        message = "Beside the model there is an adapter (LoRA), which is not applied."
        yield Finding("info", "adapter-beside", message, "Merge it into the model first if you want it in.")
    other = sum(tensor.role is Role.OTHER and tensor.layer is None for tensor in checkpoint.tensors)
    if any(name.startswith(("model.diffusion_model.", "first_stage_model.", "unet.", "vae.")) for name in names):
        message = "This is a model for pictures, not a language model."
        yield Finding("warning", "not-a-language-model", message, "Check each tensor's fate before you convert it.")
    elif other and isinstance(checkpoint.config.get("vision_config") or checkpoint.config.get("audio_config"), Mapping):
        message = f"{format_count(other)} tensors belong to a picture or sound encoder and are no part of the decoder."
        yield Finding("info", "other-tower", message, "They are kept as they are.")


_MERGE = "Merge it into its base model first, then open the merged model."


def _quantized(checkpoint: Checkpoint) -> Iterator[Finding]:
    source = quantized_source(checkpoint)
    if source is None:
        return
    if source.stale:
        message = f"The config says that the model is quantized ({source.label}), but its weights are not."
        yield Finding("warning", "quantization-config", message, "Remove quantization_config from config.json.")
    elif source.readable and checkpoint.architecture == "gpt-oss" and "MXFP4" in source.scheme:
        message = "The experts of this model are MXFP4 in the original too, so nothing better exists."
        yield Finding("info", "quantized-original", message, "Keep them as they are; fewer bits would cost quality.")
    elif source.readable:
        message = f"This model is already quantized ({source.label}): quality can only fall further."
        yield Finding("warning", "quantized", message, f"Use the original 16-bit checkpoint{_or_else(checkpoint)}.")
    else:
        message = f"This model is already quantized ({source.label}): quality can only fall further."
        hint = "Use the original 16-bit checkpoint: weights packed like this can not be converted."
        yield Finding("error", "quantized-packed", message, hint)
    if problem := checkpoint.packed_problem:
        yield Finding("error", "packed-damaged", problem.message, problem.hint)


def _or_else(checkpoint: Checkpoint) -> str:
    """Which targets keep the numbers of a quantized checkpoint: one for each family of programs."""
    from core.catalog import lossless, one_a_use, stored_numbers

    names = one_a_use(lossless(stored_numbers(checkpoint), checkpoint.container is not Container.GGUF))
    if not names:
        return ", or go on with this one"
    return f"; from this one, {', '.join(names)} keep{'s' if len(names) == 1 else ''} the quantized weights as they are"


def _chosen(checkpoint: Checkpoint) -> Iterator[Finding]:
    """What the file says of how its numbers were chosen."""
    from core.methods.record import read_record, text_of_record

    if record := read_record(checkpoint):
        text = text_of_record(record)
        message = f"By its own account the numbers were chosen by {record['method']}{f', from {text}' if text else ''}."
        yield Finding("info", "calibrated", message, "")


def _names(checkpoint: Checkpoint) -> Iterator[Finding]:
    # For a known architecture the names are translated to GGUF's short ones.
    if checkpoint.container is not Container.GGUF and checkpoint.architecture in GGUF_WRITABLE:
        return
    long = [tensor.name for tensor in checkpoint.tensors if len(tensor.name.encode()) > MAX_NAME]
    if not long:
        return
    message = (
        f"{format_count(len(long))} tensor names have more than {MAX_NAME} bytes, which GGUF can not hold: "
        f"{some(long, 1)}."
    )
    severity: Severity = "error" if checkpoint.container is Container.GGUF else "warning"
    yield Finding(severity, "long-names", message, "Choose a safetensors format for this model.", long[0])


def _architecture(checkpoint: Checkpoint) -> Iterator[Finding]:
    if checkpoint.container is Container.GGUF or checkpoint.architecture in GGUF_WRITABLE:
        return
    works = "Formats in safetensors need no knowledge of the architecture and still work."
    if checkpoint.architecture:
        message = f"The architecture {checkpoint.architecture} is not known here, so it can not be written as GGUF."
        yield Finding("warning", "unknown-architecture", message, works)
    elif checkpoint.config:
        message = "config.json does not say which architecture it is, so it can not be written as GGUF."
        yield Finding("warning", "unknown-architecture", message, works)
    else:
        message = "There is no config.json beside the weights, so the model can not be written as GGUF."
        yield Finding("warning", "no-config", message, "Put the model's config.json into the same folder.")


def _layers(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Fewer layers than promised, or a layer that lacks what all others have."""
    counts = Counter(tensor.layer for tensor in checkpoint.tensors if tensor.layer is not None)
    if checkpoint.container is Container.GGUF:
        promised = checkpoint.metadata.get(f"{checkpoint.architecture}.block_count", 0)
    else:
        promised = text_config(checkpoint.config).get("num_hidden_layers", 0)
    there = max(counts, default=-1) + 1
    gaps = [str(layer) for layer in range(there) if layer not in counts]
    if counts and isinstance(promised, int) and promised > there:
        message = f"The model should have {promised} layers, but only {there} are there."
        yield Finding("error", "layers-missing", message, "Download all weight files again.")
    elif gaps:
        message = f"Layers are missing: {some(gaps)}."
        yield Finding("error", "layers-missing", message, "Download all weight files again.")
    yield from _incomplete(checkpoint)


def _incomplete(checkpoint: Checkpoint) -> Iterator[Finding]:
    """A layer without what every other has, and with nothing of its own: layers of another kind have that."""
    parts: dict[int, set[str]] = defaultdict(set)
    for tensor in checkpoint.tensors:
        if tensor.layer is not None and tensor.name.endswith(".weight"):
            parts[tensor.layer].add(re.sub(rf"(?<![^.]){tensor.layer}(?![^.])", "*", tensor.name, count=1))
    counts = Counter(part for own in parts.values() for part in own)
    for layer, own in parts.items():
        lost = sorted(part for part, n in counts.items() if n == len(parts) - 1 and part not in own)
        if lost and all(counts[part] == len(parts) or counts[part] > 1 for part in own):
            names = some([part.replace("*", str(layer), 1) for part in lost])
            message = f"Layer {layer} lacks what every other layer has: {names}."
            yield Finding("warning", "layer-incomplete", message, "Download all weight files again.")


def _tied(checkpoint: Checkpoint) -> Iterator[Finding]:
    head = next((tensor for tensor in checkpoint.tensors if tensor.role is Role.HEAD), None)
    embed = next((tensor for tensor in checkpoint.tensors if tensor.role is Role.EMBED), None)
    if head is not None and embed is not None and (head.tied_to or embed.tied_to):
        message = "Output head and embedding are one tensor, and counted once."
        yield Finding("info", "tied", message, "Nothing to do.", head.name)
    if checkpoint.container is Container.GGUF or not checkpoint.config or embed is None:
        return
    stated = checkpoint.config.get("tie_word_embeddings", text_config(checkpoint.config).get("tie_word_embeddings"))
    causal = "CausalLM" in str(checkpoint.config.get("architectures"))
    if head is None and stated is False and causal:
        message = "The config says that the output head is a tensor of its own, but there is none."
        yield Finding("error", "head-missing", message, "Download all weight files again.")
    elif head is None and says_tied(checkpoint.config):
        yield Finding("info", "tied", "The embedding is also the output head, and counted once.", "Nothing to do.")


def _types(checkpoint: Checkpoint) -> Iterator[Finding]:
    unknown = [tensor for tensor in checkpoint.tensors if not is_readable(tensor)]
    if unknown:
        kinds = ", ".join(sorted({tensor.dtype for tensor in unknown}))
        message = f"{format_count(len(unknown))} tensors are of a type whose values can not be read ({kinds})."
        hint = "Use the checkpoint that this one was made from."
        yield Finding("error", "unreadable-type", message, hint, unknown[0].name)


def _cache(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Scales of a key-value cache in 8 bits, which are no weights."""
    scales = [t for t in checkpoint.stored.tensors if t.name.endswith((".k_scale", ".v_scale", ".kv_scale"))]
    if scales:
        message = f"It has {len(scales)} scales for keys and values in a cache of 8-bit floats."
        hint = (
            "vLLM uses them with such a cache, and so does Bitsmith's own engine on the processor, where Test runs it."
        )
        yield Finding("info", "cache-scales", message, hint)
