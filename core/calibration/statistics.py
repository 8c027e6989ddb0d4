"""How much each input channel of a weight matters: the mean square of what it is multiplied with, over a text."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from core.calibration.forward import BlockForward, Product
from core.calibration.imatrix import ImportanceMatrix, gather
from core.calibration.text import Samples
from core.checkpoint.base import Checkpoint
from core.methods.gram import squares
from core.methods.progress import BlockProgress
from core.methods.transform import BlockWeights
from core.progress import CancelToken


@dataclass
class _Squares:
    """Σx² of each product's input."""

    sums: dict[str, tuple[np.ndarray, int]] = field(default_factory=dict)

    def product(self, product: Product, weights: BlockWeights) -> None:
        self.sums |= dict.fromkeys(product.names, squares(product.pieces(), product.columns))


def measure_importance(
    checkpoint: Checkpoint, samples: Samples, token: CancelToken
) -> Generator[BlockProgress, None, ImportanceMatrix]:
    """Run the model over the samples, block by block. Raises UserError for a model that can not be run; Cancelled."""
    forward = BlockForward(checkpoint, samples.ids, token)
    seen = _Squares()
    forward.embed()
    for layer in range(forward.layers):
        forward.run(layer, forward.load(layer), seen)
        yield BlockProgress(layer + 1, forward.layers)
    if "output.weight" in forward.slots:
        head = Product(("output.weight",), forward.config.hidden, samples.ids.size, forward.head_input)
        seen.product(head, BlockWeights({}, {}))
    return gather(
        seen.sums, samples.ids.shape[1], [share.name for share in samples.shares], experts=forward.config.experts
    )
