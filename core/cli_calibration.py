"""The options of a command line that say what is chosen from data, as a part of a recipe, and back."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from core.calibration.settings import CalibrationText, Domain
from core.errors import UserError
from core.formats import Method
from core.methods.choice import Calibrated, DataMethod, Transform
from core.progress import CancelToken
from core.units import format_count, format_percent

if TYPE_CHECKING:
    from core.calibration.text import Samples
    from core.checkpoint.base import Checkpoint

PREVIEW = 240  # characters of the first sample that are shown

_DATA = {m.value for m in DataMethod} - {DataMethod.NONE.value}


def add_text_options(p: argparse._ActionsContainer) -> None:
    """Which text is sent through the model."""
    p.add_argument(
        "--calibration-text", metavar="PATH", help="calibrate on this file or folder instead of the bundled text"
    )
    p.add_argument(
        "--domain", action="append", default=[], choices=[d.value for d in Domain], help="of the bundled text only this"
    )
    p.add_argument("--samples", type=int, metavar="N", help="pieces of text that are sent through; default: 64")
    p.add_argument("--length", type=int, metavar="N", help="tokens of each piece; default: 512")
    p.add_argument("--seed", type=int, metavar="N", help="of the choice of pieces; default: 0")
    p.add_argument("--chat", action="store_true", help="wrap the text in the model's chat template")


def text_of(args: argparse.Namespace) -> CalibrationText:
    """The text that the options name."""
    return replace(CalibrationText(), **_text_of(args))


def calibrated_of(args: argparse.Namespace, recipe: Calibrated | None) -> Calibrated | None:
    """What the options say; where they say nothing, what the recipe does. Raises UserError for options that go with no
    method."""
    changes: dict[str, Any] = {}
    if args.method in _DATA:
        changes["method"] = DataMethod(args.method)
    elif args.imatrix:
        changes["method"] = DataMethod.IMPORTANCE
    if args.transform:
        changes["transforms"] = tuple(Transform(t) for t in args.transform)
    if args.alpha is not None:
        changes["alpha"] = args.alpha
    if args.aim:
        changes["aim"] = True
    if args.online:
        changes["online"] = True
    if args.imatrix:
        changes["imatrix"] = args.imatrix
    text = _text_of(args)
    if args.method and args.method not in _DATA and not args.transform:
        recipe = None  # a method without data takes the place of the recipe's
    if not changes and recipe is None:
        if text:
            raise UserError(
                "A calibration text is given, and no method that reads it.", "Add --method gptq, or a --transform."
            )
        return None
    if recipe is None:
        recipe = Calibrated(DataMethod.NONE, (Transform.AWQ,)) if "method" not in changes else Calibrated()
    return replace(recipe, **changes, text=replace(recipe.text, **text))


def method_of(args: argparse.Namespace) -> Method | None:
    """The method without data that the options name."""
    return Method(args.method) if args.method and args.method not in _DATA else None


def _text_of(args: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {
        "path": args.calibration_text,
        "domains": tuple(Domain(d) for d in args.domain),
        "samples": args.samples,
        "length": args.length,
        "seed": args.seed,
        "chat": args.chat,
    }
    given = {name: value for name, value in found.items() if value is not None and value != () and value is not False}
    if "path" in given and "domains" not in given:
        given["domains"] = ()
    return given


def calibration_words(calibrated: Calibrated | None) -> list[str]:
    """The options that say the same."""
    if calibrated is None:
        return []
    text, usual = calibrated.text, CalibrationText()
    words = [] if calibrated.method is DataMethod.NONE else ["--method", calibrated.method.value]
    for transform in calibrated.transforms:
        words += ["--transform", transform.value]
    words += ["--calibration-text", text.path] if text.path else []
    for domain in text.domains:
        words += ["--domain", domain.value]
    for name in ("samples", "length", "seed"):
        if getattr(text, name) != getattr(usual, name):
            words += [f"--{name}", str(getattr(text, name))]
    words += ["--chat"] if text.chat else []
    words += ["--alpha", f"{calibrated.alpha:g}"] if calibrated.alpha is not None else []
    words += ["--aim"] if calibrated.aim else []
    words += ["--online"] if calibrated.online else []
    return words + (["--imatrix", calibrated.imatrix] if calibrated.imatrix else [])


def samples_of(checkpoint: Checkpoint, calibrated: Calibrated | None, token: CancelToken) -> Samples | None:
    """The text that a run would be calibrated on; None where it needs none. Raises UserError; Cancelled."""
    if calibrated is None or calibrated.imatrix:
        return None
    from core.calibration.text import samples

    return samples(checkpoint, calibrated.text, token)


def text_lines(samples: Samples) -> list[str]:
    """What the text is, how it begins, and what is odd about it."""
    number, length = samples.ids.shape
    shares = ", ".join(f"{share.name} {format_percent(share.share, 0)}" for share in samples.shares)
    begins = " ".join(samples.preview[0].split()) if samples.preview else ""
    return [
        f"calibrated on {format_count(number)} × {format_count(length)} tokens: {shares}",
        f"which begin: {begins[:PREVIEW]}{'…' if len(begins) > PREVIEW else ''}",
        *(f"warning: {words}" for words in samples.warnings),
    ]


def say_warnings(samples: Samples) -> None:
    """What is odd about the text, before anything is run on it; on the stream of messages."""
    for words in samples.warnings:
        print(f"  warning: {words}", file=sys.stderr, flush=True)


def text_data(samples: Samples) -> dict[str, Any]:
    """The same as JSON, with all previews and the fingerprint."""
    number, length = samples.ids.shape
    return {
        "samples": number,
        "length": length,
        "fingerprint": samples.fingerprint,
        "shares": [asdict(share) for share in samples.shares],
        "preview": list(samples.preview),
        "warnings": list(samples.warnings),
    }
