"""Results in other forms and in files: methods of fitted models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from brtf.api.fitted import Fitted
from brtf.api.fitting import processing
from brtf.io.archive import save_result
from brtf.io.write_zarr import Written, write_result
from brtf.results.tables import cp_tensor_of, dataset_of, frame_of


class Exports(Fitted):
    """Base class of models whose results go to tables, datasets and files."""

    executor: Any
    n_jobs: int | None

    def to_frame(self, of: Literal["outliers", "imputed"] = "outliers") -> Any:
        """Export outliers or imputed data as a long table.

        Parameters
        ----------
        of : {"outliers", "imputed"}
            ``"outliers"``: a row per entry with an outlier probability above ½, the largest outliers first, with the
            columns ``observed``, ``low_rank``, ``outlier`` and ``probability``. ``"imputed"``: a row per entry of the
            tensor, with the value as :meth:`impute` gives it, under its own name (or ``value``), the standard deviation
            ``std`` of the low-rank part, and ``missing``, True where no value was given.

        Returns
        -------
        pandas.DataFrame, or polars.DataFrame if the data came in one
            With the index columns of the data first. Modes without names are called mode_0, mode_1, …; a column whose
            name is also that of a mode gets a trailing underscore.
        """
        return frame_of(self._fitted().at_hand, of)

    def to_xarray(self) -> Any:
        """Export the results as a Dataset with the labels of the data, and all coordinates and attributes.

        Returns
        -------
        xarray.Dataset
            ``to_netcdf`` writes it to a file.

        Notes
        -----
        Of the shape of the data: ``observed`` (NaN where nothing was given), ``low_rank``, its standard deviation
        ``std``, and ``outliers`` and ``outlier_probability`` (NaN where nothing was fitted). Per mode
        ``factor_<mode>``, (I_n, R) along the mode and ``component``; modes read as one have one together,
        ``factor_<mode>_<mode>``. ``noise_variance``, a number or along the noise
        modes. Attributes: rank, bound, inference, link, stop_reason, brtf_version. Units are as in the methods of
        the same names; a name that is also that of a mode gets a trailing underscore.
        """
        return dataset_of(self._fitted().at_hand)

    def to_tensorly(self) -> Any:
        """Export the posterior means of the factors as a ``tensorly.cp_tensor.CPTensor`` with unit weights.

        Returns
        -------
        tensorly.cp_tensor.CPTensor
            ``tensorly.cp_to_tensor`` of it is :meth:`low_rank`, along the groups where modes are read as one; with a
            link t it is the low-rank part of t(Y). Rank 0, which TensorLy cannot expand, becomes a component of zeros.
        """
        return cp_tensor_of(self._fitted())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit to one file, atomically; :func:`brtf.load` reads it back.

        Parameters
        ----------
        path : path
            By custom with the suffix ``.brtf``; an existing file is replaced.
        """
        save_result(self._fitted(), path)

    def write(
        self,
        path: str | os.PathLike[str],
        what: Sequence[Written] = ("low_rank", "outliers", "outlier_probability", "imputed"),
    ) -> None:
        """Write results for every entry to a new Zarr store, chunk by chunk; for data read in chunks.

        Every array has the shape of the data, their type and a checksum: ``low_rank``, its standard deviation ``std``,
        ``outliers`` and ``outlier_probability`` (0 where missing), and ``imputed``, Y with missing entries filled in.
        For coordinates there is a group per chunk, with ``coords`` (N, m) and vectors (m,). The workers of ``executor``
        write the chunks, so all of them must have access to the path. The attribute ``complete`` is set at the end.

        Parameters
        ----------
        path
            A directory that does not exist yet.
        what
            Which of the arrays.
        """
        result = self._fitted()
        with processing(self.executor, self.n_jobs):
            write_result(result, path, what)
