"""exp and log in float64 that give the same bits on every device and at every place in a batch.

A library's vectorised exp and log may round differently at the edge of a tensor, on another CPU or
on a GPU. Here each value passes through the same additions, multiplications and divisions, one
kernel each, which IEEE 754 rounds in one way only.
"""

import torch

_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_LOG2_E = 1.4426950408889634
_SMALLEST_EXPONENT = -708.0  # exp() below this would be subnormal; it is given as 0
_EXP_COEFFICIENTS = tuple(
    1 / divisor
    for divisor in (
        6227020800,
        479001600,
        39916800,
        3628800,
        362880,
        40320,
        5040,
        720,
        120,
        24,
        6,
        2,
    )
)
# Minimax coefficients of log((1 + s) / (1 - s)) from Sun's fdlibm, e_log.c.
_LOG_COEFFICIENTS = (
    1.479819860511658591e-01,
    1.531383769920937332e-01,
    1.818357216161805012e-01,
    2.222219843214978396e-01,
    2.857142874366239149e-01,
    3.999999999940941908e-01,
    6.666666666666735130e-01,
)


def exp(x: torch.Tensor) -> torch.Tensor:
    """Return e**x within 2 ulp; 0 below -708.

    Shapes: x any, float64, at most 0 or little above.
    """
    clamped = x.clamp(min=_SMALLEST_EXPONENT)
    n = (clamped * _LOG2_E).round_()
    r = (clamped - n * _LN2_HIGH).sub_(n * _LN2_LOW)
    y = torch.full_like(r, _EXP_COEFFICIENTS[0])
    for coefficient in _EXP_COEFFICIENTS[1:]:
        y.mul_(r).add_(coefficient)
    y.mul_(r).add_(1.0).mul_(r).add_(1.0)
    power_of_two = (n.to(torch.int64) + 1023 << 52).view(torch.float64)
    return y.mul_(power_of_two).masked_fill_(x < _SMALLEST_EXPONENT, 0.0)


def log(x: torch.Tensor) -> torch.Tensor:
    """Return the natural logarithm within 1 ulp.

    Shapes: x any, float64, positive and normal.
    """
    mantissa, exponent = torch.frexp(x)  # mantissa in [1/2, 1)
    is_low = mantissa < 0.70710678118654752
    mantissa = torch.where(is_low, mantissa * 2.0, mantissa)
    e = exponent.to(torch.float64).sub_(is_low.to(torch.float64))
    f = mantissa.sub_(1.0)  # [sqrt(1/2) - 1, sqrt(2) - 1)
    s = f / (f + 2.0)
    z = s * s
    r = torch.full_like(z, _LOG_COEFFICIENTS[0])
    for coefficient in _LOG_COEFFICIENTS[1:]:
        r.mul_(z).add_(coefficient)
    half_square = (f * f).mul_(0.5)
    correction = r.mul_(z).add_(half_square).mul_(s).add_(e * _LN2_LOW)
    return (e * _LN2_HIGH).sub_(half_square.sub_(correction).sub_(f))
