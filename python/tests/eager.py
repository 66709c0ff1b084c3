"""Attention in a page of plain torch, in float64: the truth of the tests.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
import torch


def convolve(x, kernel, seen):
    """x [b, h, t, s] is 0 outside of the map; row queries - 1 of the kernel is the current query."""
    queries, keys = kernel.shape[1:]
    older = (keys - 1) // 2
    padded = torch.nn.functional.pad(x * seen, (older, keys - 1 - older, queries - 1, 0))
    return torch.nn.functional.conv2d(padded, kernel[:, None], groups=x.shape[1])


def mix(x, matrices, equation):
    groups, width = matrices.shape[:2]
    return torch.einsum(equation, matrices, x.unflatten(1, (groups, width))).flatten(1, 2)


def attend(q, k, v, *, scale=None, tau=None, softcap=0.0, causal=True, window=0, sinks=0, bias=None, sink_logit=None,
           documents=None, before=None, after=None, mix_before=None, mix_after=None, visible=None, gate=None, factors=None):
    """`visible` [.., t, s] joins the mask; `gate` maps logits to logits before the bias; `factors` are those of dropout."""
    group, (t, s) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    i, j = torch.arange(s - t, s)[:, None], torch.arange(s)[None]
    seen = (j <= i) if causal else torch.ones(t, s, dtype=torch.bool)
    if window:
        seen = seen & ((i - j < window) | ((j < sinks) & (j <= i)))
    seen = seen[None, None]
    if documents is not None:
        seen = seen & (documents[:, None, -t:, None] == documents[:, None, None, :])
    seen = seen if visible is None else seen & visible
    x = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    x = x if tau is None else x / tau[:, None, :, None]
    x = softcap * torch.tanh(x / softcap) if softcap else x
    x = x if before is None else convolve(x, before, seen)
    x = x if mix_before is None else mix(x, mix_before, "noi,bnits->bnots")
    x = x if gate is None else gate(x)
    x = x if bias is None else x + bias(i - j)
    x = x.masked_fill(~seen, -torch.inf)
    total = torch.logsumexp(x, -1)
    if sink_logit is not None:
        total = torch.logaddexp(total, sink_logit[None, :, None].expand_as(total))
    p = torch.exp(x - total[..., None])
    p = p if after is None else convolve(p, after, seen) * seen
    p = p if mix_after is None else mix(p, mix_after, "nio,bnits->bnots")
    return (p if factors is None else p * factors) @ v, total


def numbers(*shape, scale=1.0, seed=0):
    """Random leaves, the same for the same shape and seed."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).requires_grad_()


def rows(b, h, g, t, s, d, dtype=torch.float32):
    """q, k and v of a call, leaves of `dtype`."""
    shapes = (h, t), (g, s), (g, s)
    return [numbers(b, heads, tokens, d, seed=n).detach().to(dtype).requires_grad_() for n, (heads, tokens) in enumerate(shapes)]
