"""Draws, variances and KL divergences of normal weights, and local reparameterization, each in one pass over memory.

A program has BLOCK of n elements. KLs are one sum per program; `bayesify.native.gaussian_kernels` has the arguments.
"""
# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def _elements(n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return at, at < n


@triton.jit
def _store_kl(kls, logs, variance, shift, half, constant, used):
    terms = half * (variance + shift * shift) - logs + constant
    tl.store(kls + tl.program_id(0), tl.sum(tl.where(used, terms, 0), 0))


@triton.jit
def draw(mean, log_std, shift, eps, out, kls, n, half, constant, BLOCK: tl.constexpr):
    """out = mean + exp(log_std) eps, and the KL."""
    at, used = _elements(n, BLOCK)
    logs = tl.load(log_std + at, mask=used, other=0)
    std = tl.exp(logs)
    drawn = tl.load(mean + at, mask=used, other=0) + std * tl.load(eps + at, mask=used, other=0)
    tl.store(out + at, drawn, mask=used)
    _store_kl(kls, logs, std * std, tl.load(shift + at, mask=used, other=0), half, constant, used)


@triton.jit
def variance(log_std, shift, out, kls, n, half, constant, BLOCK: tl.constexpr):
    """out = exp(2 log_std), and the KL."""
    at, used = _elements(n, BLOCK)
    logs = tl.load(log_std + at, mask=used, other=0)
    std = tl.exp(logs)
    tl.store(out + at, std * std, mask=used)
    _store_kl(kls, logs, std * std, tl.load(shift + at, mask=used, other=0), half, constant, used)


@triton.jit
def draw_gradient(by_out, log_std, shift, eps, by_mean, by_log, n, share, by_kl, BLOCK: tl.constexpr):
    """Gradients of `draw`, for share and by_kl in memory."""
    at, used = _elements(n, BLOCK)
    share, by_kl = tl.load(share), tl.load(by_kl)
    upstream, std = tl.load(by_out + at, mask=used, other=0), tl.exp(tl.load(log_std + at, mask=used, other=0))
    tl.store(by_mean + at, upstream + share * tl.load(shift + at, mask=used, other=0), mask=used)
    slope = upstream * tl.load(eps + at, mask=used, other=0) + share * std
    tl.store(by_log + at, std * slope - by_kl, mask=used)


@triton.jit
def variance_gradient(by_out, by_variance, variance, shift, by_mean, by_log, n, share, by_kl, BLOCK: tl.constexpr):
    """Gradients of `variance`, for share and by_kl in memory."""
    at, used = _elements(n, BLOCK)
    share, by_kl = tl.load(share), tl.load(by_kl)
    upstream = tl.load(by_out + at, mask=used, other=0)
    slope = tl.load(by_variance + at, mask=used, other=0) * 2 + share
    tl.store(by_mean + at, upstream + share * tl.load(shift + at, mask=used, other=0), mask=used)
    tl.store(by_log + at, tl.load(variance + at, mask=used, other=0) * slope - by_kl, mask=used)


@triton.jit
def add_kl_gradient(by_mean, by_log, variance, shift, n, share, by_kl, BLOCK: tl.constexpr):
    """`variance_gradient` in place."""
    variance_gradient(by_mean, by_log, variance, shift, by_mean, by_log, n, share, by_kl, BLOCK)


@triton.jit
def reparameterize(mean, variance, eps, out, n, least, half, BLOCK: tl.constexpr):
    """out = mean + std eps, and half eps / std in place of eps."""
    at, used = _elements(n, BLOCK)
    v, noise = tl.load(variance + at, mask=used, other=1), tl.load(eps + at, mask=used, other=0)
    std = tl.sqrt_rn(tl.where(v < least, least, v))
    tl.store(out + at, tl.load(mean + at, mask=used, other=0) + std * noise, mask=used)
    tl.store(eps + at, tl.div_rn(half * noise, std), mask=used)
