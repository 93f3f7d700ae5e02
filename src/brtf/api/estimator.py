"""BRTF: the scikit-learn face of the library; no mathematics."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils import Tags, TransformerTags

from brtf.api.fitting import fit, fit_on
from brtf.api.shown import Shown
from brtf.api.sklearn_compat import (
    UnavailableError,
    as_tuple,
    check_like_fitted,
    check_options,
    feature_names,
    generator,
    mask_argument,
    suggests_options,
)
from brtf.data.checks import type_name
from brtf.data.chunked_input import comes_in_chunks, row_blocks
from brtf.data.executors import executing
from brtf.data.exports import to_data_array
from brtf.data.observations import observe
from brtf.data.passes import count_workers
from brtf.inference.trace import FitWarning
from brtf.io.archive import save_result
from brtf.io.checkpoint import begin, load_result
from brtf.io.write_zarr import Written, write_result
from brtf.model.settings import Settings
from brtf.model.uncertainty import honest_rows
from brtf.results.result import Quantity, Result, as_structured, check_quantity
from brtf.search.run import fold_in

Array = NDArray[np.float64]


class BRTF(Shown, BaseEstimator):
    """Bayesian robust tensor factorization of incomplete data.

    Finds in Y = X + S + noise the low-rank part X = Σ_r a⁽¹⁾_r ∘ … ∘ a⁽ᴺ⁾_r, the outliers S, the rank and the noise
    level, with uncertainties, from the observed entries alone.

    Parameters
    ----------
    max_rank : int or None
        A cap on the rank of the answer; on the way there the search may use more components. None: no cap, components
        are added as long as the bound rises, memory allows and there are fewer parameters than observed entries. (With
        ``inference="paper"``, which begins with all components: min(max_n I_n, min_n Π_{k≠n} I_k, 100).)
    inference : {"calibrated", "paper"}
        ``"calibrated"`` learns noise, outliers and rank together and judges every choice by the bound; ``"paper"`` is
        the algorithm of Zhao et al. as printed.
    robust : bool
        False leaves S out: Bayesian CP factorization.
    init : {"spectral", "random"} or list of arrays
        Start from the unfoldings' singular vectors, from N(0, 1), or also from the given factor matrices (I_n, R),
        which are one start among others: the bound picks the best.
    noise : {"common", "per-slice", "auto"}
        Whether all entries have the same noise level, or every slice its own; "auto" lets the bound decide.
    noise_modes : sequence of int or None
        The modes along which the noise differs, e.g. (0,) for one level per row of the first mode, (0, 1) for one per
        pair. None: the first mode, or with "auto" the mode that raises the bound most.
    outlier_modes : list of modes
        Modes along which an outlier is shared: entries that differ only there are outliers together or not at all, as
        the colours of a pixel that something covers. How far their noise is correlated is measured.
    outlier_kind : "additive" or "replacement"
        Outliers are added to the data, or stand in their place, with values from a law that is learnt: salt and
        pepper, saturation, dead sensors, sentinels.
    calibrate : None or "conformal"
        ``"conformal"`` holds back a random 5 % of the observed entries and stretches the intervals of new observations
        so that they cover these: see :meth:`predict_interval`.
    link : {None, "sqrt", "log"}
        Fit the square root or the logarithm of Y: t(Y) = X + S + noise. Answers are in the units of Y where nothing
        else is said, and bounds and scores of different links of the same data compare.
    max_sweeps : int
        Sweeps after which to give up.
    max_seconds : float or None
        Seconds of a call of :meth:`fit`, or for a block of :meth:`partial_fit`, after which to stop with the best so
        far. Looked at after every sweep and proposal; what comes after the stop is not counted.
    tol : float
        Change of the bound, in nats per observed entry, below which the fit has converged.
    dtype : numpy.float32, numpy.float64 or None
        How the data are held. None keeps float32 and casts everything else to float64.
    n_jobs : int or None
        Threads that work on blocks of entries; None is one, −1 as many as there are cores. The result is the same to
        the last bit.
    random_state : int, numpy.random.Generator, numpy.random.RandomState or None
        Seed of the start.
    progress : bool
        Show a progress bar, and where a cluster works the address of its dashboard.
    executor : None, "processes", address or distributed.Client
        Who works on data that come in chunks (Dask, Zarr, mapped files, :meth:`Observations.from_parts`): this process,
        ``n_jobs`` others on this machine (None: as many as there are cores), or the cluster of a Dask scheduler such as
        ``"tcp://host:8786"``. The result is the same to the last bit.

    Attributes
    ----------
    rank_ : number of components found
    factors_ : list of (I_n, rank_) posterior means; low_rank() is the sum of their columns' outer products, or with a
        link the mean of t⁻¹ of it
    factor_covariances_ : list of (I_n, rank_, rank_) posterior covariances of the rows
    component_precisions_ : (rank_,) posterior means of λ, for factors in units of the data's scale
    noise_variance_ : variance of the noise, in the squared units of Y; an array over the noise modes where it differs;
        with a link that of t(Y)
    noise_modes_ : the modes along which the noise differs, in rising order; empty where it does not
    outlier_rate_ : mean outlier probability of the observed entries
    bound_ : final lower bound of ln p(Y), in nats; with a link it includes Σ ln |dt/dy|
    trace_ : structured array, a row per sweep kept and per proposal: sweep, bound, rank, noise_variance, event
    n_sweeps_, converged_, stop_reason_ : how the fit ended
    diagnosis_ : doubts about the fit, each with its kind, a sentence and a remedy; empty where nothing is wrong. Each
        is also a :class:`brtf.FitWarning`, or a ConvergenceWarning
    shape_in_, n_observed_, n_features_in_ : what it was given
    feature_names_in_ : the column names, where a matrix was given whose columns have names
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
        noise: str = "common",
        noise_modes: Sequence[int] | None = None,
        outlier_modes: Sequence[int] | None = None,
        outlier_kind: str = "additive",
        calibrate: str | None = None,
        link: str | None = None,
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
        self.noise = noise
        self.noise_modes = noise_modes
        self.outlier_modes = outlier_modes
        self.outlier_kind = outlier_kind
        self.calibrate = calibrate
        self.link = link
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

        A long fit may keep itself in a file: with ``checkpoint`` it writes there where it stands, from time to time, on
        Ctrl-C and at the end, each time wholly or not at all. With ``resume`` it goes on from such a file to the end
        that the fit would have had, the same to the last bit.

        Ctrl-C leaves the model fitted with the best so far, ``converged_`` False and the reason in ``stop_reason_``;
        the ``KeyboardInterrupt`` is raised all the same, so that loops and scripts end. Only before the first start is
        settled, when nothing has been found yet, is the model left as it was.

        Parameters
        ----------
        Y : array-like of order ≥ 2
            The data; NaN, masked or absent entries are missing. Never modified; a complete float array is referred
            to, not copied, so changing it afterwards changes what :meth:`outliers` compares with.
        y : mask, or ignored
            A second positional argument is the mask; a scikit-learn target vector (one value per row) is ignored.
        mask : array of bool, True = observed
        checkpoint : path or None
            Where to keep the fit while it runs; not an existing file, unless it is the one to go on from.
        every : float or None
            Seconds between two writings; None is 60, and 0 writes after every sweep and every proposal.
        resume : path or None
            A checkpoint to go on from, and to keep the fit in if ``checkpoint`` names no other file. Data and options
            must be those that it was made with; ``n_jobs``, ``max_seconds``, which counts anew, and ``progress`` may
            differ, and a ``random_state`` of None stands for the earlier one.

        Returns
        -------
        self
        """
        settings = Settings(
            max_rank=self.max_rank,
            inference=self.inference,
            robust=self.robust,
            init=self.init,
            noise=self.noise,
            noise_modes=as_tuple(self.noise_modes),
            outlier_modes=as_tuple(self.outlier_modes),
            outlier_kind=self.outlier_kind,
            calibrate=self.calibrate,
            link=self.link,
            max_sweeps=self.max_sweeps,
            max_seconds=self.max_seconds,
            tol=self.tol,
            n_jobs=self.n_jobs,
        )
        with self._executing() as dashboard:
            observations = observe(Y, mask_argument(y, mask), dtype=self.dtype)
            if self.executor is not None and not observations.in_chunks:
                raise ValueError(
                    f"executor={self.executor!r} needs data that others can read for themselves: a Dask array, a Zarr "
                    "array, a file mapped by numpy.load(…, mmap_mode='r') or Observations.from_parts, got "
                    f"{type_name(Y)}."
                )
            rng = generator(self.random_state)
            earlier, keeper = begin(observations, settings, rng, checkpoint, every, resume)
            if earlier is not None:
                rng = earlier.generator(self.random_state, rng)
            shown = (dashboard or "") if self.progress else None
            self._adopt(
                fit(observations, settings, rng, progress=shown, earlier=earlier, keeper=keeper, rescue=self._adopt)
            )
        self._warn()
        return self

    def _executing(self) -> AbstractContextManager[str | None]:
        """Have chunks worked on as ``executor`` says."""
        return executing(self.executor, count_workers(-1 if self.n_jobs is None else self.n_jobs))

    @property
    def partial_fit(self) -> Callable[..., BRTF]:
        """Go on from the fit with new slices of the first mode: ``partial_fit(Y, y=None, *, mask=None)``.

        The posterior so far is the prior of the new block: factors, component precisions, noise and outlier numbers are
        updated as if the earlier entries were still there, the new rows are appended to the earlier ones, and those
        stay as they are. Without an earlier fit it is :meth:`fit`. Time and memory depend on the block and on the
        posterior, not on the entries seen so far, which are not kept; the options and the data's scale are those of the
        first block.

        Afterwards ``factors_``, :meth:`low_rank`, :meth:`predict` and ``shape_in_`` speak of all rows. What needs the
        entries speaks of the newest block only: :meth:`outliers` and :meth:`outlier_probability` are sparse arrays of
        the whole shape that are filled in its rows, :meth:`impute` gives the low-rank part in all earlier rows, and
        ``n_observed_``, ``outlier_rate_``, ``trace_`` and ``bound_``, a bound of ln p(block | earlier blocks), are
        those of the block. Summed over the blocks, the bounds come close to the one of a fit to all data.

        The rank and the kind of outliers are those of the first block, which has to be large enough to show every
        component. Only for ``inference="calibrated"`` with one noise level and without ``calibrate``. Ctrl-C leaves the
        model as it was before the block.

        Parameters
        ----------
        Y : array-like (n, I_1, …, I_{N−1}), or iterator of such
            Any number of new rows; the other modes as before. An iterator of blocks, a Dask array (alone or in xarray)
            and a Zarr array are taken in block after block, of which one is held at a time.
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
            return self.fit(Y, y, mask=mask)
        earlier = self.result_
        block = observe(Y, mask_argument(y, mask), dtype=self.dtype)
        check_like_fitted(block, earlier.observations, same_rows=False)
        self._adopt(fit_on(block, earlier, progress="" if self.progress else None))
        self._warn()
        return self

    def _warn(self) -> None:
        """One warning for every doubt about the fit."""
        for doubt in self.diagnosis_:
            unconverged = doubt.kind == "not converged"
            told = self.stop_reason_ if unconverged else str(doubt)
            warnings.warn(told, ConvergenceWarning if unconverged else FitWarning, stacklevel=3)

    def _adopt(self, result: Result) -> None:
        """Set the fitted attributes from a result."""
        self.result_ = result
        self.rank_ = result.rank
        self.factors_ = result.factor_means()
        self.factor_covariances_ = result.factor_covariances()
        self.component_precisions_ = np.asarray(result.state.lam.mean)
        self.noise_variance_ = result.noise_variance
        self.noise_modes_ = () if result.state.slices is None else result.state.slices.modes
        self.outlier_rate_ = result.outlier_rate
        self.bound_ = result.bound
        self.trace_ = as_structured(result.trace, result.bound_shift, result.scale)
        self.n_sweeps_ = result.trace[-1].sweep
        self.converged_ = result.stop_reason.converged
        self.stop_reason_ = result.stop_reason.value
        self.diagnosis_ = result.diagnosis
        self.shape_in_ = result.observations.shape
        self.n_observed_ = result.observations.n_observed
        self.n_features_in_ = math.prod(self.shape_in_[1:])
        self.n_iter_ = self.n_sweeps_
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        names = feature_names(result.observations)
        if names is not None:
            self.feature_names_in_ = names

    def _fitted(self) -> Result:
        if not hasattr(self, "result_"):
            raise NotFittedError(
                "This BRTF instance is not fitted yet. Call 'fit' with appropriate arguments before using it."
            )
        return self.result_

    def low_rank(self) -> Array:
        """The posterior mean of the low-rank part X, a dense array of the shape of Y.

        With a link that of t⁻¹(X), for X ~ N(x̄, Var x): x̄² + Var x (sqrt), exp(x̄ + Var x / 2) (log).
        """
        return self._fitted().low_rank()

    def outliers(self) -> Any:
        """The posterior mean of the outliers S; dense (0 where missing), or sparse for sparse data.

        With a link what they make of Y: y − t⁻¹(t(y) − s̄).
        """
        result = self._fitted()
        return result.place(result.outliers_at_entries(), 0.0)

    def set_params(self, **params: Any) -> BRTF:
        """Change options of the constructor; returns the model itself."""
        check_options(params, self._get_param_names(), ValueError)
        super().set_params(**params)
        return self

    def outlier_probability(self) -> Any:
        """Posterior probability that each observed entry carries an outlier; dense (0 where missing), or sparse.

        In the paper's model, which has no indicator of outliers, it is the probability under q(s) that |s| exceeds
        three robust standard deviations of all deviations y − x̄.
        """
        result = self._fitted()
        return result.place(result.outlier_probability_at_entries(), 0.0)

    def impute(self, *, replace_outliers: bool = False) -> Any:
        """Y with missing entries filled by the low-rank part, and on request with its outliers subtracted.

        Returns a dense array; an xarray.DataArray if that is what was fitted.
        """
        result = self._fitted()
        filled = result.impute(replace_outliers=replace_outliers)
        labels = result.observations.labels
        if labels is None:
            return filled
        return to_data_array(filled, labels)

    def predict(self, coords: Any = None, return_std: bool = False, *, of: Quantity = "low_rank") -> Any:
        """The low-rank part at the given coordinates (N, M), or everywhere; its mean also predicts an observation.

        With ``return_std`` a pair (mean, standard deviation), of the low-rank part or ``of="observation"``. That of an
        observation is infinite where it does not exist: always with ``link="log"``, as the exponential of a
        Student-t has no mean. :meth:`predict_interval` has an answer there too. The mean is always that of
        :meth:`low_rank`. With a link that of an observation would be larger, by the noise, or infinite; where
        outliers are one-sided, it would lie on their side.
        """
        result = self._fitted()
        check_quantity(of)
        mean = result.low_rank(coords)
        return (mean, result.std(coords, of=of)) if return_std else mean

    def predict_interval(
        self, coords: Any = None, level: float = 0.95, of: Quantity = "low_rank"
    ) -> tuple[Array, Array]:
        """Central interval (low, high) that holds the low-rank part, or a new observation, with that probability.

        The probability left over is the same on either side. So where outliers are one-sided, the interval of an
        observation reaches further to that side. With a link its ends are those for t(Y), transformed back. With
        ``"sqrt"`` it holds a little more where zero is within reach.

        After ``calibrate="conformal"`` the half widths for a new observation are multiplied by one factor per level,
        the ⌈(n+1) level⌉-th smallest |y − middle| / half width of the n entries held back. A new entry, exchangeable
        with those, is then covered with that probability on average over entries, whatever the noise; infinite where n
        is too small for the level.
        """
        return self._fitted().interval(coords, level=level, of=of)

    def sample(
        self, n: int = 1, coords: Any = None, *, of: Quantity = "observation", random_state: Any = None
    ) -> Array:
        """Draws (n, …) of new observations, or of the low-rank part, from the posterior."""
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise ValueError(f"n must be an integer of at least 1, got {n!r}.")
        return self._fitted().sample(int(n), generator(random_state), coords, of=of)

    def score(self, Y: Any, y: Any = None, *, mask: Any = None) -> float:
        """Mean log predictive density of the observed entries of Y, which should be held-out ones.

        Y has the shape of the data that were fitted and the same rows: row-wise cross-validation, as scikit-learn's
        ``GridSearchCV`` does it, would compare other rows with these. :func:`brtf.evaluate` hides entries instead.
        ``y`` as in :meth:`fit`. With a link too it is a density of Y, so models with different links compare.
        """
        result = self._fitted()
        observations = observe(Y, mask_argument(y, mask))
        check_like_fitted(observations, result.observations, same_rows=True)
        return float(np.mean(result.log_density(observations)))

    def transform(self, Y: Any, return_std: bool = False) -> Any:
        """Loadings (n, rank_) of new slices of the first mode, all else held; with ``return_std`` also their std.

        Y has any number of rows; its other modes and its units are those of the data that were fitted: the option
        ``link`` is applied to it.
        """
        result = self._fitted()
        observations = observe(Y, dtype=result.observations.values.dtype)
        check_like_fitted(observations, result.observations, same_rows=False)
        rows = fold_in(result.as_modelled(observations), result.state, result.settings)
        share = result.scale ** (1.0 / observations.order)
        loadings = rows.mean * share
        if not return_std:
            return loadings
        (honest,) = honest_rows(replace(result.state, factors=(rows,)))
        return loadings, np.broadcast_to(np.sqrt(np.einsum("irr->ir", honest.cov)), loadings.shape) * share

    def fit_transform(self, Y: Any, y: Any = None, *, mask: Any = None) -> Array:
        """Fit, and return the loadings of the first mode as :meth:`transform` finds them."""
        self.fit(Y, y, mask=mask)
        return self.transform(self.result_.observations)

    def to_frame(self, of: Literal["outliers", "imputed"] = "outliers") -> Any:
        """A pandas long table with the index columns of the data, by their own names.

        ``"outliers"``: a row per entry that is more likely an outlier than not, the largest first, with the columns
        ``observed``, ``low_rank``, ``outlier`` and ``probability``. ``"imputed"``: a row per entry of the tensor, with
        the value as :meth:`impute` gives it, under its own name (or ``value``), the standard deviation ``std`` of the
        low-rank part, and ``missing``, True where no value was given. Modes without names are called mode_0, mode_1, …;
        a column whose name a mode has already gets an underscore at its end.
        """
        return self._fitted().to_frame(of)

    def to_xarray(self) -> Any:
        """Everything that was found as an xarray.Dataset with the labels of the data.

        Of the shape of the data: ``observed`` (NaN where nothing was given), ``low_rank``, its standard deviation
        ``std``, and ``outliers`` and ``outlier_probability`` (NaN where nothing was fitted). Per mode
        ``factor_<mode>``, (I_n, R) along the mode and ``component``. ``noise_variance``, a number or along the noise
        modes. Attributes: rank, bound, inference, link, stop_reason, brtf_version. Units as in the methods of the
        same names; a name that a mode has already gets an underscore at its end. ``to_netcdf`` writes it.
        """
        return self._fitted().to_xarray()

    def to_tensorly(self) -> Any:
        """The posterior means of the factors as a ``tensorly.cp_tensor.CPTensor`` with unit weights.

        ``tensorly.cp_to_tensor`` of it is :meth:`low_rank`; with a link t it is the low-rank part of t(Y).
        Rank 0, which TensorLy cannot expand, becomes one component of zeros.
        """
        return self._fitted().to_tensorly()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit to one ``.brtf`` file, atomically; :func:`brtf.load` reads it back."""
        save_result(self._fitted(), path)

    def write(
        self,
        path: str | os.PathLike[str],
        what: Sequence[Written] = ("low_rank", "outliers", "outlier_probability", "imputed"),
    ) -> None:
        """Write what the fit says of every entry to a new Zarr store, chunk by chunk; for data that come in chunks.

        Every array has the shape of the data, their type and a checksum: ``low_rank``, its standard deviation ``std``,
        ``outliers`` and ``outlier_probability`` (0 where missing), and ``imputed``, Y with missing entries filled in.
        Of coordinates there is a group per chunk, with ``coords`` (N, m) and vectors (m,). Whoever works on the chunks
        (``executor``) writes them, so all must see the path. The attribute ``complete`` is set at the end.

        Parameters
        ----------
        path
            A directory that does not exist yet.
        what
            Which of the arrays.
        """
        result = self._fitted()
        with self._executing():
            write_result(result, path, what)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags = TransformerTags()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags


def load(path: str | os.PathLike[str]) -> BRTF:
    """Read a fitted model from a ``.brtf`` file; a file that is damaged or not ours is refused.

    Of a checkpoint it is the best so far, and a warning says so; the model then holds none of the data.
    """
    result = load_result(path)
    settings = {name: getattr(result.settings, name) for name in Settings.__dataclass_fields__}
    model = BRTF(**settings)
    model._adopt(result)
    return model
