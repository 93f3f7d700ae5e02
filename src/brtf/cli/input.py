"""The argument INPUT of commands, the options that describe it, and the data that it names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brtf.cli.options import adding

if TYPE_CHECKING:
    from brtf.data.observations import Observations
    from brtf.data.readers import TensorFile


@dataclass(frozen=True)
class Input:
    """A file or directory of data, and what the options say about it.

    Attributes
    ----------
    path : where it is
    mask : file of a mask of observed entries; None: all that are not NaN
    key : which array or sheet of a file with several
    index, value, wide : what the columns of a table are, see :func:`describes_table`
    """

    path: Path
    mask: Path | None = None
    key: str | None = None
    index: str | None = None
    value: str | None = None
    wide: bool = False

    @property
    def is_described(self) -> bool:
        """Whether any option is given."""
        return self.wide or any(part is not None for part in (self.mask, self.key, self.index, self.value))

    @property
    def counts_from(self) -> int:
        """The first position of a mode, as the file counts."""
        return 1 if self.path.suffix.lower() == ".tns" else 0

    @property
    def is_read_in_chunks(self) -> bool:
        """Whether the data are a directory of tables, or a store larger than half of the memory."""
        from brtf.data.memory import available_bytes

        if not self.path.is_dir():
            return False
        sizes = (file.stat().st_size for file in self.path.rglob("*") if file.is_file())
        return self.path.suffix != ".zarr" or sum(sizes) > available_bytes() // 2

    @property
    def _columns(self) -> list[str] | None:
        return None if self.index is None else [name.strip() for name in self.index.split(",")]

    def read(self) -> TensorFile:
        """Read the tensor, and what is needed to write one in the same format."""
        from brtf.data.readers import read_file

        return read_file(self.path, key=self.key, index=self._columns, value=self.value, wide=self.wide)

    def observe(self, file: TensorFile | None = None) -> Observations:
        """The observed entries of the tensor, which is read unless it is given."""
        from brtf.data.observe import observe
        from brtf.data.readers import read_mask

        tensor = (self.read() if file is None else file).tensor
        return observe(tensor, None if self.mask is None else read_mask(self.mask))

    def open_in_chunks(self) -> Observations:
        """The observed entries of a store or a directory of tables, read in chunks when they are needed."""
        from brtf.data.observations import Observations
        from brtf.data.readers import open_file

        if self.wide:
            raise ValueError(f"--wide applies to a table, but {self.path} is read in chunks. Leave it out.")
        if self.path.is_dir() and self.path.suffix != ".zarr":
            if self.mask is not None or self.key is not None:
                raise ValueError("--mask and --key do not apply to a directory of tables.")
            return Observations.from_parts(self.path, index=self._columns, value=self.value)
        if self.index is not None or self.value is not None:
            raise ValueError(f"--index and --value apply to tables, but {self.path} is not a table. Leave them out.")
        for path in (self.path, self.mask):
            if path is not None and path.suffix.lower() not in (".zarr", ".npy"):
                raise ValueError(
                    f"{path} cannot be read in chunks: a .zarr store, an .npy file or a directory of .parquet, .csv or "
                    ".tsv tables can. Leave out --scheduler, or convert it first."
                )
        mask = None if self.mask is None else open_file(self.mask).tensor
        return Observations.from_chunks(open_file(self.path, key=self.key).tensor, mask)


def describes_table(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that describe a table."""
    return adding(
        command,
        click.option(
            "--index", metavar="A,B,C", help="Columns of a table that index the modes  [default: all but the value]."
        ),
        click.option("--value", metavar="NAME", help="Column of a table that holds the values  [default: the last]."),
        click.option(
            "--wide",
            is_flag=True,
            help="The table has values in many columns, as a matrix; --index names those that label its rows, if any.",
        ),
    )


def reads_input(command: Callable[..., int]) -> Callable[..., int]:
    """Add the argument INPUT and the options that describe it, passed to the command together as ``given``."""

    @functools.wraps(command)
    def collected(
        source: Path, mask: Path | None, key: str | None, index: str | None, value: str | None, wide: bool, **rest: Any
    ) -> int:
        return command(given=Input(source, mask, key, index, value, wide), **rest)

    return adding(
        describes_table(collected),
        click.argument("source", metavar="INPUT", type=click.Path(path_type=Path)),
        click.option(
            "--mask",
            type=click.Path(path_type=Path),
            help="Mask of observed entries: .npy .npz .mat .nc .zarr of True/False or 1/0.",
        ),
        click.option(
            "--key", metavar="NAME", help="Which array of an .npz, .mat, .nc or .zarr file, or sheet of an .xlsx."
        ),
    )
