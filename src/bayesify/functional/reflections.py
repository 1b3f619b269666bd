r"""Gaussian noise rotated by Householder reflections, for variational structured dropout.

Nguyen, Nguyen, Nguyen, Than, Bui & Ho, *Structured dropout variational inference for Bayesian neural networks* (2021). Vectors
$v_1, \ldots, v_T$ of length K give an orthogonal matrix

$$U = H_T \cdots H_1, \qquad H_t = I - 2 v_t v_t^\top / \lVert v_t \rVert^2.$$

With unit vectors $w_t$ as rows of W, the compact WY form (Schreiber & Van Loan, 1989) is
$U = I - 2 W^\top R$, $R = (I + 2\,\mathrm{tril}(W W^\top, -1))^{-1} W$: two thin products instead of a K x K matrix. For a vector
of length zero, $H_t = I$.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.errors import ConfigurationError
from bayesify.functional.kl import at_least_float32
from bayesify.native.reflections import Connection, noise_and_kl, rotates_natively

__all__ = [
    "CompactForm",
    "compact_form",
    "householder",
    "induced_regularizer",
    "structured_noise",
    "structured_noise_and_kl",
    "vsd_kl",
]


class CompactForm(NamedTuple):
    r"""$U = I - 2 W^\top R$ of T reflections: W, their unit normals, and R, both (T, K) and at least float32."""

    normals: Tensor
    turned: Tensor


def compact_form(vectors: Tensor) -> CompactForm:
    """Compute the compact form for several calls of `householder`, `structured_noise` and `vsd_kl`.

    Args:
        vectors: (T, K), as in `householder`.

    Raises:
        ConfigurationError: another shape.

    Example:
        >>> form = compact_form(torch.tensor([[3.0, 0.0]]))
        >>> torch.eye(2) - 2 * form.normals.T @ form.turned
        tensor([[-1.,  0.],
                [ 0.,  1.]])
    """
    if vectors.dim() != 2:
        raise ConfigurationError(f"vectors must be (T, K), one row per reflection, got shape {tuple(vectors.shape)}")
    vectors = at_least_float32(vectors)
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    w = vectors / norm.masked_fill(norm < _shortest(norm.dtype), torch.inf)
    r = w
    if len(vectors) > 1:
        overlap = (w @ w.mT).tril(-1)
        for _ in range(len(vectors) - 1):  # Horner's rule; powers of a strictly triangular matrix vanish
            r = torch.addmm(w, overlap, r, alpha=-2)
    return CompactForm(w, r)


def _shortest(dtype: torch.dtype) -> float:
    """The norm below which squares of a vector underflow, so that the quotient would not have unit length."""
    return (torch.finfo(dtype).tiny / torch.finfo(dtype).eps) ** 0.5


def householder(vectors: Tensor | CompactForm, x: Tensor) -> Tensor:
    r"""Reflect x at T hyperplanes: $U x$ with $U = H_T \cdots H_1$; $H_1$ acts first.

    `householder(vectors.flip(0), x)` is the inverse, $U^\top x$.

    Args:
        vectors: normals of the hyperplanes, (T, K), of any length, or their `compact_form`; normals of length zero are ignored.
        x: (..., K).

    Returns:
        (..., K), each row of the same length as in x; in time O(T K) per row.

    Raises:
        ConfigurationError: the shapes do not match.

    Source: Nguyen et al. (2021), section 3.1.

    Example:
        >>> mirror, swap = [3.0, 0.0], [1.0, -1.0]
        >>> householder(torch.tensor([mirror, swap]), torch.tensor([1.0, 2.0]))  # (-1, 2), then (2, -1)
        tensor([ 2.0000, -1.0000])
    """
    w, r = _compact(vectors)
    if x.dim() == 0 or x.shape[-1] != w.shape[1]:
        raise ConfigurationError(f"x must be (..., {w.shape[1]}) to match vectors {tuple(w.shape)}, got {tuple(x.shape)}")
    wide = at_least_float32(x)
    return (wide - 2 * ((wide @ r.mT.to(wide.dtype)) @ w.to(wide.dtype))).to(x.dtype)


def structured_noise(log_alpha: Tensor, vectors: Tensor | CompactForm, eps: Tensor) -> Tensor:
    r"""Multiplicative noise with dependent components.

    $$\xi = 1 + U (\sqrt\alpha \circ \epsilon) \sim N(1, U\,\mathrm{diag}(\alpha)\,U^\top)$$

    Args:
        log_alpha: (K,), $\log\alpha$, the log variances along the rotated axes.
        vectors: (T, K) or their `compact_form`, as in `householder`.
        eps: (B, K), standard normal.

    Returns:
        (B, K), one draw per row, of at least float32; in time O(T B K).

    Raises:
        ConfigurationError: the shapes do not match.

    Source: Nguyen et al. (2021), section 3.1.

    Example:
        >>> structured_noise(torch.zeros(2), torch.tensor([[1.0, 1.0]]), torch.tensor([[0.5, 0.0]]))  # U swaps the axes
        tensor([[1.0000, 0.5000]])
    """
    w, r = _compact(vectors, log_alpha)
    if eps.dim() != 2 or eps.shape[1] != len(log_alpha):
        raise ConfigurationError(f"eps must be (B, {len(log_alpha)}) to match log_alpha, got {tuple(eps.shape)}")
    std = torch.exp(0.5 * at_least_float32(log_alpha))
    eps = eps.to(std.dtype)
    return torch.addmm(torch.addcmul(std.new_ones(()), std, eps), eps @ (r * std).mT, w, alpha=-2)


def structured_noise_and_kl(
    log_alpha: Tensor, vectors: Tensor, eps: Tensor, columns: int, connections: Sequence[Connection] = ()
) -> tuple[Tensor, Tensor]:
    r"""`structured_noise` and `vsd_kl` of the same reflections, with fewer operators if native ones are used.

    Args:
        log_alpha, vectors, eps: as in `structured_noise`.
        columns: as in `vsd_kl`.
        connections: $W_1$ (H, K), $b_1$ (H,), $W_2$ (K, H) and $b_2$ (K,) of each further vector,
            $v' = W_2\,\mathrm{relu}(W_1 v + b_1) + b_2$ of the last vector v.

    Returns:
        (B, K), one draw per row, and nats, a scalar, of at least float32.

    Raises:
        ConfigurationError: the shapes do not match, or `columns` is below 1.

    Source: Nguyen et al. (2021), sections 3.1 and 3.4; the connections are the low-rank ones of appendix D.

    Example:
        >>> noise, kl = structured_noise_and_kl(torch.zeros(2), torch.ones(1, 2), torch.zeros(5, 2), columns=2)
        >>> noise.shape, kl
        (torch.Size([5, 2]), tensor(1.3863))
    """
    matches = eps.dim() == 2 and vectors.shape == (len(vectors), *log_alpha.shape) and log_alpha.shape == eps.shape[1:]
    if matches and columns >= 1 and rotates_natively(log_alpha, vectors, eps, connections):
        return noise_and_kl(log_alpha, vectors, eps, columns, connections, _shortest(vectors.dtype), _noise_and_kl)
    return _noise_and_kl(log_alpha, vectors, eps, columns, connections)


def _noise_and_kl(
    log_alpha: Tensor, vectors: Tensor, eps: Tensor, columns: int, connections: Sequence[Connection]
) -> tuple[Tensor, Tensor]:
    rows = [vectors]
    for w1, b1, w2, b2 in connections:
        rows.append(F.linear(F.linear(rows[-1][-1:], w1, b1).relu(), w2, b2))
    form = compact_form(torch.cat(rows) if connections else vectors)
    return structured_noise(log_alpha, form, eps), vsd_kl(log_alpha, form, columns)


def vsd_kl(log_alpha: Tensor, vectors: Tensor | CompactForm, columns: int) -> Tensor:
    r"""KL of variational structured dropout with the optimal precisions of the prior (empirical Bayes).

    For a weight matrix of K rows and Q columns, the prior $p(W_{ij}) = N(0, \beta_{ij}^{-1})$ and
    $q(W_{:j}) = N(\Theta_{:j}, \mathrm{diag}(\Theta_{:j})\, U\, \mathrm{diag}(\alpha)\, U^\top \mathrm{diag}(\Theta_{:j}))$,

    $$\min_\beta \sum_{j=1}^Q \mathrm{KL}(q(W_{:j}) \,\|\, p(W_{:j})) = \frac{Q}{2} \sum_{i=1}^K \log\frac{1 + S_i}{\alpha_i},
      \qquad S_i = \sum_{k=1}^K \alpha_k U_{ik}^2,$$

    reached at $\beta_{ij} = 1 / (\Theta_{ij}^2 (1 + S_i))$, for every $\Theta$. S is the diagonal of
    $U\,\mathrm{diag}(\alpha)\,U^\top$, computed from the compact form in time O(T^2 K).

    Args:
        log_alpha: (K,), $\log\alpha$.
        vectors: (T, K) or their `compact_form`, as in `householder`.
        columns: Q, the number of weights that share one noise variable.

    Returns:
        Nats, a scalar of at least float32; at least its value for U = I, $\frac{Q}{2}\sum_i \log(1 + 1/\alpha_i)$.

    Raises:
        ConfigurationError: the shapes do not match, or `columns` is below 1.

    Source: Nguyen et al. (2021), equation (6) and appendix B. U_ij is entry (i, j) of U.

    Example:
        >>> vsd_kl(torch.zeros(3), torch.randn(2, 3), columns=2)  # equal variances: 3 log 2 for every U
        tensor(2.0794)
    """
    w, r = _compact(vectors, log_alpha)
    if columns < 1:
        raise ConfigurationError(f"columns must be at least 1 (the weights per noise variable), got {columns!r}")
    log_alpha = at_least_float32(log_alpha)
    alpha = log_alpha.exp()
    scaled = r * alpha
    # diag(U A U') = a + 4 sum_t w_t (R A R' W - R A)_t; rounding must not make a variance negative
    spread = torch.add(alpha, (w * torch.addmm(scaled, scaled @ r.mT, w, beta=-1)).sum(0), alpha=4).clamp_min(0)
    return 0.5 * columns * (torch.log1p(spread) - log_alpha).sum()


def induced_regularizer(log_alpha: Tensor, vectors: Tensor, inputs: Tensor, hessian: Tensor) -> Tensor:
    r"""Second-order approximation of the expected loss that structured noise on a layer's inputs adds.

    $$\mathrm{E}_\xi\, \ell(h \circ \xi) - \ell(h)
      \approx \tfrac12 \bigl\langle \mathcal H, \mathrm{diag}(h)\, U\, \mathrm{diag}(\alpha)\, U^\top \mathrm{diag}(h) \bigr\rangle
      = \tfrac12 \sum_k \alpha_k\, U_{:k}^\top \mathrm{diag}(h)\, \mathcal H\, \mathrm{diag}(h)\, U_{:k}$$

    It is exact for losses that are quadratic in h, and nonnegative if $\mathcal H$ is the Gauss-Newton matrix
    $J^\top \mathcal H_{out} J$. The paper's equations (7) and (17) to (20) omit the factor 1/2 of the Taylor expansion.

    Args:
        log_alpha: (K,), $\log\alpha$.
        vectors: (T, K), as in `householder`.
        inputs: h, (..., K), the inputs of the layer.
        hessian: $\mathcal H$, (..., K, K), symmetric: the second derivatives of the loss with respect to h.

    Returns:
        (...,), in the unit of the loss, one value per example.

    Raises:
        ConfigurationError: the shapes do not match.

    Source: Nguyen et al. (2021), section 3.5 and appendix E.

    Example:
        >>> h, hessian = torch.tensor([1.0, 2.0]), torch.eye(2)
        >>> induced_regularizer(torch.zeros(2), torch.ones(1, 2), h, hessian)  # alpha = 1: half the squared length of h
        tensor(2.5000)
    """
    _compact(vectors, log_alpha)
    channels = len(log_alpha)
    if inputs.dim() == 0 or inputs.shape[-1] != channels or hessian.shape[-2:] != (channels, channels):
        raise ConfigurationError(
            f"inputs must be (..., {channels}) and hessian (..., {channels}, {channels}) to match log_alpha, "
            f"got {tuple(inputs.shape)} and {tuple(hessian.shape)}"
        )
    scaled = inputs.unsqueeze(-1) * hessian * inputs.unsqueeze(-2)
    back = vectors.flip(0)  # rows times U
    turned = householder(back, householder(back, scaled).mT)
    return 0.5 * (log_alpha.exp() * turned.diagonal(dim1=-2, dim2=-1)).sum(-1)


def _compact(vectors: Tensor | CompactForm, log_alpha: Tensor | None = None) -> CompactForm:
    form = vectors if isinstance(vectors, CompactForm) else compact_form(vectors)
    shape = tuple(form.normals.shape)
    if log_alpha is not None and log_alpha.shape != shape[1:]:
        raise ConfigurationError(f"log_alpha must be ({shape[1]},) to match vectors {shape}, got {tuple(log_alpha.shape)}")
    return form
