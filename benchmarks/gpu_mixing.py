"""The CUDA kernels of convolutions and mixed heads: right against float64, then timed beside the eager form and SDPA.

Kernels are [heads, queries, keys]; mixes [groups, out, in] before the softmax and [groups, in, out] after it. For
benchmarks/gpu.py.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import ctypes
import math
from ctypes import Structure, byref, c_float, c_int64, c_void_p
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F

HEADS = 16
EAGER_GOAL, SDPA_GOAL, MIX_GOAL = 30.0, 1 / 6, 1 / 3


@dataclass
class Stages:
    """What joins queries, keys and heads; None: the identity."""

    kernel_before: torch.Tensor | None = None
    kernel_after: torch.Tensor | None = None
    mix_before: torch.Tensor | None = None
    mix_after: torch.Tensor | None = None

    def used(self) -> dict[str, torch.Tensor]:
        return {f.name: x for f in fields(self) if (x := getattr(self, f.name)) is not None}


class MixingCall(Structure):  # GpuMixing of gpu_binding.cpp
    _fields_ = ([(name, c_int64) for name in ("batch", "heads", "kv_heads", "tokens", "head_dim")]
                + [(name, c_void_p) for name in ("q", "k", "v", "out", "lse")] + [("scale", c_float)]
                + [("kernel_before", c_void_p), ("before_rows", c_int64), ("before_columns", c_int64)]
                + [("kernel_after", c_void_p), ("after_rows", c_int64), ("after_columns", c_int64)]
                + [("mix_before", c_void_p), ("before_width", c_int64), ("mix_after", c_void_p), ("after_width", c_int64)]
                + [(name, c_void_p) for name in ("dout", "dlse", "dq", "dk", "dv", "dkernel_before", "dkernel_after", "dmix_before",
                                                 "dmix_after")])


class Mixing:
    """One problem with its results; forward() and backward() run again and again."""

    def __init__(self, library, q, k, v, stages: Stages, d_out, d_lse=None, documents=None):
        self.library, self.kept = library, [q, k, v, stages, d_out, d_lse]
        nan = float("nan")
        batch, heads, tokens, width = q.shape
        self.out, self.lse = torch.full_like(q, nan), torch.full((batch, heads, tokens), nan, device=q.device)
        self.dq, self.dk, self.dv = (torch.full_like(x, nan) for x in (q, k, v))
        self.grads = {name: torch.full((batch, *x.shape), nan, device=q.device) for name, x in stages.used().items()}
        self.c = c = MixingCall()
        c.batch, c.heads, c.kv_heads, c.tokens, c.head_dim = batch, heads, k.shape[1], tokens, width
        c.scale = width**-0.5
        pointers = {"q": q, "k": k, "v": v, "out": self.out, "lse": self.lse, "dout": d_out, "dlse": d_lse, "dq": self.dq, "dk": self.dk,
                    "dv": self.dv, **stages.used(), **{f"d{name}": x for name, x in self.grads.items()}}
        for name, x in pointers.items():
            assert x is None or x.is_contiguous()
            setattr(c, name, x.data_ptr() if x is not None else None)
        for side in ("before", "after"):
            kernel, mix = getattr(stages, f"kernel_{side}"), getattr(stages, f"mix_{side}")
            if kernel is not None:
                setattr(c, f"{side}_rows", kernel.shape[1]), setattr(c, f"{side}_columns", kernel.shape[2])
            if mix is not None:
                setattr(c, f"{side}_width", mix.shape[1])
        self.plan = c_void_p()
        library.call("plan", c_int64(batch), c_int64(tokens), c_int64(tokens), c_int64(1), c_int64(0), c_int64(0),
                     c_void_p(documents.data_ptr() if documents is not None else None), byref(self.plan))

    def __del__(self):
        self.library.lib.fovea_gpu_drop_plan(self.plan)

    def run(self, name: str) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.library.call(f"mixing_{name}", byref(self.c), self.plan, stream)

    def forward(self) -> None:
        self.run("forward")

    def backward(self) -> None:
        self.run("backward")

    def results(self) -> dict[str, torch.Tensor]:
        return {"out": self.out, "lse": self.lse, "q": self.dq, "k": self.dk, "v": self.dv, **{n: g.sum(0) for n, g in self.grads.items()}}


def eager(q, k, v, stages: Stages, with_lse=False):
    """Output, and lse where asked for, in the order of operations of the official code: T x T maps in the operands' dtype, softmax in float32."""
    heads, tokens, width = q.shape[1:]
    repeat = heads // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    i = torch.arange(tokens, device=q.device)
    hidden = i[None, :] > i[:, None]

    def convolve(x, kernel):
        if kernel is None:
            return x
        rows, columns = kernel.shape[1:]
        x = F.pad(x.masked_fill(hidden, 0), ((columns - 1) // 2, columns // 2, rows - 1, 0))
        if x.dtype == torch.float64:
            return sum(kernel[None, :, a, b, None, None] * x[..., a:a + tokens, b:b + tokens] for a in range(rows) for b in range(columns))
        return F.conv2d(x, kernel.to(x.dtype)[:, None], groups=heads)

    def mix(x, matrices, form):
        if matrices is None:
            return x
        groups, width = matrices.shape[:2]
        grouped = x.view(x.shape[0], groups, width, tokens, tokens)
        return torch.einsum(form, matrices.to(x.dtype), grouped).reshape(x.shape)

    s = convolve((q @ k.transpose(-1, -2)) * width**-0.5, stages.kernel_before)
    s = mix(s, stages.mix_before, "goi,bgixy->bgoxy").masked_fill(hidden, -math.inf)
    w = torch.softmax(s if s.dtype == torch.float64 else s.float(), -1).to(q.dtype)
    w = convolve(w, stages.kernel_after)
    if stages.kernel_after is not None:
        w = w.masked_fill(hidden, 0)
    out = mix(w, stages.mix_after, "gio,bgixy->bgoxy") @ v
    return (out, torch.logsumexp(s.double(), -1)) if with_lse else out


def by_eager(q, k, v, stages: Stages, d_out, d_lse, dtype) -> dict[str, torch.Tensor]:
    used = stages.used()
    leaves = {name: x.detach().to(dtype if dtype == torch.float64 or name in "qkv" else torch.float32).requires_grad_()
              for name, x in {"q": q, "k": k, "v": v, **used}.items()}
    out, lse = eager(leaves["q"], leaves["k"], leaves["v"], Stages(**{name: leaves[name] for name in used}), with_lse=True)
    results, given = [out], [d_out.to(out.dtype)]
    if d_lse is not None:
        results.append(lse), given.append(d_lse.to(lse.dtype))
    return {"out": out.detach(), "lse": lse.detach(), **dict(zip(leaves, torch.autograd.grad(results, list(leaves.values()), given)))}


def by_documents(q, k, v, stages, d_out, d_lse, dtype, lengths):
    """Each document alone; gradients of the stages are sums."""
    pieces = [x.split(lengths, 2) for x in (q, k, v, d_out, d_lse)]
    parts = [by_eager(*piece[:3], stages, *piece[3:], dtype) for piece in zip(*pieces)]
    return {name: sum(p[name].double() for p in parts) if name in stages.used() else torch.cat([p[name] for p in parts], 2)
            for name in parts[0]}


def mixing_operands(batch, heads, kv_heads, tokens, width, gradient=1.0):
    def normal(h):
        return torch.randn(batch, h, tokens, width, device="cuda").to(torch.bfloat16)

    return normal(heads), normal(kv_heads), normal(kv_heads), (normal(heads).float() * gradient).to(torch.bfloat16)


def kernel_of(heads, rows, columns):
    kernel = 0.1 * torch.randn(heads, rows, columns, device="cuda")
    kernel[:, rows - 1, (columns - 1) // 2] += 1
    return kernel


def mix_of(heads, width):
    return (torch.eye(width, device="cuda") + 0.1 * torch.randn(heads // width, width, width, device="cuda")).contiguous()


def error(got, truth) -> float:
    difference = (got.double() - truth.double()).abs().max() / truth.double().abs().max().clamp_min(1e-30)
    return difference.item() if math.isfinite(difference.item()) else math.inf


def check_one(library, report, name, stages, batch, heads, kv_heads, tokens, width, lengths=None):
    """No result is further from the truth than twice the eager form in bfloat16 is (and 1e-3)."""
    q, k, v, d_out = mixing_operands(batch, heads, kv_heads, tokens, width, 1e-4)
    d_lse = 1e-4 * torch.randn(batch, heads, tokens, device="cuda")
    documents = None
    if lengths is not None:
        documents = torch.cat([torch.full((n,), d) for d, n in enumerate(lengths)]).repeat(batch, 1).contiguous()
    call = Mixing(library, q, k, v, stages, d_out, d_lse, documents)
    call.forward(), call.backward()
    first = call.out.clone()
    call.forward()
    torch.cuda.synchronize()
    if lengths is None:
        truth, other = (by_eager(q, k, v, stages, d_out, d_lse, dtype) for dtype in (torch.float64, torch.bfloat16))
    else:
        truth, other = (by_documents(q, k, v, stages, d_out, d_lse, dtype, lengths) for dtype in (torch.float64, torch.bfloat16))
    errors = {key: (error(x, truth[key]), error(other[key], truth[key])) for key, x in call.results().items()}
    report.judge(f"{name}, {batch}x{heads}/{kv_heads} {tokens} d{width}", errors, torch.equal(first, call.out))


def check_cases():
    yield "convolutions", Stages(kernel_of(4, 6, 11), kernel_of(4, 6, 11)), 2, 4, 2, 333, 96
    yield "a convolution before", Stages(kernel_before=kernel_of(3, 3, 5)), 1, 3, 3, 700, 64
    yield "a convolution after", Stages(kernel_after=kernel_of(2, 4, 12)), 1, 2, 1, 1030, 128
    yield "talking heads", Stages(mix_before=mix_of(16, 16), mix_after=mix_of(16, 16)), 2, 16, 16, 333, 64
    yield "groups of 4 and 2", Stages(mix_before=mix_of(24, 4), mix_after=mix_of(24, 2)), 1, 24, 6, 500, 96
    yield "both", Stages(kernel_of(16, 6, 11), kernel_of(16, 6, 11), mix_of(16, 2), mix_of(16, 2)), 2, 16, 4, 333, 96
    yield "both, whole matrices", Stages(kernel_of(16, 6, 11), kernel_of(16, 6, 11), mix_of(16, 16), mix_of(16, 16)), 1, 16, 16, 1100, 128
    yield "both, 6 heads", Stages(kernel_of(6, 5, 12), None, None, mix_of(6, 3)), 1, 6, 6, 640, 64
    lengths = [37, 2, 161, 200]
    yield "convolutions, documents", Stages(kernel_of(4, 6, 11), kernel_of(4, 6, 11)), 1, 4, 2, 400, 96, lengths
    yield "talking heads, documents", Stages(mix_before=mix_of(16, 16), mix_after=mix_of(16, 16)), 1, 16, 16, 400, 64, lengths
    yield "both, documents", Stages(kernel_of(16, 6, 11), kernel_of(16, 6, 11), mix_of(16, 8), mix_of(16, 8)), 2, 16, 4, 400, 128, lengths
    yield "one token", Stages(kernel_of(2, 6, 11), kernel_of(2, 6, 11), mix_of(2, 2), mix_of(2, 2)), 1, 2, 2, 1, 64
    # More than one slab and one frame: 256 MiB are 2,048 rows of 4,096 tokens.
    yield "talking heads in slabs", Stages(mix_before=mix_of(16, 16), mix_after=mix_of(16, 16)), 4, 16, 16, 1500, 64
    yield "both in frames", Stages(kernel_of(16, 2, 3), kernel_of(16, 2, 3), mix_of(16, 16), mix_of(16, 16)), 4, 16, 16, 1500, 64


def check_mixing(library, report, small=False):
    torch.manual_seed(0)
    for case in check_cases():
        if small:  # for compute-sanitizer
            if case[2] == 4 or case[5] == 1:
                continue
            case = (*case[:2], 1, *case[3:5], 200, case[6]) if len(case) == 7 else (*case[:2], 1, *case[3:5], 200, case[6], [37, 2, 161])
        try:
            check_one(library, report, *case)
        except Exception as failure:  # one wrong form must not hide the others
            report.wrong.append(f"{case[0]}: {failure}")
            print(f"[gpu] WRONG {case[0]}: {str(failure)[:200]}", flush=True)
            if "CUDA error" in str(failure):
                raise
        torch.cuda.empty_cache()


def replayed_ms(run, reps=11) -> float:
    """Median of replays of a CUDA graph: host time hides the GPU's at these sizes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(), run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return events_ms(graph.replay, reps)


def events_ms(run, reps) -> float:
    run()
    times = []
    for _ in range(reps):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(), run(), b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return sorted(times)[reps // 2]


def sdpa_ms(q, k, v, d_out) -> float:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return replayed_ms(lambda: torch.autograd.grad(F.scaled_dot_product_attention(*leaves, is_causal=True), leaves, d_out))


def time_mixing(library, report, tokens, width):
    """Forward and backward together."""
    q, k, v, d_out = mixing_operands(1, HEADS, HEADS, tokens, width)
    kernels = kernel_of(HEADS, 6, 11), kernel_of(HEADS, 6, 11)
    mixes = mix_of(HEADS, HEADS), mix_of(HEADS, HEADS)
    sdpa = sdpa_ms(q, k, v, d_out)
    for name, stages in (("convolutions 6 x 11", Stages(*kernels)), ("mixed heads", Stages(None, None, *mixes)),
                         ("convolutions and mixes", Stages(*kernels, *mixes))):
        call = Mixing(library, q, k, v, stages, d_out)
        forward = replayed_ms(call.forward)
        ours = replayed_ms(lambda: (call.forward(), call.backward()))  # noqa: B023
        mixes_alone = stages.kernel_before is None
        what = f"{name}, 16 heads, d = {width}, T = {tokens}"
        print(f"[gpu] {what}: forward {forward:.3f} ms", flush=True)
        report.row(what, ours, "SDPA (graph)", sdpa, MIX_GOAL if mixes_alone else SDPA_GOAL)

        def by_torch():
            leaves = [x.detach().requires_grad_() for x in (q, k, v, *stages.used().values())]  # noqa: B023
            out = eager(*leaves[:3], Stages(**dict(zip(stages.used(), leaves[3:]))))  # noqa: B023
            torch.autograd.grad(out, leaves, d_out)

        report.row(what, ours, "eager bfloat16", events_ms(by_torch, 3), 1.0 if mixes_alone else EAGER_GOAL)
        torch.cuda.empty_cache()
