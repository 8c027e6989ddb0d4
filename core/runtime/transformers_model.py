"""Architectures that are not our own: built by `transformers` where it is installed, with our products in them.

The model is made from config.json without weights, and without code from the folder or the network. Weights of linear
layers, experts and the embedding are read and packed as for our own decoders; the other tensors become float32.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from core.checkpoint.base import Checkpoint, Container
from core.errors import UserError
from core.models.config import DecoderConfig, RopeConfig
from core.progress import CancelToken
from core.runtime.arithmetic import Arithmetic
from core.runtime.decoder import FAMILIES, MAX_SIZE, DecoderWeights
from core.runtime.transformers_places import Place, find_places
from core.runtime.weights import WeightPlan
from kernels.program import CacheLayout, Embed, Experts, Linear, Program, Step

if TYPE_CHECKING:
    from core.runtime.transformers_engine import TransformersEngine

T = TypeVar("T")
P = TypeVar("P")

LOOK_SECONDS = 0.02  # between two looks at the cancel token
OLDEST = 5  # of transformers: the first whose models take weights by the names that are used here
NO_LIMIT = 1 << 20  # context of a model whose positions have no end
MAX_LAYERS = 4096
CACHE_TYPE = "F32"  # of transformers' cache in a float32 model
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
# Of a config.json: code of its own, kernels from a hub, and what the files' own reader takes care of.
_NOT_PASSED_ON = (
    *("auto_map", "quantization_config", "compression_config", "dtype", "torch_dtype"),
    *("_attn_implementation", "attn_implementation", "_experts_implementation", "experts_implementation"),
)


def refuse_gguf(architecture: str) -> UserError:
    """What is said of a GGUF whose architecture is none of ours."""
    return UserError(
        f"GGUF files of the kind '{architecture}' can not be run yet.",
        f"Those that can are {', '.join(FAMILIES)}; other models run from their Hugging Face folder.",
    )


def transformers_config(checkpoint: Checkpoint) -> DecoderConfig:
    """The decoder of a folder whose architecture is none of ours; its `architecture` is ''.

    Raises UserError without transformers, and for a model that it does not know or that does not write text.
    """
    return _decoder_config(_configuration(checkpoint))


@dataclass(frozen=True)
class Prepared:
    """A model without weights. plan: what is read into it, by `core.runtime.weights.read_weights`."""

    kind: str
    model: Any
    places: tuple[Place, ...]
    plan: WeightPlan

    def start(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        capacity: int,
        sequences: int,
        arithmetic: Arithmetic,
        threads: int,
    ) -> tuple[Program, TransformersEngine]:
        """Put the weights in. Raises UserError when the model turns out to be computed in another way."""
        from core.runtime.transformers_engine import TransformersEngine
        from core.runtime.transformers_weights import Work

        work = Work(arithmetic, threads)
        for place in self.places:
            place.fill(weights, work)
        cache = _cache_layout(config, capacity, sequences)
        used = _experts_used(self.model.config.get_text_config())
        program, extra = _listing(self.places, weights, cache, arithmetic, config.vocab, used)
        try:
            head = self.model.get_output_embeddings()
            engine = TransformersEngine(self.model, head, program, work, self.kind, extra)
        except MemoryError:
            raise
        except Exception as error:  # whatever the code of any architecture raises
            raise UserError(
                f"Models of the kind '{self.kind}' can not be run through transformers ({_first_line(error)}).",
                f"Those that need no transformers are {', '.join(FAMILIES)}.",
            ) from error
        return program, engine


def prepare(checkpoint: Checkpoint) -> Prepared:
    """Build the model and find each of its weights. Raises UserError, naming the tensor, where they do not fit."""
    config = _configuration(checkpoint)
    kind = str(config.model_type)
    _decoder_config(config)
    model = _build(config, kind)
    places, slots = find_places(checkpoint, model, kind)
    return Prepared(kind, model, places, WeightPlan(slots, pairs=False))


def in_background(job: Callable[[], T], token: CancelToken, progress: P) -> Generator[P, None, T]:
    """A job's result; yields while it works. Importing and building can not be stopped: cancelled, nobody waits."""
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(job())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            done.set_exception(error)

    threading.Thread(target=work, name="bitsmith-transformers", daemon=True).start()
    while not done.done():
        wait((done,), LOOK_SECONDS)
        token.check()
        yield progress
    return done.result()


def _transformers(kind: str) -> ModuleType:
    names = ", ".join(FAMILIES)
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None:
        how = f"Install it (pip install 'transformers>={OLDEST}')"
        if getattr(sys, "frozen", False):  # PyInstaller's mark: nothing can be added to an installed program
            how = "Run Bitsmith from its sources (make run), where it can be installed"
        raise UserError(
            f"Models of the kind '{kind}' run through the package transformers, which is not installed.",
            f"{how}, or choose one of {names}.",
        )
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when it is imported
    try:
        import transformers
    except Exception as error:  # a broken installation raises anything
        raise UserError(
            f"The package transformers, through which '{kind}' runs, does not start ({_first_line(error)}).",
            f"Install it again (pip install --force-reinstall 'transformers>={OLDEST}').",
        ) from error
    if int(transformers.__version__.partition(".")[0]) < OLDEST:
        raise UserError(
            f"transformers {transformers.__version__} is too old to run '{kind}'.",
            f"Install a newer one (pip install 'transformers>={OLDEST}').",
        )
    transformers.logging.set_verbosity_error()  # its advice is for those who write programs with it
    return transformers


def _configuration(checkpoint: Checkpoint) -> Any:
    """transformers' configuration of a decoder."""
    fields = dict(checkpoint.config)
    kind = str(fields.get("model_type") or "unknown")
    if checkpoint.container is Container.GGUF:
        raise refuse_gguf(checkpoint.architecture)
    transformers = _transformers(kind)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as DECODERS

    if kind not in CONFIG_MAPPING:
        own = "needs program code from its own folder, which is not run" if fields.get("auto_map") else "is not known"
        raise UserError(
            f"A model of the kind '{kind}' {own} (transformers {transformers.__version__}).",
            "Look for a newer transformers, or choose a model that it knows by itself.",
        )
    names = fields.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if kind not in DECODERS or (name and name not in _names(DECODERS.values())):
        raise UserError(f"A {name or kind} does not write text (its kind is '{kind}').", "Choose a text model.")
    try:
        fields = _numbers({k: v for k, v in fields.items() if k not in _NOT_PASSED_ON})
        return CONFIG_MAPPING[kind].from_dict(fields)
    except Exception as error:  # each configuration class checks in its own way
        raise UserError(
            f"config.json describes no model of the kind '{kind}' ({_first_line(error)}).",
            "Compare the file with the model's original.",
        ) from error


def _numbers(value: Any) -> Any:
    """A config.json's value, with numbers that JSON has no word for: {"__float__": "Infinity"}."""
    if isinstance(value, dict):
        return (
            float(value["__float__"]) if value.keys() == {"__float__"} else {k: _numbers(v) for k, v in value.items()}
        )
    return [_numbers(each) for each in value] if isinstance(value, list) else value


def _names(values: Any) -> set[str]:
    return {name for value in values for name in ((value,) if isinstance(value, str) else value)}


def _build(config: Any, kind: str) -> Any:
    import torch
    from torch.overrides import TorchFunctionMode
    from transformers import AutoModelForCausalLM

    class WithoutWeights(TorchFunctionMode):  # type: ignore[misc]
        """What is made to be filled later takes no memory; tables that a model works out for itself are real."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if function is torch.empty:
                kwargs["device"] = "meta"
            return function(*args, **kwargs)

    error: Exception | None = None
    for attention in ("sdpa", "eager"):  # not every architecture has the first
        try:
            with WithoutWeights():
                model = AutoModelForCausalLM.from_config(
                    config,
                    trust_remote_code=False,
                    dtype=torch.float32,
                    attn_implementation=attention,
                    experts_implementation="eager",
                )
        except Exception as raised:  # noqa: BLE001 - any architecture's own code
            error = raised
            continue
        return model.eval().requires_grad_(False)
    raise UserError(
        f"transformers can not build a model of the kind '{kind}' from config.json ({_first_line(error)}).",
        "Compare the file with the model's original.",
    ) from error


def _decoder_config(config: Any) -> DecoderConfig:
    text = config.get_text_config()

    def number(*names: str, default: int = 0) -> int:
        for name in names:
            value = getattr(text, name, None)
            if isinstance(value, int) and value > 0:
                return value
        return default

    layers, hidden = number("num_hidden_layers", "n_layers"), number("hidden_size", "d_model")
    heads = number("num_attention_heads", "n_heads", default=1)
    vocab = number("vocab_size")
    context = number(*_CONTEXT, default=NO_LIMIT)
    if not 0 < layers <= MAX_LAYERS or not max(hidden, vocab) < MAX_SIZE or not hidden or not vocab:
        raise UserError(
            "The configuration has a size that no model has.", "Compare the configuration with the model's original."
        )
    return DecoderConfig(
        model_type=str(config.model_type),
        architecture="",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", "num_kv_heads", default=heads),
        head_dim=number("head_dim", default=max(hidden // heads, 1)),
        explicit_head_dim=False,
        intermediate=number("intermediate_size", "ffn_hidden_size", "n_inner", default=4 * hidden),
        vocab=vocab,
        context=context,
        rms_eps=0.0,
        tied=bool(getattr(text, "tie_word_embeddings", False)),
        rope=RopeConfig(),
    )


def _cache_layout(config: DecoderConfig, capacity: int, sequences: int) -> CacheLayout:
    return CacheLayout(((config.kv_heads, config.head_dim),) * config.layers, capacity, sequences, CACHE_TYPE)


def _listing(
    places: tuple[Place, ...],
    weights: DecoderWeights,
    cache: CacheLayout,
    arithmetic: Arithmetic,
    vocab: int,
    used: int,
) -> tuple[Program, int]:
    """What a token is multiplied with, as steps that are not run; and bytes of float weights that it meets besides."""
    steps: list[Step] = []
    labels: list[str] = []
    widths: dict[int, int] = {}

    def buffer(width: int) -> int:
        return widths.setdefault(width, len(widths))

    extra, logits = 0, buffer(vocab)
    for place in places:
        found = [weights.matrices[name] for name in place.slots if name in weights.matrices]
        if place.role == "embedding":
            steps.append(Embed(found[0], buffer(found[0].columns)))
        elif place.role in ("linear", "head"):
            matrix, head = found[0], place.role == "head"
            out = buffer(matrix.rows)
            logits = out if head else logits
            x, outliers = buffer(matrix.columns), arithmetic.outliers
            steps.append(Linear(x, (matrix,), (out,), (None,), logits=head, outliers=outliers))
        elif place.role == "experts":
            count = len(found) // 3
            gates, ups, downs = (tuple(found[i * count : (i + 1) * count]) for i in range(3))
            x = buffer(gates[0].columns)
            steps.append(Experts(x, buffer(count), x, gates, ups, downs, min(used, count)))
        else:
            extra += place.nbytes
            continue
        labels.append(place.name)
    return Program(tuple(steps), tuple(widths), logits, cache, arithmetic.activations, tuple(labels)), extra


def _experts_used(config: Any) -> int:
    for name in ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k_experts"):
        if isinstance(value := getattr(config, name, None), int) and value > 0:
            return value
    return 1


def _first_line(error: BaseException | None) -> str:
    text = str(error).strip().splitlines()
    return (text[0][:160] if text else type(error).__name__).rstrip(".: ")
