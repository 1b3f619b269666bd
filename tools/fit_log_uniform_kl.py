"""Fit the coefficients of `bayesify.functional.log_uniform_kl`: a rational approximation in 60 digits, with mpmath.

    python tools/fit_log_uniform_kl.py

KL(alpha) = softplus(-log alpha) / 2 + (1 - s)^2 P(s) / Q(s) with s = 2 alpha / (1 + 2 alpha). The first term has the correct slope
at alpha = 0 and the correct limit at infinity; the second is smooth on [0, 1]. Linearized least squares on Chebyshev nodes.
"""

import mpmath as mp

mp.mp.dps = 60
DEGREE, NODES, SCALE = 13, 100, 2


def exact(alpha: mp.mpf) -> mp.mpf:
    """2 int_0^u D(t) dt for u^2 = 1 / (2 alpha), as a hypergeometric function or, for small alpha, its asymptotic series."""
    u2 = 1 / (2 * alpha)
    if u2 < 400:
        return u2 * mp.hyp2f2(1, 1, mp.mpf(3) / 2, 2, -u2)
    return -mp.log(alpha) / 2 + (mp.euler + mp.log(2)) / 2 - sum(mp.fac2(2 * k - 1) * alpha**k / (2 * k) for k in range(1, 40))


def fit() -> tuple[list[mp.mpf], list[mp.mpf]]:
    nodes = [(1 - mp.cos(mp.pi * (2 * i + 1) / (2 * NODES))) / 2 for i in range(NODES)]
    alphas = [s / (1 - s) / SCALE for s in nodes]
    targets = [(exact(a) - mp.log1p(1 / a) / 2) / (1 - s) ** 2 for a, s in zip(alphas, nodes, strict=True)]
    weights, p, q = [(1 - s) ** 2 for s in nodes], [mp.mpf(0)], [mp.mpf(1)]
    for _ in range(5):
        rows = [
            [w * s**j for j in range(DEGREE + 1)] + [-w * y * s**j for j in range(1, DEGREE + 1)]
            for s, y, w in zip(nodes, targets, weights, strict=True)
        ]
        solution = mp.lu_solve(mp.matrix(rows), mp.matrix([w * y for y, w in zip(targets, weights, strict=True)]))
        p, q = list(solution[: DEGREE + 1]), [mp.mpf(1), *solution[DEGREE + 1 :]]
        weights = [(1 - s) ** 2 / abs(mp.polyval(q[::-1], s)) for s in nodes]
    return p, q


def main() -> None:
    p, q = fit()
    worst = 0
    for i in range(401):
        alpha = mp.e ** (-20 + mp.mpf(32) * i / 400)
        s = SCALE * alpha / (1 + SCALE * alpha)
        value = mp.log1p(1 / alpha) / 2 + (1 - s) ** 2 * mp.polyval(p[::-1], s) / mp.polyval(q[::-1], s)
        worst = max(worst, abs(value - exact(alpha)))
    for name, coefficients in (("P", p), ("Q", q)):
        print(name, "=", ", ".join(mp.nstr(c, 17) for c in coefficients))
    print("largest error for log alpha in [-20, 12]:", mp.nstr(worst, 3))


if __name__ == "__main__":
    main()
