"""The scikit-learn estimator BRTF: options in, fitted attributes and methods out; no mathematics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from numpy.typing import DTypeLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags

from brtf.api.answers import loadings_contained
from brtf.api.exports import Exports
from brtf.api.fitting import fit, fit_on, new_data, processing
from brtf.api.predictions import Predicts
from brtf.api.shown import Shown
from brtf.api.sklearn_compat import (
    TakesY,
    UnavailableError,
    check_options,
    generator,
    mask_argument,
    settings_of,
    suggests_options,
)
from brtf.data.checks import type_name
from brtf.data.chunked_input import comes_in_chunks, row_blocks
from brtf.data.observe import observe
from brtf.data.signals import dying_of_signals
from brtf.io.checkpoint import begin, load_result
from brtf.kernels.log import log_shown
from brtf.model.settings import Settings
from brtf.search.fold_in import fold_in


class BRTF(
    Predicts,
    Exports,
    Shown,
    TakesY,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Bayesian robust tensor factorization of incomplete data.

    Models the observed entries as Y = X + S + noise and estimates the low-rank part X = Σ_r a⁽¹⁾_r ∘ … ∘ a⁽ᴺ⁾_r, the
    outliers S, the rank and the noise level, with uncertainties.

    Parameters
    ----------
    max_rank : int or None
        Largest rank of the result; the search may use more components on the way. None: no limit, components are added
        as long as the bound rises, memory allows and there are fewer parameters than observed entries. (With
        ``inference="paper"``, which starts with all components: min(max_n I_n, min_n Π_{k≠n} I_k, 100).)
    inference : {"calibrated", "paper"}
        ``"calibrated"`` learns noise, outliers and rank jointly and makes every discrete choice by the bound;
        ``"paper"`` is Algorithm 1 of Zhao et al., with errata corrected, where every "auto" means the paper's.
    robust : bool
        False leaves S out: Bayesian CP factorization.
    init : {"spectral", "random"} or list of arrays
        Start from the singular vectors of the unfoldings or from standard normal factors. Given factor matrices (I_n,
        R) are an additional start: the bound picks the best.
    modes : "auto", None or dict
        What is known of the modes, by number or name: {"time": "ordered", "emission": "nonnegative"}. Along
        an "ordered" mode every component follows a Markov chain, in the order of the rows as stored and with the
        spacing of their labels if these are times or numbers; along a "cyclic" one, such as the hours of a day, the
        last row is followed by the first. The loadings of a "nonnegative" mode are never negative.
        Of modes that are not named, and with "auto" of all, the bound decides; a mode is tried in order where its
        rows resemble their neighbours beyond chance, and as non-negative where nearly all of its loadings have one
        sign. "unordered", and None for all modes: rows are a set and loadings have either sign, nothing is tried.
    noise : {"auto", "common", "per-slice"}
        One noise level for all entries, or one per slice; "auto" lets the bound decide.
    noise_modes : sequence of int or None
        The modes along which the noise differs, e.g. (0,) for one level per row of the first mode, (0, 1) for one per
        pair. None: the first mode, or with "auto" the one or two modes that raise the bound most.
    outlier_modes : list of modes
        Modes along which outliers are shared: entries that differ only in these modes are outliers together or not at
        all, like the colours of a covered pixel. The correlation of their noise is estimated.
    outlier_kind : {"auto", "additive", "one-sided", "replacement"}
        Outliers are added to the data, mostly with one sign if "one-sided", or replace them with values from a learnt
        distribution: salt and pepper, saturation, dead sensors, sentinel values. "auto": the bound chooses,
        replacement only where most outliers repeat exact values; it also chooses whether outliers are shared along a
        mode, differ in rate along one or with the distance of two, and have one sign, the last also with "additive".
    outlier_labels : array of integers or None
        Every label has an outlier rate of its own: the zones of a map, the diagonal of origins × destinations. The
        array has the shape of Y, or 1 for the length of modes along which labels do not vary.
    calibrate : None or "conformal"
        ``"conformal"`` sets aside a random 5 % of the observed entries and scales the intervals of new observations so
        that they cover these: see :meth:`predict_interval`.
    link : {"auto", None, "sqrt", "log", "log1p"}
        Fit the square root or the logarithm of Y, or that of 1 + Y/c with c its smallest positive value:
        t(Y) = X + S + noise. Answers are in the units of Y where nothing else is said, and bounds and scores of
        different links of the same data compare. "auto": the bound chooses among those that the data allow, in short
        trials; None for data in chunks, and with ``outlier_kind="replacement"``, where values repeat exactly and their
        densities do not compare.
    arrangement : "auto", None, groups of modes, or dict of periods
        Which modes are read as one: ((0, 1), (2,)) fits a tensor of order 3 as a matrix whose rows are pairs of
        positions of modes 0 and 1. Or which are folded: {0: 24} reads hours as days × hours of the day, the last day
        filled up with missing hours. None: every mode as it is. "auto": the bound chooses, in short trials, where the
        residual has structure that a merged reading would explain, and among periods that evenly spaced time stamps or
        lines in the spectrum of the data suggest. Whatever goes in or comes out has the shape of Y.
    smooth_residual : None, "auto" or int
        A smooth residual g beside the low-rank part, Y = X + G + S + noise: along this mode every fibre has a course of
        its own, an autoregression whose variance is learnt. "auto": the bound chooses the mode, or none; tried only
        where neighbouring residuals resemble each other beyond chance. Such a course can take the place of many small
        components, which may predict better: compare by :func:`brtf.evaluate`. Not available for data in chunks.
    scatter : None, float or dict
        Fluorescence: leave out scattered light, as if it were missing. The number is a width in nm: left out are cells
        whose emission is at most so much longer than the excitation, or shorter, or so near to twice the excitation or
        to the Raman lines of water of the first two orders. Wavelengths are the labels of the modes whose names begin
        with em and ex, or {"width": 15, "emission": 1, "excitation": 2} says which. With "raman": 2900 it is another
        solvent, by its shift per cm, and with "raman": None there is no Raman scatter. New slices are read likewise.
    rank_by : "auto" or "bound"
        What has the last word on the rank. "bound": the bound. "auto": where entries are missing and the bound leaves
        structure unexplained, one entry in twenty is held out, larger ranks compete in predicting those, and the winner
        is fitted to all entries. Complete data are left to the bound.
    max_sweeps : int
        Maximum number of sweeps of the search. Where held-out entries have the last word on the rank, it is that of
        the sweeps made for this too.
    max_seconds : float or None
        Time limit for a call of :meth:`fit`, or for a block of :meth:`partial_fit`, after which the best state so far
        is returned. Checked after every sweep and proposal; finishing the result takes extra time. Choosing link and
        arrangement may take half of it.
    tol : float
        Change of the bound, in nats per observed entry, below which the fit has converged.
    dtype : numpy.float32, numpy.float64 or None
        Type in which the data are stored. None keeps float32 and casts everything else to float64.
    n_jobs : int or None
        Number of threads that process blocks of entries; None is one, −1 all cores. The result does not depend on it,
        to the last bit.
    random_state : int, numpy.random.Generator, numpy.random.RandomState or None
        Seed of the fit.
    progress : bool
        Show a progress bar with the phase of the search, the bound, the rank and, with ``max_seconds``, the time left;
        on a cluster also the address of its dashboard. Say so on stderr where the first fit after an installation
        compiles, once. The logger ``brtf`` says it anyway, at level INFO.
    executor : None, "processes", address or distributed.Client
        What processes data in chunks (Dask, Zarr, memory-mapped files, :meth:`Observations.from_parts`): this process,
        ``n_jobs`` other processes on this machine (None: all cores), or the cluster of a Dask scheduler such as
        ``"tcp://host:8786"``. The result does not depend on it, to the last bit.

    Attributes
    ----------
    rank_ : number of components found
    factors_ : list of (I_n, rank_) posterior means; low_rank() is the sum of their columns' outer products, or with a
        link the mean of t⁻¹ of it. The strongest component, by the root mean square of its outer product, is first; in
        every mode but the last, non-negative ones apart, the loading of largest size is positive. ``partial_fit`` keeps
        order and signs. Where modes are read as one, there is a matrix per group of ``arrangement_``, whose rows are
        the positions of its modes in C order. A folded mode has two, such as days and hours of the day; their products
        at every position are in :meth:`to_xarray` and :meth:`to_tensorly`
    factor_covariances_ : list of (I_n, rank_, rank_) posterior covariances of the rows
    component_precisions_ : (rank_,) posterior means of λ, for data divided by their scale
    noise_variance_ : variance of the noise, in the squared units of Y, with a link of t(Y); where it differs between
        slices that of a typical one, the median
    noise_variances_ : the same as an array over ``noise_modes_``, of order 0 where the noise is common
    noise_, link_, arrangement_ : "common" or "per-slice", the link, and the groups of modes, as given or chosen
    smooth_residual_ : the mode along which there is a smooth residual; None without one
    folding_ : dict of the folded modes with their periods, as given or chosen
    outlier_kind_, outlier_modes_ : "additive", "one-sided" or "replacement", and the modes along which outliers are
        shared, likewise
    choices_ : for every option that was "auto" what was chosen, its gain in nats, and both in a sentence
    modes_ : what each mode is taken to be, by number: ("ordered",), ("cyclic",), ("unordered", "nonnegative"), …
    noise_modes_ : the modes along which the noise differs, in increasing order; empty if it does not
    outlier_rate_ : mean outlier probability of the observed entries
    outlier_rates_ : the rates at which outliers are expected, of the shape of Y, or 1 along modes where they are equal
    bound_ : final lower bound of ln p(Y), in nats; with a link it includes Σ ln |dt/dy|
    trace_ : structured array, a row per accepted sweep and per proposal: sweep, bound, rank, noise_variance, event
    n_sweeps_, converged_, stop_reason_ : number of sweeps, whether the fit converged, and how it ended, as a sentence
    n_iter_ : n_sweeps_ under scikit-learn's name
    diagnosis_ : problems found with the fit, each with its kind, a message and a remedy; empty if there are none. Each
        is also issued as a :class:`brtf.FitWarning` or a ConvergenceWarning
    shape_in_, n_observed_, n_features_in_ : shape of Y, number of observed entries, length of mode 1
    feature_names_in_ : the column names, if Y is a matrix with named columns
    result_ : everything above in one object, as saved

    Examples
    --------
    >>> import brtf
    >>> data = brtf.datasets.paper_synthetic(outliers=0.1, missing=0.5, seed=1)
    >>> model = brtf.BRTF(max_rank=10, random_state=0).fit(data.observed)
    >>> model.rank_
    3
    """

    @suggests_options
    def __init__(
        self,
        max_rank: int | None = None,
        *,
        inference: str = "calibrated",
        robust: bool = True,
        init: Any = "spectral",
        modes: Any = "auto",
        noise: str = "auto",
        noise_modes: Sequence[int] | None = None,
        outlier_modes: Sequence[int] | None = None,
        outlier_kind: str = "auto",
        outlier_labels: Any = None,
        calibrate: str | None = None,
        link: str | None = "auto",
        arrangement: Any = "auto",
        smooth_residual: Any = None,
        scatter: Any = None,
        rank_by: str = "auto",
        max_sweeps: int = 500,
        max_seconds: float | None = None,
        tol: float = 1e-6,
        dtype: DTypeLike | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
        progress: bool = False,
        executor: Any = None,
    ) -> None:
        self.max_rank = max_rank
        self.inference = inference
        self.robust = robust
        self.init = init
        self.modes = modes
        self.noise = noise
        self.noise_modes = noise_modes
        self.outlier_modes = outlier_modes
        self.outlier_kind = outlier_kind
        self.outlier_labels = outlier_labels
        self.calibrate = calibrate
        self.link = link
        self.arrangement = arrangement
        self.smooth_residual = smooth_residual
        self.scatter = scatter
        self.rank_by = rank_by
        self.max_sweeps = max_sweeps
        self.max_seconds = max_seconds
        self.tol = tol
        self.dtype = dtype
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.progress = progress
        self.executor = executor

    def fit(
        self,
        Y: Any,
        y: Any = None,
        *,
        mask: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: float | None = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> BRTF:
        """Fit the model to the observed entries.

        With ``checkpoint`` a long fit saves its progress to a file, atomically, at intervals, on Ctrl-C and at the end.
        With ``resume`` it continues from such a file to the result that the uninterrupted fit would have had, the same
        to the last bit. Meanwhile SIGTERM and SIGHUP, by which a batch system or a closed terminal ends a process, save
        it too before they do; in threads other than the main one, and where the program handles them itself, they do
        what they did.

        Ctrl-C leaves the model fitted with the best state so far, ``converged_`` False and the reason in
        ``stop_reason_``; the ``KeyboardInterrupt`` is still raised, so that loops and scripts end. If it comes before
        the first start has settled, or while link and arrangement are being chosen, the model is left as it was.

        Parameters
        ----------
        Y : array-like of order ≥ 2
            The data; NaN, masked or absent entries are missing. Never modified. A complete float array is not copied,
            so changing it afterwards changes the result of :meth:`outliers`.
        y : mask, or ignored
            A second positional argument is the mask; a scikit-learn target vector (one value per row) is ignored.
        mask : array of bool, True = observed
        checkpoint : path or None
            File to save progress to; it must not exist yet, unless it is the one to resume from.
        every : float or None
            Seconds between checkpoints; None is 60, and 0 writes one after every sweep and every proposal.
        resume : path or None
            Checkpoint to resume from; progress is saved to it unless ``checkpoint`` names another file. Data and
            options must be the same as before, except ``n_jobs``, ``progress`` and ``max_seconds``, which is counted
            from the resumption; a ``random_state`` of None stands for the earlier one.

        Returns
        -------
        self
        """
        self._fit(self._settings(), Y, mask_argument(y, mask), checkpoint, every, resume)
        self._warn()
        return self

    def _settings(self) -> Settings:
        """The options, checked."""
        return settings_of({name: getattr(self, name) for name in Settings.__dataclass_fields__})

    def _fit(
        self,
        settings: Settings,
        Y: Any,
        mask: Any,
        checkpoint: str | os.PathLike[str] | None = None,
        every: float | None = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> None:
        """See :meth:`fit`."""
        with (
            dying_of_signals() if checkpoint is not None or resume is not None else nullcontext(),
            log_shown(shown=self.progress),
            processing(self.executor, self.n_jobs) as dashboard,
        ):
            observations = observe(Y, mask, dtype=self.dtype)
            if self.executor is not None and not observations.in_chunks:
                raise ValueError(
                    f"executor={self.executor!r} needs data that others can read for themselves: a Dask array, a Zarr "
                    "array, a file mapped by numpy.load(…, mmap_mode='r') or Observations.from_parts, got "
                    f"{type_name(Y)}."
                )
            settings = settings.with_numbered_modes(observations.dim_names, observations.order)
            rng = generator(self.random_state)
            earlier, keeper = begin(observations, settings, rng, checkpoint, every, resume)
            if earlier is not None:
                rng = earlier.generator(self.random_state, rng)
            shown = (dashboard or "") if self.progress else None
            self._adopt(
                fit(observations, settings, rng, progress=shown, earlier=earlier, keeper=keeper, rescue=self._adopt)
            )

    @property
    def partial_fit(self) -> Callable[..., BRTF]:
        """Update the fit with new slices of the first mode: ``partial_fit(Y, y=None, *, mask=None)``.

        The current posterior becomes the prior of the new block: factors, component precisions, noise and outlier
        parameters are updated as if the earlier entries were still there. The new rows are appended; the earlier ones
        do not change. On an unfitted model it is :meth:`fit`. Time and memory depend on the block and on the posterior,
        not on the entries seen so far, which are not kept; the options and the scale of the data are those of the first
        block.

        Afterwards ``factors_``, :meth:`low_rank`, :meth:`predict` and ``shape_in_`` refer to all rows. Whatever needs
        the entries refers to the newest block only: :meth:`outliers` and :meth:`outlier_probability` are sparse arrays
        of the whole shape, filled in the rows of the block; :meth:`impute` gives the low-rank part in all earlier rows;
        and ``n_observed_``, ``outlier_rate_``, ``trace_`` and ``bound_``, a bound of ln p(block | earlier blocks), are
        those of the block. Summed over the blocks, the bounds come close to that of one fit to all data.

        The rank and the outlier model are those of the first block, which must be large enough to show every component.
        Requires ``inference="calibrated"`` with one noise level, which ``noise="auto"`` then means, and without
        ``calibrate``; ``arrangement="auto"`` means None. Ctrl-C leaves the model as it was before the block.

        Parameters
        ----------
        Y : array-like (n, I_1, …, I_{N−1}), or iterator of such
            Any number of new rows; the other modes as before. An iterator of blocks, a Dask array (alone or in xarray)
            and a Zarr array are processed block by block, with one in memory at a time.
        y, mask
            As in :meth:`fit`.

        Returns
        -------
        self

        Examples
        --------
        >>> import brtf
        >>> data = brtf.datasets.synthetic((60, 20, 15), 3, outliers=0.1, missing=0.3, seed=0)
        >>> model = brtf.BRTF(random_state=0)
        >>> for start in range(0, 60, 10):
        ...     _ = model.partial_fit(data.observed[start : start + 10])
        >>> model.shape_in_, model.rank_
        ((60, 20, 15), 3)
        """
        if self.inference == "paper":
            raise UnavailableError(
                'partial_fit needs inference="calibrated", got "paper", which learns numbers of its own for every '
                "entry. Choose calibrated inference, or fit all data at once."
            )
        return self._partial_fit

    def _partial_fit(self, Y: Any, y: Any = None, *, mask: Any = None) -> BRTF:
        """See :attr:`partial_fit`."""
        if isinstance(Y, Iterator):
            if mask_argument(y, mask) is not None:
                raise ValueError("mask= does not apply to an iterator of blocks: mark what is missing in them as NaN.")
            for block in Y:
                self._partial_fit(block)
            return self
        if comes_in_chunks(getattr(Y, "data", Y) if hasattr(Y, "dims") else Y):
            for block, own in row_blocks(Y, mask_argument(y, mask)):
                self._partial_fit(block, mask=own)
            return self
        if not hasattr(self, "result_"):
            self._fit(self._settings().for_streaming(), Y, mask_argument(y, mask))
            self._warn()
            return self
        earlier = self.result_
        block = new_data(Y, earlier, mask_argument(y, mask))
        self._adopt(fit_on(block, earlier, progress="" if self.progress else None))
        self._warn()
        return self

    def set_params(self, **params: Any) -> BRTF:
        """Change options of the constructor; returns the model itself."""
        check_options(params, self._get_param_names(), ValueError)
        super().set_params(**params)
        return self

    def transform(self, Y: Any, return_std: bool = False) -> Any:
        """Loadings (n, rank_) of new slices Y of the first mode, (n, I_1, …); with ``return_std`` also their std.

        All else is held as fitted; the other modes and the units are those of the fitted data. The answer is a table or
        xarray.DataArray if Y is one or :meth:`set_output` asks for it. Where the first mode was read as one with
        others, it is an array (n, I_k, …, rank_), which no table can hold: fit with ``arrangement=None`` for one. Where
        it was folded, the first row is taken to have the phase of the first row of the fitted data, and the loadings of
        a row are those of its round times those of its phase.
        """
        result = self._fitted()
        observations = new_data(Y, result)
        rows, prior = fold_in(result.as_modelled(observations), result.state, result.settings)
        mean, std = result.loadings(rows, prior, observations.shape[0])
        modes, names = result.arrangement.groups[0], self.get_feature_names_out().tolist()
        loadings = loadings_contained(observations, mean, modes, names)
        return (loadings, loadings_contained(observations, std, modes, names)) if return_std else loadings

    def fit_transform(self, Y: Any, y: Any = None, *, mask: Any = None) -> Any:
        """Fit to Y, with ``y`` and ``mask`` as in :meth:`fit`, and return its loadings as :meth:`transform` does."""
        self.fit(Y, y, mask=mask)
        return self.transform(self.result_.observations)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags


def load(path: str | os.PathLike[str]) -> BRTF:
    """Read a fitted model from a file that :meth:`BRTF.save` wrote.

    The file at ``path`` is verified before it is read: damaged and foreign files raise an error. The :class:`BRTF` that
    is returned answers like the one that was saved. A checkpoint gives the best state so far, with a warning, and none
    of the data.
    """
    result = load_result(path)
    settings = {name: getattr(result.settings, name) for name in Settings.__dataclass_fields__}
    model = BRTF(**settings)
    model._adopt(result)
    return model
