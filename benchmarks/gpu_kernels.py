"""The CUDA kernels of libfovea_gpu_bench.so (gpu_binding.cpp) on tensors of torch, and their truth in float64.

Tensors are [batch, heads, tokens, head size]. For benchmarks/gpu.py.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import ctypes
import math
from ctypes import Structure, byref, c_char_p, c_float, c_int64, c_void_p
from dataclasses import dataclass

import torch


@dataclass
class Settings:
    """One call beyond its sizes; None and 0 are neutral."""

    causal: bool = True
    window: int = 0
    sinks: int = 0
    documents: torch.Tensor | None = None  # [batch, keys] labels, on the host
    scale: float | None = None
    tau: torch.Tensor | None = None  # [batch, queries]
    soft_cap: float = 0.0
    alibi: torch.Tensor | None = None  # [heads]
    sink_logit: torch.Tensor | None = None  # [heads]
    members: torch.Tensor | None = None  # hard Focus: [batch, keys] int64, bit n: group n
    groups: int = 8
    most_groups: int = 1
    focus_window: int = 128
    focus_sinks: int = 4
    gate: str | None = None  # soft Focus: log, logsig or mul
    gate_query: torch.Tensor | None = None  # [batch, queries, groups] float32, the strength a factor of it
    gate_key: torch.Tensor | None = None  # [batch, keys, groups]


GATES = {"log": (1, 1e-6), "logsig": (3, -2.0), "mul": (4, 0.0)}  # form, offset of z


class Call(Structure):  # GpuCall of gpu_binding.cpp
    _fields_ = ([(name, c_int64) for name in ("batch", "heads", "kv_heads", "queries", "keys", "head_dim")]
                + [(name, c_void_p) for name in ("q", "k", "v", "out", "lse")]
                + [("scale", c_float), ("soft_cap", c_float)]
                + [(name, c_void_p) for name in ("tau", "alibi", "sink_logit", "dout", "dlse", "dq", "dk", "dv", "dtau",
                                                 "dsink", "rest", "members")]
                + [(name, c_int64) for name in ("groups", "most_groups", "focus_window", "focus_sinks", "gate_form")]
                + [("gate_offset", c_float)]
                + [(name, c_void_p) for name in ("gate_query", "gate_key", "dgate_query", "dgate_key")])


class Library:
    def __init__(self, path: str):
        self.lib = ctypes.CDLL(path)
        for name in ("plan", "forward", "backward", "mixing_forward", "mixing_backward", "isa"):
            getattr(self.lib, f"fovea_gpu_{name}").restype = c_char_p

    def isa(self) -> str:
        return self.lib.fovea_gpu_isa().decode()

    def call(self, name: str, *arguments) -> None:
        error = getattr(self.lib, f"fovea_gpu_{name}")(*arguments)
        if error:
            raise RuntimeError(error.decode())


class Attention:
    """One problem with its results; forward() and backward() run again and again."""

    def __init__(self, library: Library, q, k, v, settings: Settings, d_out=None, d_lse=None):
        self.library, self.kept = library, [q, k, v, settings, d_out, d_lse]
        nan = float("nan")
        batch, heads, queries, width = q.shape
        self.out, self.rest = torch.full_like(q, nan), torch.full_like(q, nan)
        self.lse = torch.full((batch, heads, queries), nan, device=q.device)
        self.dq, self.dk, self.dv = (torch.full_like(x, nan) for x in (q, k, v))
        self.dtau = torch.full_like(self.lse, nan) if settings.tau is not None else None
        self.dsink = torch.full((batch, heads), nan, device=q.device) if settings.sink_logit is not None else None
        self.dgate_query = self.dgate_key = None
        if settings.gate is not None:
            self.dgate_query = torch.full((batch, heads, queries, settings.groups), nan, device=q.device)
            self.dgate_key = torch.full((batch, k.shape[1], k.shape[2], settings.groups), nan, device=q.device)
        self.c = c = Call()
        c.batch, c.heads, c.kv_heads = batch, heads, k.shape[1]
        c.queries, c.keys, c.head_dim = queries, k.shape[2], width
        c.scale, c.soft_cap = settings.scale or width**-0.5, settings.soft_cap
        for name, x in (("q", q), ("k", k), ("v", v), ("out", self.out), ("lse", self.lse), ("tau", settings.tau),
                        ("alibi", settings.alibi), ("sink_logit", settings.sink_logit), ("dout", d_out), ("dlse", d_lse),
                        ("dq", self.dq), ("dk", self.dk), ("dv", self.dv), ("dtau", self.dtau), ("dsink", self.dsink), ("rest", self.rest),
                        ("members", settings.members), ("gate_query", settings.gate_query), ("gate_key", settings.gate_key),
                        ("dgate_query", self.dgate_query), ("dgate_key", self.dgate_key)):
            assert x is None or x.is_contiguous()
            setattr(c, name, x.data_ptr() if x is not None else None)
        c.groups, c.most_groups = settings.groups, settings.most_groups
        c.focus_window, c.focus_sinks = settings.focus_window, settings.focus_sinks
        c.gate_form, c.gate_offset = GATES[settings.gate] if settings.gate is not None else (0, 0.0)
        labels = None if settings.documents is None else settings.documents.to(torch.int64).contiguous()
        self.plan = c_void_p()
        library.call("plan", c_int64(batch), c_int64(queries), c_int64(k.shape[2]), c_int64(settings.causal),
                     c_int64(settings.window), c_int64(settings.sinks),
                     c_void_p(labels.data_ptr() if labels is not None else None), byref(self.plan))

    def __del__(self):
        self.library.lib.fovea_gpu_drop_plan(self.plan)

    def run(self, name: str) -> None:
        self.library.call(name, byref(self.c), self.plan, c_void_p(torch.cuda.current_stream().cuda_stream))

    def forward(self) -> torch.Tensor:
        self.run("forward")
        return self.out

    def backward(self) -> None:
        self.run("backward")


def seen(settings: Settings, batch: int, queries: int, keys: int) -> torch.Tensor:
    """[batch, 1, queries, keys]"""
    i = keys - queries + torch.arange(queries)[:, None]
    j = torch.arange(keys)[None, :]
    labels = settings.documents if settings.documents is not None else torch.zeros(batch, keys, dtype=torch.int64)
    new = torch.ones_like(labels, dtype=torch.bool)
    new[:, 1:] = labels[:, 1:] != labels[:, :-1]
    start = torch.where(new, torch.arange(keys), 0).cummax(1).values  # of the key's document
    see = labels[:, keys - queries:, None] == labels[:, None, :]
    if settings.causal:
        see = see & (j <= i)
    if settings.window:
        see = see & ((i - j < settings.window) | (j - start[:, None, :] < settings.sinks))
    if settings.members is not None:
        sets = settings.members.cpu()
        common = (sets[:, keys - queries:, None] & sets[:, None, :]) != 0
        see = see & (common | (i - j < settings.focus_window) | (j < settings.focus_sinks))
    return see[:, None].cuda()


def gated(s, settings: Settings, gate_query, gate_key):
    """Scores by the soft gate of Focus, local pairs as they are."""
    z = (gate_query @ gate_key.transpose(-1, -2) + GATES[settings.gate][1])[:, None]
    queries, keys = z.shape[-2:]
    i = keys - queries + torch.arange(queries, device="cuda")[:, None]
    j = torch.arange(keys, device="cuda")
    start = torch.zeros_like(j)[None]
    if settings.documents is not None:
        labels = settings.documents.cuda()
        start = torch.where(torch.cat([torch.ones_like(labels[:, :1]), labels.diff(dim=1)], 1) != 0, j, 0).cummax(1).values
    local = (i - j < settings.focus_window) | (j - start < settings.focus_sinks)[:, None, None]
    other = {"log": lambda: s + torch.log(z), "logsig": lambda: s + torch.nn.functional.logsigmoid(z),
             "mul": lambda: s * torch.sigmoid(z)}[settings.gate]()
    return torch.where(local, s, other)


def formula(q, k, v, settings: Settings, tau, sink_logit, gate_query=None, gate_key=None):
    """Output and lse by tensor operations in the dtype of the operands; differentiable."""
    batch, heads, queries, width = q.shape
    keys, repeat = k.shape[2], heads // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    s = q @ k.transpose(-1, -2)
    s = s / tau[:, None, :, None] if tau is not None else s * (settings.scale or width**-0.5)
    if settings.soft_cap:
        s = settings.soft_cap * torch.tanh(s / settings.soft_cap)
    if settings.gate is not None:
        s = gated(s, settings, gate_query, gate_key)
    if settings.alibi is not None:
        i = keys - queries + torch.arange(queries, device="cuda")[:, None]
        s = s - settings.alibi.to(s.dtype)[None, :, None, None] * (i - torch.arange(keys, device="cuda")[None, :])
    s = s.masked_fill(~seen(settings, batch, queries, keys), -math.inf)
    if sink_logit is not None:
        s = torch.cat([s, sink_logit[None, :, None, None].expand(batch, heads, queries, 1)], -1)
        v = torch.cat([v, torch.zeros_like(v[:, :, :1])], 2)
    return torch.softmax(s, -1) @ v, torch.logsumexp(s.double(), -1)


def by_formula(q, k, v, settings: Settings, d_out, d_lse, dtype) -> dict[str, torch.Tensor]:
    """Results and gradients by the formula in `dtype`."""
    leaves = {"dq": q, "dk": k, "dv": v}
    if settings.tau is not None:
        leaves["dtau"] = settings.tau
    if settings.sink_logit is not None:
        leaves["dsink"] = settings.sink_logit
    if settings.gate is not None:
        leaves["dgate_query"], leaves["dgate_key"] = settings.gate_query, settings.gate_key
    leaves = {name: x.detach().to(dtype).requires_grad_() for name, x in leaves.items()}
    out, lse = formula(leaves["dq"], leaves["dk"], leaves["dv"], settings, leaves.get("dtau"), leaves.get("dsink"),
                       leaves.get("dgate_query"), leaves.get("dgate_key"))
    grads = torch.autograd.grad([out, lse], list(leaves.values()), [d_out.to(out.dtype), d_lse.to(lse.dtype)])
    return {"out": out.detach(), "lse": lse.detach(), **dict(zip(leaves, grads))}
