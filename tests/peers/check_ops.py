#!/usr/bin/env python3
"""torch.ops.fovea from Python: opcheck, gradients, autograd against torch's own attention, torch.compile, refusals.

    <python of `make python-peers`> tests/peers/check_ops.py [BUILD]      default BUILD: build

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import sys

import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
good = True


def check(name: str, passed: bool, detail: str = "") -> None:
    global good
    good &= passed
    print(f"{'ok  ' if passed else 'FAIL'} {name} {detail}")


def inputs(b: int = 2, h: int = 4, g: int = 2, t: int = 40, d: int = 16, dtype: torch.dtype = torch.float32):
    def draw(heads: int) -> torch.Tensor:
        return torch.randn(b, heads, t, d).to(dtype).requires_grad_()
    return draw(h), draw(g), draw(g)


def cases():
    """Name, positional and keyword arguments of torch.ops.fovea.attention."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        yield f"plain {dtype}", inputs(dtype=dtype), {}
    yield "window, soft-cap", (*inputs(), json.dumps({"soft_cap": 5.0, "mask": {"window": 9}})), {}
    tau = (torch.rand(2, 40) + 3.0).requires_grad_()
    yield "learned temperature", inputs(), {"tau": tau}
    table = torch.randn(8, 4, requires_grad=True)
    t5 = json.dumps({"bias": {"kind": "t5", "buckets": 8, "max_distance": 16}})
    yield "t5", (*inputs(), t5), {"bias_table": table}
    yield "sink logit", inputs(), {"sink_logit": torch.randn(4, requires_grad=True)}
    groups = torch.rand(2, 40, 4).softmax(-1).requires_grad_()
    for gate in ("log", "mul", "identity"):
        focus = {"focus": {"gate": gate, "groups": 4, "window": 6, "sinks": 2}}
        yield f"groups, {gate}", (*inputs(), json.dumps(focus)), {"groups": groups}
    members = torch.tensor([[1, 2, 4, 8] * 10] * 2)
    hard = json.dumps({"focus": {"gate": "hard", "groups": 4, "top_k": 1, "window": 6, "sinks": 2}})
    yield "groups, hard", (*inputs(), hard), {"members": members}
    kernel = torch.randn(4, 3, 5, requires_grad=True)
    mix = torch.randn(1, 4, 4, requires_grad=True)
    joined = {"multi_token": {"before": {"queries": 3, "keys": 5}}, "head_mix": {"after": "full"}}
    yield "multi-token", (*inputs(), json.dumps(joined)), {"kernel_before": kernel, "mix_after": mix}
    both = json.dumps(joined | {"focus": {"gate": "log", "groups": 4, "window": 6}})
    yield "multi-token, groups", (*inputs(), both), {"kernel_before": kernel, "mix_after": mix, "groups": groups}
    yield "documents", inputs(), {"document_offsets": torch.tensor([0, 11, 40])}
    yield "no kernel for this width", inputs(d=12), {}
    with_dropout = json.dumps({"dropout": 0.3})
    yield "dropout", (*inputs(), with_dropout), {"dropout_seed": 3}
    q, k, v = inputs()
    yield "one query", (q.detach()[:, :, -1:].contiguous(), k.detach(), v.detach()), {}


def check_opcheck() -> None:
    for name, positional, keywords in cases():
        try:
            results = torch.library.opcheck(torch.ops.fovea.attention.default, positional, keywords)
            check(f"opcheck: {name}", all(x == "SUCCESS" for x in results.values()))
        except Exception as error:  # opcheck raises its findings
            check(f"opcheck: {name}", False, str(error)[:2000])


def check_against_torch() -> None:
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        q, k, v = inputs(t=300, d=64, dtype=dtype)
        out, lse = torch.ops.fovea.attention(q, k, v)
        wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
        truth = F.scaled_dot_product_attention(*wide, is_causal=True, enable_gqa=True)
        weight = torch.randn_like(truth)
        ours = [out, *torch.autograd.grad((out.double() * weight).sum(), (q, k, v))]
        theirs = [truth, *torch.autograd.grad((truth * weight).sum(), wide)]
        error = max(((a.double() - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, theirs))
        check(f"equals scaled_dot_product_attention, {dtype}", error < bound, f"{error:.1e}")


def check_gradients() -> None:
    q, k, v = inputs(b=1, t=7, d=4, dtype=torch.float64)
    tau = (torch.rand(1, 7, dtype=torch.float64) + 1.0).requires_grad_()
    check("gradcheck, out and lse", torch.autograd.gradcheck(
        lambda *x: torch.ops.fovea.attention(*x[:3], tau=x[3]), (q, k, v, tau)))
    groups = torch.rand(1, 7, 3, dtype=torch.float64).softmax(-1).requires_grad_()
    focus = json.dumps({"focus": {"gate": "log", "groups": 3, "top_k": 1, "window": 2, "sinks": 1}})
    check("gradcheck, groups", torch.autograd.gradcheck(
        lambda *x: torch.ops.fovea.attention(*x[:3], focus, groups=x[3]), (q, k, v, groups)))


def check_compile() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.ops.fovea.attention(q * 2.0, k, v)[0].sin()

    x = inputs()
    got = compiled(*x)
    truth = torch.ops.fovea.attention(x[0] * 2.0, x[1], x[2])[0].sin()
    same = torch.equal(got, truth)
    for a, b in zip(torch.autograd.grad(got.sum(), x), torch.autograd.grad(truth.sum(), x)):
        same &= torch.equal(a, b)
    check("torch.compile, forward and backward", same)


def check_refusals() -> None:
    q, k, v = (x.detach() for x in inputs())
    for name, error, words, call in (
            ("dtype", ValueError, "floating", lambda op: op(q.int(), k.int(), v.int())),
            ("shapes", ValueError, "k must be", lambda op: op(q, k[..., :8].contiguous(), v)),
            ("last axis", ValueError, "contiguous", lambda op: op(q, k.mT.contiguous().mT, v)),
            ("offsets", ValueError, "ascend", lambda op: op(q, k, v, document_offsets=torch.tensor([0, 9, 5, 40]))),
            ("unknown key", ValueError, "soft_cap", lambda op: op(q, k, v, '{"soft_cop": 1}'))):
        try:
            call(torch.ops.fovea.attention)
            check(f"refused: {name}", False, "nothing was raised")
        except error as raised:
            check(f"refused: {name}", words in str(raised), str(raised).splitlines()[0])


def main() -> int:
    build = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"
    torch.ops.load_library(build / "lib/libfovea_ops.so")
    torch.manual_seed(1)
    check_opcheck()
    check_against_torch()
    check_gradients()
    check_compile()
    check_refusals()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
