"""Fit the polynomials of the vector math functions and write `disc/codegen/x86/math/coefficients.py`.

Each fit is a weighted minimax fit by Remez' second algorithm in 60-digit arithmetic. On an interval that does not reach across zero,
coefficients are rounded to the target format one by one from the constant term upwards, and the rest are fitted again after each rounding,
so that an early rounding error is made up for by the later coefficients. Across zero the powers x, x^2, ... alone do not alternate (all
vanish inside the interval), so there all coefficients of one fit are rounded.

    python tools/fit_polynomials.py            write the table
    python tools/fit_polynomials.py NAME ...   print the named fits and their errors only
"""

import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mpmath import mp, mpf

mp.dps = 60
TABLE = Path(__file__).resolve().parent.parent / "disc" / "codegen" / "x86" / "math" / "coefficients.py"
Function = Callable[[mpf], mpf]


@dataclass(frozen=True)
class Fit:
    """target(x) ≈ polynomial of `degree` on [low, high], minimizing max |weight(x) * error(x)|."""

    name: str
    meaning: str
    target: Function
    weight: Function
    low: mpf
    high: mpf
    degree: int
    element: str


def round_to(value: mpf, element: str) -> mpf:
    if element == "f64":
        return mpf(float(value))
    return mpf(struct.unpack("<f", struct.pack("<f", float(value)))[0])


def chebyshev_points(low: mpf, high: mpf, count: int) -> list[mpf]:
    middle, half = (low + high) / 2, (high - low) / 2
    return [middle - half * mp.cos(mp.pi * index / (count - 1)) for index in range(count)]


def solve_reference(nodes: list[int], targets: list[mpf], weights: list[mpf], powers: list[list[mpf]], degrees: list[int]) -> list[mpf]:
    """Coefficients (and, last, the levelled error) that make the weighted error alternate over the nodes."""
    size = len(degrees) + 1
    matrix, right = mp.matrix(size, size), mp.matrix(size, 1)
    for row, node in enumerate(nodes):
        for column, degree in enumerate(degrees):
            matrix[row, column] = powers[node][degree]
        matrix[row, size - 1] = (-1) ** row / weights[node]
        right[row] = targets[node]
    return list(mp.lu_solve(matrix, right))


def alternating_extrema(errors: list[mpf], count: int) -> list[int]:
    """The largest error of each run of one sign, cut down to `count` alternating runs from the weaker end."""
    extrema: list[int] = []
    for index, error in enumerate(errors):
        if extrema and (error > 0) == (errors[extrema[-1]] > 0):
            if abs(error) > abs(errors[extrema[-1]]):
                extrema[-1] = index
        else:
            extrema.append(index)
    while len(extrema) > count:
        extrema.pop(0 if abs(errors[extrema[0]]) < abs(errors[extrema[-1]]) else -1)
    return extrema


def remez(fit: Fit, grid: list[mpf], weights: list[mpf], targets: list[mpf], powers: list[list[mpf]], first: int) -> tuple[list[mpf], mpf]:
    """Coefficients of x^first .. x^degree and the largest weighted error."""
    degrees = list(range(first, fit.degree + 1))
    count = len(degrees) + 1
    nodes = [round(index * (len(grid) - 1) / (count - 1)) for index in range(count)]
    best: tuple[list[mpf], mpf] | None = None
    for _ in range(30):
        solution = solve_reference(nodes, targets, weights, powers, degrees)
        coefficients = solution[:-1]
        errors = [
            weights[i] * (sum(c * powers[i][d] for c, d in zip(coefficients, degrees, strict=True)) - targets[i]) for i in range(len(grid))
        ]
        worst = max(abs(error) for error in errors)
        if best is None or worst < best[1]:
            best = (coefficients, worst)
        extrema = alternating_extrema(errors, count)
        if worst <= abs(solution[-1]) * mpf("1.001") or len(extrema) < count:
            break
        nodes = extrema
    assert best is not None
    return best


def run(fit: Fit) -> tuple[list[float], float]:
    """The rounded coefficients from the constant term upwards and the largest weighted error with them."""
    grid = chebyshev_points(fit.low, fit.high, max(120, 12 * (fit.degree + 2)))
    weights = [fit.weight(x) for x in grid]
    # A weight of zero (a point at which the error does not count) would divide by zero.
    floor = max(weights) / 10**6
    weights = [max(weight, floor) for weight in weights]
    exact = [fit.target(x) for x in grid]
    powers = [[x**degree for degree in range(fit.degree + 1)] for x in grid]
    fixed: list[mpf] = []
    targets = list(exact)
    refit = not fit.low < 0 < fit.high
    coefficients, _ = remez(fit, grid, weights, targets, powers, 0)
    for degree in range(fit.degree + 1):
        if refit and degree:
            coefficients[degree:] = remez(fit, grid, weights, targets, powers, degree)[0]
        fixed.append(round_to(coefficients[degree], fit.element))
        targets = [target - fixed[-1] * row[degree] for target, row in zip(targets, powers, strict=True)]
    worst = max(abs(weight * left) for weight, left in zip(weights, targets, strict=True))
    return [float(value) for value in fixed], float(worst)


@dataclass(frozen=True)
class Pieces:
    """An odd function ≈ a polynomial of `degree` in x - number * step on each of `count` intervals of that width from 0 on, in f32.

    The error is relative to the function. The polynomial of the first interval has no constant term, and is one of the function less
    `slope` times x. last_slope: per unit of x, where the last interval is a line from its first value on instead of a fit; remark: why.
    """

    name: str
    meaning: str
    function: Function
    step: mpf
    count: int
    degree: int
    slope: int = 0
    last_slope: float | None = None
    remark: str = ""

    def fit(self, number: int) -> Fit:
        """The fit of one interval; of the first, that of function(x) / x."""
        low, function = self.step * number, self.function
        top = self.step * mpf("1.0001")
        if number:
            return Fit(
                self.name, self.meaning, lambda t: function(low + t), lambda t: 1 / function(low + t), mpf(0), top, self.degree, "f32"
            )
        tiny = mpf("1e-20")
        ratio: Function = lambda t: function(t or tiny) / (t or tiny)  # noqa: E731
        return Fit(self.name, self.meaning, lambda t: ratio(t) - self.slope, lambda t: 1 / ratio(t), mpf(0), top, self.degree - 1, "f32")

    def run(self) -> tuple[list[list[float]], float]:
        """Per coefficient, constant terms first, its values on the intervals; and the largest error."""
        rows, errors = zip(*(run(self.fit(number)) for number in range(self.count)), strict=True)
        return [list(column) for column in zip([0.0, *rows[0]], *rows[1:], strict=True)], max(errors)


def quotient_tail(function: Function, head: Function, divisor: Function, limit: float) -> Function:
    """(function - head) / divisor, with `limit` where the divisor vanishes."""
    return lambda x: (function(x) - head(x)) / divisor(x) if divisor(x) != 0 else mpf(limit)


HALF_LN2 = mp.log(2) / 2 * mpf("1.001")
LOG_LOW, LOG_HIGH = mp.sqrt(mpf("0.5")) - 1 - mpf("1e-6"), mp.sqrt(2) - 1 + mpf("1e-6")
ERF_SPLIT = mpf("0.92")


def exponential_fit(element: str, degree: int) -> Fit:
    return Fit(
        f"EXP_{element.upper()}",
        "(e^r - 1 - r) / r^2 on |r| <= ln2 / 2, relative to e^r - 1",
        quotient_tail(mp.exp, lambda r: 1 + r, lambda r: r * r, 0.5),
        lambda r: abs(r * r / mp.expm1(r)) if r else mpf(0),
        -HALF_LN2,
        HALF_LN2,
        degree,
        element,
    )


def exp2_fit(name: str, element: str, degree: int) -> Fit:
    half = mpf("0.5001")
    return Fit(name, "2^r on |r| <= 1/2, relative", lambda r: mpf(2) ** r, lambda r: mpf(2) ** -r, -half, half, degree, element)


def tanh_fit(element: str, degree: int) -> Fit:
    return Fit(
        f"TANH_HEAD_{element.upper()}",
        "(tanh(x) - x) / x^3 as a function of x^2 for |x| <= 0.625, relative to tanh(x)",
        arc_tail(mp.tanh, mpf(-1) / 3, mpf(2) / 15),
        lambda z: z * mp.sqrt(z) / mp.tanh(mp.sqrt(z)) if z else mpf(0),
        mpf(0),
        mpf("0.391"),
        degree,
        element,
    )


def log_over_s(z: mpf) -> mpf:
    """(log((1+s)/(1-s)) - 2s) / s^3 as a function of z = s^2."""
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) - 2 * s) / s**3 if z > mpf("1e-15") else mpf(2) / 3 + z * 2 / 5


def erf_head(element: str, degree: int) -> Fit:
    top = ERF_SPLIT if element == "f32" else mpf(1)
    return Fit(
        f"ERF_HEAD_{element.upper()}",
        "erf(x) / x - 1 as a function of x^2, relative to erf(x) / x",
        lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1 if z else 2 / mp.sqrt(mp.pi) - 1,
        lambda z: mpf(1) if not z else mp.sqrt(z) / mp.erf(mp.sqrt(z)),
        mpf(0),
        top * top * mpf("1.001"),
        degree,
        element,
    )


def scaled_erfc(q: mpf) -> mpf:
    """(1 + 2a) e^(a^2) erfc(a) as a function of q = (a - 4) / (a + 4)."""
    a = 4 * (1 + q) / (1 - q)
    return (1 + 2 * a) * mp.exp(a * a) * mp.erfc(a)


def sine_tail(z: mpf) -> mpf:
    r = mp.sqrt(z)
    return (mp.sin(r) - r) / r**3 if z > mpf("1e-15") else mpf(-1) / 6 + z / 120


def cosine_tail(z: mpf) -> mpf:
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2 if z > mpf("1e-15") else mpf(1) / 24 - z / 720


def arc_tail(function: Function, first: mpf, second: mpf) -> Function:
    """(function(t) - t) / t^3 as a function of z = t^2, for function(t) = t + first t^3 + second t^5 + ..."""

    def tail(z: mpf) -> mpf:
        t = mp.sqrt(z)
        return (function(t) - t) / t**3 if z > mpf("1e-15") else first + z * second

    return tail


def erf_inv_of(w: mpf) -> mpf:
    """erf_inv(x) / x as a function of w = -log(1 - x^2)."""
    if w < mpf("1e-20"):
        return mp.sqrt(mp.pi) / 2
    x = mp.sqrt(-mp.expm1(-w))
    # Newton's iteration on log(erfc(y)), a concave function, with 1 - x = e^-w / (1 + x) free of cancellation.
    logarithm = -w - mp.log1p(x)
    y = mp.sqrt(w) * mpf("0.9")
    for _ in range(80):
        complement = mp.erfc(y)
        step = (mp.log(complement) - logarithm) * complement * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
        y += step
        if abs(step) < mpf("1e-50"):
            break
    return y / x


def erf_inv_fit(name: str, variable: str, w_of: Function, low: mpf, high: mpf, degree: int) -> Fit:
    meaning = f"erf_inv(x) / x as a function of {variable}, relative"
    return Fit(name, meaning, lambda v: erf_inv_of(w_of(v)), lambda v: 1 / erf_inv_of(w_of(v)), low, high, degree, "f64")


def log_gamma_quotient(v: mpf) -> mpf:
    """lgamma(2 + v) / (v (v + 1)); both zeros of the divisor are zeros of lgamma."""
    if abs(v) < mpf("1e-20"):
        return 1 - mp.euler
    return mp.loggamma(2 + v) / (v * (v + 1)) if abs(v + 1) > mpf("1e-20") else +mp.euler


TANH_REMARK = " The last interval is a line that rounds to 1 from\n# x = 9.011 on, as tanh does, so that what lies beyond is 1 exactly."
PIECES = (
    Pieces("ERF_PIECES_F32", "erf(x) in steps of 1/4, less x in the first", mp.erf, mpf("0.25"), 16, 5, 1),
    Pieces(
        "TANH_PIECES_F32", "tanh(x) in steps of 0.283203125", mp.tanh, mpf("0.283203125"), 32, 6, last_slope=1.2848e-07, remark=TANH_REMARK
    ),
)
PI_QUARTER_SQUARED = (mp.pi / 4 * mpf("1.0001")) ** 2
FITS = (
    exponential_fit("f32", 4),
    exponential_fit("f64", 9),
    Fit(
        "LOG_F32",
        "(log(1+f) - f + f^2/2) / f^3 on [sqrt(1/2) - 1, sqrt(2) - 1], relative to log(1+f)",
        lambda f: (mp.log1p(f) - f + f * f / 2) / f**3 if abs(f) > mpf("1e-12") else mpf(1) / 3 - f / 4,
        lambda f: abs(f**3 / mp.log1p(f)) if f else mpf(0),
        LOG_LOW,
        LOG_HIGH,
        7,
        "f32",
    ),
    Fit(
        "LOG_F64",
        "(2 atanh(s) - 2s) / s^3 as a function of s^2, relative to 2 atanh(s)",
        log_over_s,
        lambda z: mp.sqrt(z) ** 3 / (2 * mp.atanh(mp.sqrt(z))) if z else mpf(0),
        mpf(0),
        (LOG_HIGH / (2 + LOG_HIGH)) ** 2,
        6,
        "f64",
    ),
    Fit(
        "LOG_SERIES_F64",
        "(2 atanh(s) - 2s - 2/3 s^3) / s^5 as a function of s^2, relative to 2 atanh(s)",
        lambda z: (log_over_s(z) - mpf(2) / 3) / z if z > mpf("1e-15") else mpf(2) / 5,
        lambda z: mp.sqrt(z) ** 5 / (2 * mp.atanh(mp.sqrt(z))) if z else mpf(0),
        mpf(0),
        (LOG_HIGH / (2 + LOG_HIGH)) ** 2,
        8,
        "f64",
    ),
    Fit(
        "EXP_SIXTEENTH_F32",
        "(e^r - 1) / r on |r| <= ln2 / 32, relative to e^r",
        lambda r: mp.expm1(r) / r if r else mpf(1),
        lambda r: abs(r) + mpf("1e-4"),
        -HALF_LN2 / 16,
        HALF_LN2 / 16,
        2,
        "f32",
    ),
    erf_head("f32", 5),
    Fit(
        "ERF_TAIL_F32",
        "log2(erfc(x)), weighted so that the absolute error of erf(x) is even",
        lambda x: mp.log(mp.erfc(x), 2),
        mp.erfc,
        ERF_SPLIT * mpf("0.99"),
        mpf("4.1"),
        6,
        "f32",
    ),
    exp2_fit("EXP2_SHORT_F32", "f32", 5),
    exp2_fit("EXP2_F32", "f32", 6),
    exp2_fit("EXP2_F64", "f64", 11),
    tanh_fit("f32", 4),
    tanh_fit("f64", 11),
    erf_head("f64", 12),
    Fit(
        "ERFC_F64",
        "(1 + 2a) exp(a^2) erfc(a) as a function of q = (a-4) / (a+4), relative",
        scaled_erfc,
        lambda q: 1 / scaled_erfc(q),
        mpf(-1),
        mpf("0.75"),
        22,
        "f64",
    ),
    Fit(
        "SINE_F32",
        "(sin(r) - r) / r^3 as a function of r^2 on |r| <= pi/4 and, as the quotient is rounded, 1 % more",
        sine_tail,
        lambda z: z,
        mpf(0),
        PI_QUARTER_SQUARED * mpf("1.02"),
        2,
        "f32",
    ),
    Fit(
        "COSINE_F32",
        "(cos(r) - 1 + r^2/2) / r^4 as a function of r^2 there",
        cosine_tail,
        lambda z: z * z,
        mpf(0),
        PI_QUARTER_SQUARED * mpf("1.02"),
        2,
        "f32",
    ),
    Fit(
        "SINE_F64",
        "(sin(r) - r) / r^3 as a function of r^2 on |r| <= pi/4",
        sine_tail,
        lambda z: z,
        mpf(0),
        PI_QUARTER_SQUARED,
        5,
        "f64",
    ),
    Fit(
        "COSINE_F64",
        "(cos(r) - 1 + r^2/2) / r^4 as a function of r^2 on |r| <= pi/4",
        cosine_tail,
        lambda z: z * z,
        mpf(0),
        PI_QUARTER_SQUARED,
        5,
        "f64",
    ),
    Fit(
        "ATAN_F64",
        "(atan(t) - t) / t^3 as a function of t^2 on |t| <= tan(pi/8)",
        arc_tail(mp.atan, mpf(-1) / 3, mpf(1) / 5),
        lambda z: z,
        mpf(0),
        (mp.tan(mp.pi / 8) * mpf("1.0001")) ** 2,
        10,
        "f64",
    ),
    Fit(
        "ASIN_F64",
        "(asin(t) - t) / t^3 as a function of t^2 on |t| <= 1/2",
        arc_tail(mp.asin, mpf(1) / 6, mpf(3) / 40),
        lambda z: z,
        mpf(0),
        mpf("0.25001"),
        12,
        "f64",
    ),
    erf_inv_fit("ERF_INV_CENTRE_F64", "w - 3, w = -log(1 - x^2) in [0, 6]", lambda v: v + 3, mpf(-3), mpf("3.01"), 22),
    erf_inv_fit("ERF_INV_TAIL_F64", "sqrt(w) - 4, w in [6, 38]", lambda v: (v + 4) ** 2, mp.sqrt(6) - 4 - mpf("0.01"), mpf("2.2"), 27),
    Fit(
        "LOG_GAMMA_F64",
        "lgamma(2 + v) / (v (v + 1)) on [-1, 1], relative",
        log_gamma_quotient,
        lambda v: 1 / log_gamma_quotient(v),
        mpf(-1),
        mpf("1.001"),
        26,
        "f64",
    ),
)


def rendered(fit: Fit) -> str:
    coefficients, error = run(fit)
    error_bits = f"{float(mp.log(error, 2)):.1f}"
    print(f"{fit.name}: 2^{error_bits}", flush=True)
    lines = "".join(f"    {value!r},\n" for value in coefficients)
    return f"# {fit.meaning}; weighted error 2^{error_bits}.\n{fit.name} = (\n{lines})\n"


def rendered_pieces(pieces: Pieces) -> str:
    columns, error = pieces.run()
    error_bits = f"{float(mp.log(error, 2)):.1f}"
    print(f"{pieces.name}: 2^{error_bits}", flush=True)
    lines = ""
    for power, column in enumerate(columns):
        if pieces.last_slope is not None and power:
            column[-1] = pieces.last_slope if power == 1 else 0.0
        fours = [", ".join(map(repr, column[first : first + 4])) for first in range(0, len(column), 4)]
        lines += "    (" + ",\n     ".join(fours) + "),\n"
    comment = f"# {pieces.meaning}; a row per coefficient; relative error 2^{error_bits}.{pieces.remark}"
    return f"{comment}\n{pieces.name} = (\n{lines})  # fmt: skip\n"


def main(names: list[str]) -> None:
    if names:
        for fit in (*FITS, *PIECES):
            if fit.name in names:
                print(rendered(fit) if isinstance(fit, Fit) else rendered_pieces(fit))
        return
    header = (
        '"""Minimax polynomials of the vector math functions, constant term first. Written by tools/fit_polynomials.py; do not edit."""\n\n'
    )
    TABLE.write_text(header + "\n".join([*map(rendered, FITS), *map(rendered_pieces, PIECES)]))


if __name__ == "__main__":
    main(sys.argv[1:])
