"""Look at every value of a model in the background, for what its headers can not tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.jobs.runner import Work
from core.progress import CancelToken

if TYPE_CHECKING:
    from core.checkpoint.base import Checkpoint
    from core.checkpoint.doctor import Finding, ScanStep

SCAN_KEY = "scan-values"


def scan_work(checkpoint: Checkpoint) -> Work:
    """Yields a ScanStep a block of rows; the result is a tuple of all findings."""

    def work(token: CancelToken) -> Iterator[ScanStep]:
        from core.checkpoint.doctor import scan_values

        findings: list[Finding] = []
        for step in scan_values(checkpoint, token):
            findings.extend(step.findings)
            yield step
        return tuple(findings)

    return work
