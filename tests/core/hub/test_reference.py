"""Names of repositories as people paste them."""

from __future__ import annotations

import pytest

from core.errors import UserError
from core.hub.reference import Reference, parse_reference

R = "owner/Name-7B.v2"
HUB = "huggingface.co"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (R, Reference(R)),
        (f"  {R}/ \n", Reference(R)),
        (f"`{R}`", Reference(R)),
        (f"\u200b{R}\ufeff", Reference(R)),
        (f"{R}@v1.0", Reference(R, "v1.0")),
        (f"{R}@refs/pr/3", Reference(R, "refs/pr/3")),
        (f"{R}:Q4_K_M", Reference(R, tag="Q4_K_M")),
        (f"{R}:latest", Reference(R)),
        (f"{R}:Q4_K_M@v1", Reference(R, "v1", tag="Q4_K_M")),
        (f"{R}@v1:Q4_K_M", Reference(R, "v1", tag="Q4_K_M")),
        (f"hf.co/{R}:Q8_0", Reference(R, tag="Q8_0", host="hf.co")),
        (f"https://hf.co/{R}:Q8_0", Reference(R, tag="Q8_0", host="hf.co")),
        (f"huggingface.co/{R}", Reference(R, host=HUB)),
        (f"https://huggingface.co/{R}", Reference(R, host=HUB)),
        (f"<https://huggingface.co/{R}>,", Reference(R, host=HUB)),
        (f"[the model](https://huggingface.co/{R})", Reference(R, host=HUB)),
        (f"HTTPS://HuggingFace.co/{R}/", Reference(R, host=HUB)),
        (f"https://huggingface.co/{R}.git", Reference(R, host=HUB)),
        (f"https://huggingface.co/{R}?library=transformers#usage", Reference(R, host=HUB)),
        (f"https://huggingface.co/{R}/tree/main", Reference(R, host=HUB)),
        (f"https://huggingface.co/{R}/tree/main/sub/folder", Reference(R, path="sub/folder", host=HUB)),
        (f"https://huggingface.co/{R}/tree/refs%2Fpr%2F7", Reference(R, "refs/pr/7", host=HUB)),
        (f"https://huggingface.co/{R}/tree/refs/pr/7/sub", Reference(R, "refs/pr/7", "sub", host=HUB)),
        (f"https://huggingface.co/{R}/commit/0a1b", Reference(R, "0a1b", host=HUB)),
        (f"https://huggingface.co/{R}/discussions/4", Reference(R, host=HUB)),
        (f"https://huggingface.co/{R}/blob/main/a%20b.gguf", Reference(R, path="a b.gguf", host=HUB)),
        (f"https://huggingface.co/{R}/resolve/v2/a.gguf?download=true", Reference(R, "v2", "a.gguf", host=HUB)),
        (f"https://huggingface.co/{R}?show_file_info=Q4%2Fa.gguf", Reference(R, path="Q4/a.gguf", host=HUB)),
        (f"https://huggingface.co/models/{R}", Reference(R, host=HUB)),
        ("https://huggingface.co/gpt2/tree/main", Reference("gpt2", host=HUB)),
        (f"hf://{R}@v1/sub/a.gguf", Reference(R, "v1", "sub/a.gguf")),
        (f"https://mirror.example:8443/hub/{R}/tree/dev", Reference(R, "dev", host="mirror.example:8443")),
        (f"ollama run hf.co/{R}:Q4_K_M", Reference(R, tag="Q4_K_M", host="hf.co")),
        (f"$ llama-server -hf {R}:Q4_K_M -c 4096", Reference(R, tag="Q4_K_M")),
        (f"llama-cli --hf-repo {R} --hf-file a-q4.gguf", Reference(R, path="a-q4.gguf")),
        (f"hf download {R} a.gguf --local-dir out/here", Reference(R, path="a.gguf")),
        (f"huggingface-cli download --local-dir x/y {R} --revision v2", Reference(R, "v2")),
        (f"git clone https://huggingface.co/{R}.git", Reference(R, host=HUB)),
        (f"vllm serve {R} --dtype auto", Reference(R)),
        (f'model = AutoModel.from_pretrained("{R}")', Reference(R)),
        ("llama 3 8b", None),
        ("gpt2", None),
        ("", None),
        ("  ", None),
        ("smol/lm/three", None),
        ("../etc", None),
        ("owner/..", None),
    ],
)
def test_what_a_text_names(text: str, found: Reference | None) -> None:
    assert parse_reference(text, "https://mirror.example:8443/hub") == found


@pytest.mark.parametrize(
    "address",
    [
        "https://huggingface.co/datasets/owner/name",
        "https://huggingface.co/spaces/owner/name",
        "https://huggingface.co/meta-llama",
        "https://huggingface.co/",
        "https://huggingface.co/docs/hub",
        "https://ollama.com/library/llama3",
        "https://[broken/owner/name",
        "https://huggingface.co/../../etc/passwd",
    ],
)
def test_an_address_of_something_else(address: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_reference(address)
    assert caught.value.message.endswith(".")
    assert caught.value.hint


def test_a_single_word_where_only_a_repository_can_be_meant() -> None:
    assert parse_reference("gpt2", bare=True) == Reference("gpt2")
