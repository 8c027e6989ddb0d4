"""Which files of a repository a conversion needs, and why the others are left where they are."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from core.hub.problems import HubError, Kind

INDEX = "model.safetensors.index.json"
_SAFETENSORS_SHARD = re.compile(r"^(?P<base>.+?)[-_](?P<number>\d{5})-of-(?P<count>\d{5})\.(?:safetensors|bin)$")
_GGUF_SHARD = re.compile(r"^(?P<base>.+)-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_QUANTIZATION = re.compile(
    r"(?:^|[-._])(?P<name>(?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|TQ\d_\d|BF16|FP?16|FP?32|MXFP4(?:_MOE)?|NVFP4))(?=[-._]|$)",
    re.IGNORECASE,
)
_SIXTEEN_BITS = ("BF16", "F16", "FP16", "F32", "FP32")
_BEST_SOURCES = (*_SIXTEEN_BITS, "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M")
_VARIANT = re.compile(r"\.(?:fp16|bf16|fp32|f16|non_ema|ema|int8)(?=[.-])", re.IGNORECASE)
# Folders that hold the same model once more, for other programs.
_TWINS = re.compile(
    r"^(?:original|metal|onnx\w*|openvino\w*|coreml|mlx|tflite|tensorrt\w*|flax|gguf-?cache)$", re.IGNORECASE
)
_SETTINGS = re.compile(
    r"^(?:config\.json|generation_config\.json|params\.json|quantize_config\.json|quant_config\.json|hf_quant_config\.json|"
    r"preprocessor_config\.json|processor_config\.json|recipe\.yaml)$"
)
_TOKENIZER = re.compile(
    r"^(?:tokenizer.*\.(?:json|model|jsonl)|tokenizer|special_tokens_map\.json|added_tokens\.json|vocab\..*|merges\.txt|"
    r"spiece\.model|tekken\.json|sentencepiece.*|.*\.tiktoken|.*\.spm)$",
    re.IGNORECASE,
)
_TEMPLATE = re.compile(r"^(?:chat_template.*|.*\.jinja)$", re.IGNORECASE)
_ABOUT = re.compile(
    r"^(?:(?:LICEN[CS]E|NOTICE|USE_POLICY|COPYING|README)(?:[.-].*)?|.*[_-]LICENSE(?:\.\w+)?)$", re.IGNORECASE
)
_OTHER_FORMATS = (
    ".h5", ".msgpack", ".onnx", ".onnx_data", ".ot", ".tflite", ".mlmodel", ".mlpackage", ".xml", ".ckpt", ".nemo",
    ".npz", ".zip", ".tar", ".pkl", ".llamafile", ".ggml", ".engine",
)  # fmt: skip
_PYTORCH = (".bin", ".pt", ".pth")
_NO_MODEL = re.compile(
    r"^(?:adapter_model|training_args|optimizer|scheduler|rng_state|trainer_state|random_states|scaler)"
)


@dataclass(frozen=True)
class HubFile:
    """name: with its folders, as the hub writes it. bytes: −1 when the hub does not say.

    sha256: of a large file's content; git_sha1: of a small one's, as git names it. '' where the hub does not say.
    """

    name: str
    bytes: int
    sha256: str = ""
    git_sha1: str = ""


@dataclass(frozen=True)
class Choice:
    """One model of a repository. files: what is fetched for it. folder: where they lie in the repository, or ''.

    kind: 'safetensors', 'gguf' or 'pytorch'. weights: those of `files` that hold tensors.
    """

    title: str
    kind: str
    files: tuple[HubFile, ...]
    weights: tuple[HubFile, ...]
    folder: str = ""

    @property
    def bytes(self) -> int:
        return sum(max(f.bytes, 0) for f in self.files)


@dataclass(frozen=True)
class Fate:
    """Whether a file is fetched, and why (not)."""

    file: HubFile
    fetched: bool
    reason: str


def choices(files: Sequence[HubFile], shards: Mapping[str, frozenset[str]] | None = None) -> tuple[Choice, ...]:
    """The models that a repository holds, the one to convert from first: safetensors, then the widest GGUF.

    shards: folder → the weight files that its index names, where several sets of parts lie beside each other.
    Raises HubError when there is none that can be opened.
    """
    folders: defaultdict[str, list[HubFile]] = defaultdict(list)
    for file in files:
        folders[_folder(file)].append(file)
    names = {f.name for f in files}
    tops = [f for f in folders if not f] + sorted(f for f in folders if f and not _is_twin(f))
    whole = [c for folder in tops if (c := _transformers(folder, folders[folder], names, (shards or {}).get(folder)))]
    safe = [c for c in whole if c.kind == "safetensors"]
    found = [*safe, *_ggufs([f for f in files if not _is_twin(_folder(f))], folders[""])]
    if not safe:
        found += [c for c in whole if c.kind == "pytorch"]
    if not found:
        raise _nothing(files)
    return tuple(found)


def ambiguous(files: Sequence[HubFile]) -> tuple[str, ...]:
    """Folders with an index beside more than one set of weights: which of them the index means, only it can say."""
    result = []
    by_folder: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        by_folder[_folder(file)].append(_base(file))
    for folder, names in by_folder.items():
        weights = [n for n in names if n.endswith(".safetensors") and not _NO_MODEL.match(n)]
        sets = {(m["base"], m["count"]) if (m := _SAFETENSORS_SHARD.match(n)) else n for n in weights}
        if INDEX in names and len(sets) > 1:
            result.append(folder)
    return tuple(result)


def choose(found: Sequence[Choice], path: str = "", tag: str = "") -> Choice:
    """The one that a path in the repository or a tag means, else the first. Raises HubError, naming what there is."""
    if path:
        path = path.strip("/")
        named = [c for c in found if path in {f.name for f in c.files} or c.folder == path]
        named = named or [c for c in found if any(_base(f) == path for f in c.weights)]
        named = named or [c for c in found if c.folder.startswith(path + "/") or _matches(path, c)]
        if named:
            # A side file belongs to several: the one whose weights it is, or the first.
            return next((c for c in named if path in {f.name for f in c.weights}), named[0])
        raise HubError(Kind.MISSING, f"The repository has no model {path}.", f"It has {_some(found)}.")
    if tag:
        wanted = tag.upper()
        exact = [c for c in found if c.kind == "gguf" and c.title.upper().split(" ")[0] in (wanted, f"UD-{wanted}")]
        exact = exact or [c for c in found if c.kind == "gguf" and wanted in c.weights[0].name.upper()]
        if exact:
            return exact[0]
        raise HubError(Kind.MISSING, f"The repository has no file for {tag}.", f"It has {_some(found)}.")
    return found[0]


def fates(files: Sequence[HubFile], choice: Choice) -> tuple[Fate, ...]:
    """Every file of the repository: those that are fetched first, then the others, each with its reason."""
    wanted = {f.name for f in choice.files}
    weights = {f.name: number for number, f in enumerate(choice.weights, start=1)}
    count = len(choice.weights)
    result = []
    for file in files:
        if file.name in weights:
            part = f", part {weights[file.name]} of {count}" if count > 1 else ""
            result.append(Fate(file, True, f"weights{part}"))
        elif file.name in wanted:
            result.append(Fate(file, True, _use(_base(file))))
        else:
            result.append(Fate(file, False, _left_out(file, choice)))
    return tuple(sorted(result, key=lambda fate: (not fate.fetched, fate.file.name not in weights, fate.file.name)))


def _folder(file: HubFile) -> str:
    return file.name.rpartition("/")[0]


def _base(file: HubFile) -> str:
    return file.name.rpartition("/")[2]


def _is_twin(folder: str) -> bool:
    return any(_TWINS.match(part) for part in PurePosixPath(folder).parts)


def _use(name: str) -> str:
    if _TOKENIZER.match(name):
        return "tokenizer"
    if _TEMPLATE.match(name):
        return "chat template"
    if _ABOUT.match(name):
        return "licence and description"
    if name.endswith(".index.json"):
        return "list of the weights"
    return "the model's own code, which is not run" if name.endswith(".py") else "settings of the model"


def _left_out(file: HubFile, choice: Choice) -> str:
    name, folder = _base(file), _folder(file)
    lower = name.lower()
    if _is_twin(folder):
        return f"the same model for other programs ({PurePosixPath(folder).parts[0]})"
    if lower.endswith(".gguf"):
        if "mmproj" in lower:
            return "for pictures, which are not converted"
        if "imatrix" in lower:
            return "importance matrix, no model"
        return "another quantization" if choice.kind == "gguf" else "the same model as GGUF"
    if _NO_MODEL.match(name):
        return "an adapter" if name.startswith("adapter") else "left over from training"
    if lower.endswith(".safetensors"):
        return (
            "another model or another copy of the weights"
            if choice.kind == "safetensors"
            else "the same model unpacked"
        )
    if lower.endswith(_PYTORCH) or lower.endswith(".bin.index.json"):
        return "the same weights in PyTorch's format"
    if lower.endswith(_OTHER_FORMATS):
        return "another program's format"
    return "not needed to convert"


def _transformers(
    folder: str, files: Sequence[HubFile], names: set[str], shards: frozenset[str] | None
) -> Choice | None:
    """A folder's safetensors (or, without any, PyTorch files) with all that belongs to them."""
    weights, kind = _safetensors(files, shards), "safetensors"
    if not weights:
        weights, kind = _pytorch(files), "pytorch"
    prefix = f"{folder}/" if folder else ""
    if not weights or f"{prefix}config.json" not in names:
        return None
    suffix = ".safetensors.index.json" if kind == "safetensors" else ".bin.index.json"
    # An index beside a single file names parts that are not there.
    indexed = shards is not None or any(_SAFETENSORS_SHARD.match(_base(f)) for f in weights)
    side = [f for f in files if _is_side(f) or (indexed and _base(f).endswith(suffix) and not _is_variant(f))]
    title = "Safetensors" if kind == "safetensors" else "PyTorch"
    return Choice(f"{title} in {folder}" if folder else title, kind, (*side, *weights), tuple(weights), folder)


def _is_variant(file: HubFile) -> bool:
    return bool(_VARIANT.search(_base(file)))


def _is_side(file: HubFile) -> bool:
    name = _base(file)
    if _SETTINGS.match(name) or _TOKENIZER.match(name) or _TEMPLATE.match(name) or _ABOUT.match(name):
        return not name.lower().endswith((".gguf", ".safetensors", *_PYTORCH))
    return bool(re.match(r"^(?:configuration|modeling|tokenization|processing|image_processing)_\w+\.py$", name))


def _safetensors(files: Sequence[HubFile], shards: frozenset[str] | None) -> list[HubFile]:
    found = [f for f in files if _base(f).endswith(".safetensors") and not _NO_MODEL.match(_base(f))]
    if shards is not None:
        return [f for f in found if _base(f) in shards]
    found = [f for f in found if not _is_variant(f)] or found
    single = [f for f in found if _base(f) == "model.safetensors"]
    sets: Counter[tuple[str, str]] = Counter()
    for file in found:
        if match := _SAFETENSORS_SHARD.match(_base(file)):
            sets[match["base"], match["count"]] += 1
    has_index = any(_base(f) == INDEX for f in files)
    if single and not (sets and has_index):
        return single
    whole = [key for key, count in sets.items() if count >= int(key[1])] or list(sets)
    if whole:
        best = min(whole, key=lambda key: (key[0] != "model", key[0].startswith("consolidated"), key))
        return [f for f in found if (m := _SAFETENSORS_SHARD.match(_base(f))) and (m["base"], m["count"]) == best]
    plain = [f for f in found if not _base(f).startswith("consolidated")] or found
    return plain[:1]


def _pytorch(files: Sequence[HubFile]) -> list[HubFile]:
    found = [f for f in files if re.match(r"^pytorch_model(?:-\d{5}-of-\d{5})?\.bin$", _base(f))]
    shards = [f for f in found if "-of-" in _base(f)]
    single = [f for f in found if f not in shards]
    return single[:1] or shards or [f for f in files if _base(f) in ("qmodel.pt", "model.pt")][:1]


def _ggufs(files: Sequence[HubFile], top: Sequence[HubFile]) -> list[Choice]:
    """One choice a GGUF, the parts of a split one together."""
    sets: defaultdict[str, list[HubFile]] = defaultdict(list)
    for file in files:
        lower = _base(file).lower()
        if lower.endswith(".gguf") and "mmproj" not in lower and "imatrix" not in lower:
            shard = _GGUF_SHARD.match(file.name)
            sets[shard["base"] if shard else file.name[: -len(".gguf")]].append(file)
    about = [f for f in top if _ABOUT.match(_base(f)) and not _base(f).lower().endswith(".gguf")]
    labels = {key: _label(key) for key in sets}
    often = Counter(labels.values())
    result = []
    for key, parts in sets.items():
        stem = key.rpartition("/")[2]
        title = labels[key] if labels[key] and often[labels[key]] == 1 else f"{labels[key]} {stem}".strip()
        parts = sorted(parts, key=lambda f: f.name)
        result.append(Choice(title, "gguf", (*about, *parts), tuple(parts), _folder(parts[0])))
    return sorted(result, key=_gguf_rank)


def _label(key: str) -> str:
    """'Q4_K_M' of 'Q4_K_M/name-7b-q4_k_m', '' when its name has none."""
    for part in (key.rpartition("/")[2], key.rpartition("/")[0].rpartition("/")[2]):
        found = list(_QUANTIZATION.finditer(part))
        if found:
            return found[-1]["name"].upper()
    return ""


def _gguf_rank(choice: Choice) -> tuple[int, str, str]:
    """What loses least as a source comes first; the others by name."""
    label = choice.title.split(" ")[0].removeprefix("UD-")
    rank = _BEST_SOURCES.index(label) if label in _BEST_SOURCES else len(_BEST_SOURCES)
    return rank, label, choice.title


def _matches(path: str, choice: Choice) -> bool:
    return any(PurePosixPath(f.name).match(path) for f in choice.weights) if "*" in path else False


def _some(found: Sequence[Choice]) -> str:
    names = [c.title for c in found]
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _nothing(files: Sequence[HubFile]) -> HubError:
    names = {_base(f) for f in files}
    if names & {"adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"}:
        return HubError(
            Kind.UNUSABLE, "This repository is an adapter (LoRA), not a whole model.",
            "Look for the merged model, or for the base model that its page names.",
        )  # fmt: skip
    if "model_index.json" in names:
        return HubError(
            Kind.UNUSABLE, "This repository makes pictures; it is no language model.", "Choose another model."
        )
    weights = [f for f in files if _base(f).lower().endswith((".safetensors", *_PYTORCH, *_OTHER_FORMATS))]
    if weights and "config.json" not in names:
        return HubError(
            Kind.UNUSABLE, "This repository has weights, but no config.json that says what model they are.",
            "Look for its version for Transformers (often named …-hf), or for a GGUF.",
        )  # fmt: skip
    if weights:
        return HubError(
            Kind.UNUSABLE, "This repository has its weights only in a format that can not be opened.",
            "Look for a version of it with .safetensors or .gguf files.",
        )  # fmt: skip
    return HubError(Kind.UNUSABLE, "This repository holds no weights.", "Choose another one.")
