"""Parquet files, with the library `pyarrow` where it is installed: it takes more room than all that Bitsmith needs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from core.calibration.files import Pieces, no_fields
from core.calibration.records import Record, known_columns, record_of
from core.errors import UserError

MAGIC = b"PAR1"
ROWS = 32  # of a piece


class ParquetFile(Pieces):
    """A piece is some rows of one row group, spread over it. One row group is in memory at a time."""

    def __init__(self, name: str, path: Path, seed: int) -> None:
        """seed: of which rows make a piece. Raises UserError without pyarrow, and for a damaged or unsuited file."""
        super().__init__(name)
        try:
            library: Any = import_module("pyarrow.parquet")
        except ImportError:
            raise UserError(
                f"{name} is a Parquet file, and the package pyarrow, which reads them, is not installed.",
                "Run 'pip install pyarrow', or save the data as JSON lines.",
            ) from None
        self._seed = seed
        try:
            self._file: Any = library.ParquetFile(path)
            self._rows = [self._file.metadata.row_group(i).num_rows for i in range(self._file.metadata.num_row_groups)]
            names = [str(n) for n in self._file.schema_arrow.names]
        except (OSError, ValueError) as e:  # pyarrow's own errors are ValueErrors
            raise UserError(f"{name} is a damaged Parquet file.", "Download it again.") from e
        self._columns = known_columns(names)
        if not self._columns:
            raise no_fields(name, names)
        self._starts = np.cumsum([0, *(-(-rows // ROWS) for rows in self._rows)])
        self._held: tuple[int, Any] = (-1, None)
        self._good = 0

    @property
    def count(self) -> int:
        return int(self._starts[-1])

    def read(self, index: int) -> Sequence[Record]:
        group = int(np.searchsorted(self._starts, index, side="right")) - 1
        try:
            if self._held[0] != group:
                self._held = (-1, None)
                self._held = (group, self._file.read_row_group(group, columns=self._columns))
            order = np.random.default_rng((self._seed, group)).permutation(self._rows[group])
            first = (index - int(self._starts[group])) * ROWS
            rows = self._held[1].take(sorted(order[first : first + ROWS].tolist())).to_pylist()
        except (OSError, ValueError) as e:
            raise UserError(f"{self.name} is a damaged Parquet file.", "Download it again.") from e
        found = [record for row in rows if (record := record_of(row, self.name))]
        self._good += len(found)
        return found

    def finish(self, whole: bool) -> None:
        if whole and not self._good:
            raise (
                no_fields(self.name, self._columns)
                if self.count
                else UserError(f"{self.name} has no rows.", "Choose another text.")
            )
