"""The states of 'Get a model' for the pictures: a hub on the loopback interface, and no other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import hub_server
from hub_server import Hub, Repo, silent, slow, status
from tiny_models import write_llama

GIB = 1 << 30


def get_states(c: Any) -> Iterator[str]:
    """Put the window into one state after another; yields the name of each. c: the Camera."""
    files = {p.name: p.read_bytes() for p in write_llama(c.scratch / "hub-source", layers=4).iterdir()}
    files |= {
        "pytorch_model.bin": b"x" * 3000,
        "original/consolidated.00.pth": b"x" * 3000,
        "onnx/model.onnx": b"x" * 3000,
    }
    kinds = ("BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "UD-Q2_K_XL")
    ggufs = {f"SmolLM3-3B-128K-Instruct-{kind}.gguf": bytes(9000 - 900 * n) for n, kind in enumerate(kinds)}
    repos = {
        "HuggingFaceTB/SmolLM2-135M-Instruct": Repo(files, "apache-2.0", 512_345),
        "unsloth/SmolLM3-3B-128K-Instruct-GGUF": Repo(ggufs | {"mmproj-F16.gguf": bytes(3000)}, "apache-2.0", 98_765),
        "meta-llama/SmolLlama-3.2-1B-Instruct": Repo(files, "llama3.2", 2_345_678, gated="manual"),
    }
    running = hub_server.serve(Hub(repos))
    hub = next(running)
    environment = {"HF_ENDPOINT": hub.endpoint, "BITSMITH_MODELS": str(c.scratch / "Models"),
                   "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}  # fmt: skip
    cleared = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
    with (
        mock.patch.dict(os.environ, cleared | environment, clear=True),
        mock.patch("core.disk.free_bytes", return_value=34 * GIB),
    ):
        yield from _states(c, hub)
    running.close()


def _states(c: Any, hub: Hub) -> Iterator[str]:
    window = c.window
    page = window.page("model")
    window.services.session.update(checkpoint=None, problem=None, opening=None)
    window.show_page("model")
    get = page.get

    def ask(text: str, view: Any) -> None:
        get.field.setText(text)
        get.find.click()
        c.wait(lambda: get.current is view)
        c.rest(0.1)

    page.start.get.click()
    c.rest(0.1)
    yield "get-empty"
    hub.fail("/api/models", silent)
    ask("smol", get.waiting)
    yield "get-searching"
    get.stop.click()
    ask("smol", get.results)
    get.results.view.selectRow(0)
    yield "get-results"
    ask("smool", get.nothing)
    yield "get-nothing"
    ask("https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct/tree/main", get.listing)
    yield "get-listing"
    get.more.click()
    c.wait(lambda: bool(get.settings.state.text()))
    yield "get-advanced"
    get.more.click()
    ask("hf.co/unsloth/SmolLM3-3B-128K-Instruct-GGUF:Q4_K_M", get.listing)
    yield "get-gguf"
    ask("meta-llama/SmolLlama-3.2-1B-Instruct", get.listing)
    yield "get-gated"
    get.field.setText("owner/no-such-model")
    get.find.click()
    c.wait(get.error.isVisible)
    yield "get-missing"
    get.error.hide()
    window.services.settings.offline = True
    get.find.click()
    c.wait(get.error.isVisible)
    yield "get-offline"
    window.services.settings.offline = False
    get.error.hide()
    hub.fail("/cdn/", slow(0.25, 8192), times=2)
    ask("HuggingFaceTB/SmolLM2-135M-Instruct", get.listing)
    get.listing.download.click()
    c.wait(lambda: get.downloads.progress is not None and bool(get.downloads.progress.seconds_left))
    yield "get-downloading"
    get.transfer.buttons["pause"].click()
    c.wait(lambda: get.downloads.progress.phase == "paused")
    yield "get-paused"
    get.transfer.buttons["cancel"].click()
    c.wait(lambda: get.downloads.state.final)
    yield "get-cancelled"
    hub.faults.clear()
    hub.fail("/cdn/", status(403), times=9)
    get.transfer.buttons["resume"].click()
    c.wait(lambda: get.downloads.state.value == "failed")
    yield "get-failed"
    hub.faults.clear()
    get.back.click()
    c.wait(lambda: page.start.local.count() > 0)
    yield "model-unfinished"
    page.start.get.click()
    get.transfer.buttons["resume"].click()
    c.wait(lambda: window.services.session.current.checkpoint is not None)
    window.services.session.update(checkpoint=None)
    page.start.get.click()
    yield "get-done"
    get.back.click()
