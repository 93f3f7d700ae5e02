"""SIMD operations that Numba does not generate from loops.

Numba vectorizes innermost loops over contiguous numbers, and most kernels are such loops. Three things it does not
vectorize; the operations that need them are written here in LLVM IR:

- Sums over rows that stay in registers from the first row to the last; a loop adds each row to sums in memory.
  :func:`combine` is a tile of a matrix product: a loop takes 1.2 to 8 times as long, and BLAS, which first packs thin
  matrices, up to 2.5 times for large ones. :func:`add_rows` is the sum of the rows in a list: a loop takes 2 to 20
  times as long.
- 32-bit integer arithmetic. Numba's integers have 64 bits, so half as many fit in a vector. As loops, :func:`locate`
  takes 2 to 3 times as long, and :func:`list_eight`, which packs eight comparisons into a byte, 2 to 4 times.
- Rows of four numbers that are loaded at once and transposed. A loop loads number by number and takes 2.3 times as
  long as :func:`weigh`.

Numba has no counterpart of :func:`prefetch`, without which entries given by coordinates take up to 1.3 times as long
where the matrices exceed the cache. All other operations are loops, as they were no slower; an operation here should
become a loop once that comes within 15 % of it.

Implementation
    An operation is a Numba intrinsic (``numba.extending.intrinsic``), called within compiled loops. Given the argument
    types it returns its signature and a code generator; :func:`_written` passes the generator a :class:`Code`, which
    holds the arguments by name. ``code["start"]`` is the value of a number,
    ``code.vector(kind, "panel", row, column)`` the numbers of an array from an element on, as many as the kind has.
    Arithmetic is that of :class:`llvmlite.ir.IRBuilder`. Variables that persist over loop iterations use ``alloca``
    and become registers.

Guarantees
    Vectors may be wider or narrower than registers: LLVM uses several, or part of one, so the code runs on any
    processor. Sums may be reordered and multiply-adds fused (:data:`FREE`); no other floating-point assumptions are
    made, and NaN propagates. Arrays must be C-contiguous, which is checked at compile time. Indices are not checked.

The parts of Numba and llvmlite used here can change with any version, so ``pyproject.toml`` bounds the versions known
to work, and every process checks the kernels against the reference before use: :mod:`brtf.kernels.agreement`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

FREE = ("reassoc", "contract", "nsz")
"""Fast-math flags: sums may be reordered, and multiply-adds fused."""
BYTE, INDEX, LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
SINGLE, REAL = ir.FloatType(), ir.DoubleType()
PAIR = types.UniTuple(types.float64, 2)


@dataclass(frozen=True)
class Kind:
    """Vector types for entries of one type: vector length, floating-point and integer types, and their bit layout."""

    lanes: int
    real: Any
    integer: Any
    n_mantissa: int
    bias: int

    @property
    def reals(self) -> Any:
        return ir.VectorType(self.real, self.lanes)

    @property
    def integers(self) -> Any:
        return ir.VectorType(self.integer, self.lanes)

    def all(self, value: float) -> Any:
        """A vector of a number."""
        return ir.Constant(self.reals, [value] * self.lanes)

    def each(self, value: int) -> Any:
        """A vector of an integer."""
        return ir.Constant(self.integers, [value] * self.lanes)


KINDS = {
    types.float32: Kind(8, SINGLE, INDEX, 23, 127),
    types.float64: Kind(4, REAL, LONG, 52, 1023),
}


class Code:
    """The code of an operation being generated, and its arguments by name."""

    def __init__(self, context: Any, builder: Any, given: dict[str, tuple[Any, Any]]) -> None:
        self.builder, self._context, self._given = builder, context, given
        for name, (of_type, _) in given.items():
            if isinstance(of_type, types.Array) and of_type.layout != "C":
                raise TypingError(f"Several numbers a step are read from arrays in C order, and {name} is {of_type}.")

    def __getitem__(self, name: str) -> Any:
        """The value of a scalar argument."""
        return self._given[name][1]

    def pointer(self, kind: Any, name: str, *index: Any) -> Any:
        """Pointer to an element of an array, as a pointer to the given type."""
        of_type, array = self._array(name)
        at = cgutils.get_item_pointer(self._context, self.builder, of_type, array, list(index))
        return self.builder.bitcast(at, kind.as_pointer())

    def vector(self, kind: Any, name: str, *index: Any) -> Any:
        """The vector that begins at an element of an array."""
        return self.builder.load(self.pointer(kind, name, *index), align=1)

    def store(self, vector: Any, name: str, *index: Any) -> None:
        """Write a vector to an array, from an element on."""
        self.builder.store(vector, self.pointer(vector.type, name, *index), align=1)

    def n_rows(self, name: str) -> Any:
        """The length of an array."""
        return self.builder.extract_value(self._array(name)[1].shape, 0)

    def splat(self, value: Any, width: int) -> Any:
        """A vector of a number."""
        nothing = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
        one = self.builder.insert_element(nothing, value, INDEX(0))
        return self.builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(INDEX, width), [0] * width))

    def add(self, one: Any, other: Any) -> Any:
        return self.builder.fadd(one, other, flags=FREE)

    def subtract(self, one: Any, other: Any) -> Any:
        return self.builder.fsub(one, other, flags=FREE)

    def multiply(self, one: Any, other: Any) -> Any:
        return self.builder.fmul(one, other, flags=FREE)

    def multiply_add(self, old: Any, one: Any, other: Any) -> Any:
        """The sum of a vector and a product."""
        return self.add(old, self.multiply(one, other))

    def sum_of(self, vector: Any) -> Any:
        """The sum of the numbers of a vector."""
        total = self.builder.extract_element(vector, INDEX(0))
        for k in range(1, vector.type.count):
            total = self.add(total, self.builder.extract_element(vector, INDEX(k)))
        return total

    def pair(self, numbers: list[Any]) -> Any:
        """A tuple of two numbers of float64, to be returned."""
        wide = [number if number.type == REAL else self.builder.fpext(number, REAL) for number in numbers]
        return self._context.make_tuple(self.builder, PAIR, wide)

    def nothing(self) -> Any:
        """The return value of an operation that returns nothing."""
        return self._context.get_dummy_value()

    def _array(self, name: str) -> tuple[Any, Any]:
        of_type, value = self._given[name]
        return of_type, self._context.make_array(of_type)(self._context, self.builder, value)


def _written(returns: Any, given: dict[str, Any], write: Callable[[Code], Any]) -> tuple[Any, Callable[..., Any]]:
    """Signature and code generator of an operation, as Numba expects them.

    ``given`` are the argument types by name: ``locals()`` at the start of the operation.
    """
    names = [name for name in given if name != "typing_context"]

    def generate(context, builder, signature, values):
        return write(Code(context, builder, dict(zip(names, zip(signature.args, values, strict=True), strict=True))))

    return returns(*(given[name] for name in names)), generate


# ---- sums in registers -------------------------------------------------------------------------------------


@intrinsic
def n_at_once(typing_context, numbers):
    """Length of a vector of the array's type."""
    return types.int64(numbers), lambda *_: LONG(KINDS[numbers.dtype].lanes)


@intrinsic(prefer_literal=True)
def combine(typing_context, n_rows, steps, fresh, weights, first, rows, column, out):
    """out[i, c] = Σ_k weights[i, k] rows[k, c] for ``n_rows``, a constant, of i from ``first`` on, and some columns c.

    The columns are from ``column`` on, as many times ``n_at_once`` as the tuple ``steps`` has elements; a single one
    where it has none. The sums are added to ``out`` unless that is ``fresh``. All arrays are of one type.
    """
    given, kind, n_own = locals(), KINDS[out.dtype], n_rows.literal_value
    vector = ir.VectorType(kind.real, max(1, steps.count * kind.lanes))

    def write(code):
        builder, zero = code.builder, ir.Constant(vector, [0.0] * vector.count)
        own = [builder.add(code["first"], LONG(row)) for row in range(n_own)]
        totals = [cgutils.alloca_once(builder, vector) for _ in own]
        for i, total in zip(own, totals, strict=True):
            builder.store(builder.select(code["fresh"], zero, code.vector(vector, "out", i, code["column"])), total)
        with cgutils.for_range_slice(builder, LONG(0), code.n_rows("rows"), LONG(1)) as (k, _):
            row = code.vector(vector, "rows", k, code["column"])
            for i, total in zip(own, totals, strict=True):
                weight = code.splat(builder.load(code.pointer(kind.real, "weights", i, k)), vector.count)
                builder.store(code.multiply_add(builder.load(total), weight, row), total)
        for i, total in zip(own, totals, strict=True):
            code.store(builder.load(total), "out", i, code["column"])
        return code.nothing()

    return _written(types.void, given, write)


@intrinsic
def add_rows(
    typing_context, lanes, panel, before, places, amounts, start, stop, others, other, out, target, left, right
):
    """out[target] += others[other] ⊛ Σ_p amounts[p] panel[before + places[p]], over start ≤ p < stop.

    A row of ``panel`` has two halves, each of as many columns as the tuple ``lanes`` has elements: those of ``out`` and
    ``others`` from ``left`` on, and from ``right`` on. Arrays are float64, except ``places``, int32.
    """
    given, width = locals(), lanes.count
    row, part = ir.VectorType(REAL, 2 * width), ir.VectorType(REAL, width)

    def write(code):
        builder = code.builder
        total = cgutils.alloca_once_value(builder, ir.Constant(row, [0.0] * row.count))
        with cgutils.for_range_slice(builder, code["start"], code["stop"], LONG(1)) as (p, _):
            place = builder.sext(builder.load(code.pointer(INDEX, "places", p)), LONG)
            amount = code.splat(builder.load(code.pointer(REAL, "amounts", p)), row.count)
            own = code.vector(row, "panel", builder.add(place, code["before"]), LONG(0))
            builder.store(code.multiply_add(builder.load(total), amount, own), total)
        for column, first in ((code["left"], 0), (code["right"], width)):
            chosen = ir.Constant(ir.VectorType(INDEX, width), list(range(first, first + width)))
            own = builder.shuffle_vector(builder.load(total), ir.Constant(row, ir.Undefined), chosen)
            old = code.vector(part, "out", code["target"], column)
            new = code.multiply_add(old, own, code.vector(part, "others", code["other"], column))
            code.store(new, "out", code["target"], column)
        return code.nothing()

    return _written(types.void, given, write)


# ---- lists of entries, and rows that will be needed --------------------------------------------------------


@intrinsic
def list_eight(typing_context, mask, start, table, first, places, position):
    """Write ``first`` + k of the k = 0…7 with mask[start + k], in order, to places[position:]; returns their number.

    ``table`` (256, 8) lists these k for every byte, then arbitrary values. All eight places are
    written.
    """
    given = locals()

    def write(code):
        builder, eight, indices = code.builder, ir.VectorType(BYTE, 8), ir.VectorType(INDEX, 8)
        seen = builder.icmp_unsigned("!=", code.vector(eight, "mask", code["start"]), ir.Constant(eight, [0] * 8))
        bits = builder.zext(builder.bitcast(seen, BYTE), LONG)
        before = code.splat(builder.trunc(code["first"], INDEX), 8)
        code.store(builder.add(code.vector(indices, "table", bits, LONG(0)), before), "places", code["position"])
        return builder.ctpop(bits)

    return _written(types.int64, given, write)


@intrinsic
def prefetch(typing_context, matrix, row, column):
    """Prefetch matrix[row, column]."""
    given = locals()

    def write(code):
        byte = BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, INDEX, INDEX, INDEX])
        ask = code.builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        to_read, to_keep, data = INDEX(0), INDEX(3), INDEX(1)
        code.builder.call(ask, [code.pointer(BYTE, "matrix", code["row"], code["column"]), to_read, to_keep, data])
        return code.nothing()

    return _written(types.void, given, write)


# ---- entries in a table ------------------------------------------------------------------------------------
#
# ``n``, the number of entries, is a multiple of ``n_at_once``.


@intrinsic
def locate(typing_context, rho, n, shift, bits, last, places, fractions):
    """Segments of the entries in a table, the fractions t within them, and the largest ρ.

    ``bits`` comes from :func:`brtf.kernels.tables.usual_places`, and ``shift`` is added to ρ first; places are at
    most ``last``. An entry's t is in the bits of its ρ below those of the segment.
    """
    given, kind = locals(), KINDS[rho.dtype]
    return _written(
        rho.dtype, given, lambda code: _write_locate(code, kind, lambda m: code.vector(kind.reals, "rho", m))
    )


@intrinsic
def locate_left(typing_context, values, n, fitted, per_scale, tau, shift, bits, last, places, fractions):
    """:func:`locate` for ρ = τ (values per_scale − fitted)²."""
    given, kind = locals(), KINDS[values.dtype]

    def write(code):
        tau = code.splat(code["tau"], kind.lanes)

        def rho(m):
            residual = _left(code, kind, m)
            return code.multiply(tau, code.multiply(residual, residual))

        return _write_locate(code, kind, rho)

    return _written(values.dtype, given, write)


@intrinsic
def weigh(typing_context, places, n, fractions, quadratics, seen, weights):
    """Weights of entries; returns the sum of the changes of ln f within their segments and the sum of the weights.

    Within a segment the weight is a quadratic in t, and its integral gives the change of ln f. A row of ``quadratics``
    holds the coefficients and −½ the width of the segment. ``seen`` counts the entries per segment.
    """
    given, kind = locals(), KINDS[weights.dtype]
    return _written(
        PAIR, given, lambda code: _write_weigh(code, kind, lambda m, weight: code.store(weight, "weights", m))
    )


@intrinsic
def weigh_left(typing_context, places, n, fractions, quadratics, seen, values, fitted, per_scale, per_weight):
    """:func:`weigh`, which also completes the data: adds weight per_weight (values per_scale − fitted) to
    ``fitted``."""
    given, kind = locals(), KINDS[values.dtype]

    def write(code):
        per_weight = code.splat(code["per_weight"], kind.lanes)

        def complete(m, weight):
            fitted = code.vector(kind.reals, "fitted", m)
            share = code.multiply(weight, per_weight)
            code.store(code.multiply_add(fitted, share, _left(code, kind, m)), "fitted", m)

        return _write_weigh(code, kind, complete)

    return _written(PAIR, given, write)


def _left(code: Code, kind: Kind, m: Any) -> Any:
    """The residual: values minus the low-rank part."""
    scaled = code.multiply(code.vector(kind.reals, "values", m), code.splat(code["per_scale"], kind.lanes))
    return code.subtract(scaled, code.vector(kind.reals, "fitted", m))


def _write_locate(code: Code, kind: Kind, rho: Callable[[Any], Any]) -> Any:
    """Generate the loop of places and fractions, with ρ computed vector by vector; returns the largest ρ."""
    builder = code.builder
    fine, rough, turn, before_fine, before_rough = (
        code.splat(builder.load(code.pointer(kind.integer, "bits", LONG(k))), kind.lanes) for k in range(5)
    )
    above_fine, above_rough = (builder.sub(kind.each(kind.n_mantissa), below) for below in (fine, rough))
    last = builder.trunc(code["last"], kind.integer) if kind.integer is INDEX else code["last"]
    end, shift = code.splat(last, kind.lanes), code.splat(code["shift"], kind.lanes)
    largest = cgutils.alloca_once_value(builder, kind.all(0.0))
    with cgutils.for_range_slice(builder, LONG(0), code["n"], LONG(kind.lanes)) as (m, _):
        own, before = rho(m), builder.load(largest)
        builder.store(builder.select(builder.fcmp_ordered(">", own, before), own, before), largest)
        pattern = builder.bitcast(builder.fadd(own, shift), kind.integers)
        is_rough = builder.icmp_signed(">=", pattern, turn)
        place = builder.sub(
            builder.lshr(pattern, builder.select(is_rough, rough, fine)),
            builder.select(is_rough, before_rough, before_fine),
        )
        code.store(builder.select(builder.icmp_signed("<", place, end), place, end), "places", m)
        leading = builder.shl(pattern, builder.select(is_rough, above_rough, above_fine))
        mantissa = builder.and_(leading, kind.each((1 << kind.n_mantissa) - 1))
        from_one = builder.bitcast(builder.or_(mantissa, kind.each(kind.bias << kind.n_mantissa)), kind.reals)
        code.store(builder.fsub(from_one, kind.all(1.0)), "fractions", m)
    vector = builder.load(largest)
    found = builder.extract_element(vector, INDEX(0))
    for k in range(1, kind.lanes):
        other = builder.extract_element(vector, INDEX(k))
        found = builder.select(builder.fcmp_ordered(">", found, other), found, other)
    return found


def _write_weigh(code: Code, kind: Kind, use: Callable[[Any, Any], None]) -> Any:
    """Generate the loop of weights, passed to ``use`` vector by vector; returns the sums of gains and of weights."""
    builder = code.builder
    gains, sums = (cgutils.alloca_once_value(builder, kind.all(0.0)) for _ in range(2))
    with cgutils.for_range_slice(builder, LONG(0), code["n"], LONG(kind.lanes)) as (m, _):
        rows = []
        for k in range(kind.lanes):
            place = builder.load(code.pointer(kind.integer, "places", builder.add(m, LONG(k))))
            place = builder.zext(place, LONG) if kind.integer is INDEX else place
            rows.append(code.vector(ir.VectorType(SINGLE, 4), "quadratics", place, LONG(0)))
            count = code.pointer(LONG, "seen", place)
            builder.store(builder.add(builder.load(count), LONG(1)), count)
        constant, slope, curve, half_width = _columns(builder, kind, rows)
        fraction = code.vector(kind.reals, "fractions", m)
        curved = code.multiply(fraction, curve)
        weight = code.multiply_add(constant, fraction, code.add(slope, curved))
        rise = code.multiply_add(code.multiply(slope, kind.all(1 / 2)), curved, kind.all(1 / 3))
        mean = code.multiply_add(constant, fraction, rise)
        builder.store(code.multiply_add(builder.load(gains), code.multiply(half_width, fraction), mean), gains)
        builder.store(code.add(builder.load(sums), weight), sums)
        use(m, weight)
    return code.pair([code.sum_of(builder.load(part)) for part in (gains, sums)])


def _columns(builder: Any, kind: Kind, rows: list[Any]) -> list[Any]:
    """The columns of a matrix given by its rows of four numbers."""

    def shuffle(one: Any, other: Any, chosen: list[int]) -> Any:
        # alike for every four numbers of both, those of the other being 4, 5, 6, 7
        quarters = range(one.type.count // 4)
        indices = [4 * part + k if k < 4 else one.type.count + 4 * part + k - 4 for part in quarters for k in chosen]
        return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(INDEX, len(indices)), indices))

    if kind.lanes == 8:
        both = ir.Constant(ir.VectorType(INDEX, 8), list(range(8)))
        rows = [builder.shuffle_vector(row, other, both) for row, other in zip(rows[:4], rows[4:], strict=True)]
    low = [shuffle(rows[k], rows[k + 1], [0, 4, 1, 5]) for k in (0, 2)]
    high = [shuffle(rows[k], rows[k + 1], [2, 6, 3, 7]) for k in (0, 2)]
    halves = ([0, 1, 4, 5], [2, 3, 6, 7])
    columns = [shuffle(one, other, chosen) for one, other in (low, high) for chosen in halves]
    return columns if kind.real is SINGLE else [builder.fpext(column, kind.reals) for column in columns]
