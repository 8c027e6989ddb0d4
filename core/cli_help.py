"""What `--help` says beyond the options: what the arguments are, and examples that run as they stand."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

_MODEL = "a Hugging Face folder, a .safetensors, .bin or .pt file, or a GGUF file"
ARGUMENTS = {  # metavar of an argument that is given by its place → what it is
    "PATH": _MODEL,
    "SOURCE": f"the original: {_MODEL}",
    "ARTIFACT": "what was made from it: a folder or a GGUF file",
    "OUTPUT": "a folder or file that convert has written",
}
FIRST_STEPS = (
    ("what it is, and what is wrong with it", "bitsmith info MODEL"),
    ("what would come of it, to the byte", "bitsmith plan MODEL --to Q4_K_M"),
    ("the file, read back and verified", "bitsmith convert MODEL --to Q4_K_M -o out.gguf"),
    ("how much it differs from the original", "bitsmith eval MODEL out.gguf --report report.html"),
)
EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "convert": (
        ("for llama.cpp", "bitsmith convert MODEL --to Q4_K_M -o out.gguf"),
        ("the same with importance", "bitsmith convert MODEL --to Q4_K_M --method importance -o out.gguf"),
        ("for vLLM, by GPTQ", "bitsmith convert MODEL --to w4a16-g64 --method gptq -o OUT"),
        ("by AWQ", "bitsmith convert MODEL --to awq-g64 --transform awq -o OUT"),
        ("8-bit activations", "bitsmith convert MODEL --to w8a8 --transform smoothquant -o OUT"),
        ("3 bits, as well as it goes", "bitsmith convert MODEL --recipe 3-bit -o OUT"),
        ("the best mix in 4 GB", "bitsmith convert MODEL --size 4GB -o out.gguf"),
        ("after an interruption", "bitsmith convert MODEL --to Q4_K_M -o out.gguf --resume"),
    ),
    "plan": (
        ("every tensor's fate", "bitsmith plan MODEL --to Q4_K_M"),
        ("with exceptions", "bitsmith plan MODEL --to Q4_K_M --keep ffn_down --rule attn_v=Q8_0"),
    ),
    "eval": (
        ("a verdict by the usual limits", "bitsmith eval MODEL out.gguf"),
        ("stricter, with a report", "bitsmith eval MODEL out.gguf --thresholds strict --report report.html"),
        ("everything there is", "bitsmith eval MODEL out.gguf --needle --tasks tasks.jsonl --speed"),
        ("as llama.cpp counts", "bitsmith eval MODEL out.gguf --score second-half --from-start --text wiki.txt"),
    ),
    "budget": (
        ("for a size", "bitsmith budget MODEL --size 4GB -o mix.json"),
        ("for a card", "bitsmith budget MODEL --device 'RTX 4060' --context 8192 -o mix.json"),
        ("then", "bitsmith convert MODEL --recipe mix.json -o out.gguf"),
        ("all sizes", "bitsmith budget MODEL --curve"),
    ),
    "cache": (
        ("all formats", "bitsmith cache MODEL --context 32768 --device 'RTX 4060'"),
        ("one, with the options for runtimes", "bitsmith cache MODEL --type q8_0/q4_0"),
    ),
    "imatrix": (
        ("measured here", "bitsmith imatrix MODEL -o imatrix.gguf"),
        ("on your own text", "bitsmith imatrix MODEL --calibration-text notes.txt -o imatrix.gguf"),
        ("then", "bitsmith convert MODEL --to Q4_K_M --imatrix imatrix.gguf -o out.gguf"),
    ),
}


def complete(parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> None:
    """Give all commands what they lack."""
    _add(parser, "first steps:", FIRST_STEPS, "bitsmith alone opens the window; bitsmith COMMAND --help says more.")
    for name, command in commands.items():
        for action in command._actions:
            if not action.option_strings and action.help is None and str(action.metavar) in ARGUMENTS:
                action.help = ARGUMENTS[str(action.metavar)]
        if name in EXAMPLES:
            _add(command, "examples:", EXAMPLES[name])


def _add(parser: argparse.ArgumentParser, title: str, examples: tuple[tuple[str, str], ...], last: str = "") -> None:
    width = max(len(line) for _, line in examples)
    lines = [f"  {line:<{width}}   # {what}" for what, line in examples]
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join([title, *lines, *((f"\n{last}",) if last else ())])
