#!/usr/bin/env python3
"""The CUDA kernels on a GPU: right against float64, then timed beside torch's attention and compiled FlexAttention.

    benchmarks/gpu.py LIBRARY [--parts check,mixing,small,plain,settings,focus,flex] [--seconds 200] [--output FILE]

LIBRARY is libfovea_gpu_bench.so (scripts/gpu-check.sh builds it). bfloat16, batch 1, times in ms: medians of CUDA events,
of replays of a CUDA graph for mixed attention and its peers.
A row's ratio is peer / ours in time: above 1, ours is faster. Work beyond --seconds is left out and named. --output gets
{"rows": [{"name", "ours", "peer_name", "peer", "ratio", "goal", "met"}], ...}. Exits 1 if a number is wrong.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import datetime
import json
import math
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
from gpu_kernels import Attention, Library, Settings, by_formula
from gpu_mixing import check_mixing, time_mixing
from torch.nn.attention import SDPBackend, sdpa_kernel
from train_step import commit

START = time.monotonic()
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
PLAIN = [(heads, length, width) for heads, width in ((16, 128), (32, 64)) for length in (2048, 8192, 16384)]
GOAL = {"plain": 0.97, "settings": 1.5, "cost": 1 / 1.15, "gate": 1 / 1.3}
FOCUS = {4096: 1.3, 16384: 3.5, 65536: 6.0}  # length: forward against the best dense attention
SETTINGS_AT = (16, 8192, 128)


class Report:
    def __init__(self, seconds: float):
        self.seconds, self.rows, self.wrong, self.left_out = seconds, [], [], []

    def row(self, name, ours, peer_name, peer, goal):
        ratio = peer / ours
        self.rows.append({"name": name, "ours": ours, "peer_name": peer_name, "peer": peer, "ratio": round(ratio, 3),
                          "goal": round(goal, 3), "met": ratio >= goal})
        print(f"[gpu] {name}: {ours:.3f} ms, {peer_name} {peer:.3f} ms, ratio {ratio:.2f} (goal {goal:.2f})", flush=True)

    def judge(self, what, errors, same_bits) -> None:
        """errors: {name: (ours, the other form's)}: no result may be further off than twice the other's (and 1e-3)."""
        bad = [key for key, (ours, other) in errors.items() if not ours <= max(2 * other, 1e-3)]
        if not same_bits:
            bad.append("other bits in a second run")
        if bad:
            self.wrong.append(f"{what}: {', '.join(bad)}")
        print(f"[gpu] {'WRONG' if bad else 'ok   '} {what:52s} " + " ".join(f"{k} {a:.1e}/{b:.1e}" for k, (a, b) in errors.items()),
              flush=True)

    def time_left(self, what: str) -> bool:
        if time.monotonic() - START < self.seconds:
            return True
        self.left_out.append(what)
        return False


def median_ms(run, budget_ms: float = 60.0) -> float:
    run(), run()
    torch.cuda.synchronize()

    def timed(n):
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(n)]
        for a, b in events:
            a.record(), run(), b.record()
        torch.cuda.synchronize()
        return sorted(a.elapsed_time(b) for a, b in events)

    once = timed(1)[0]
    n = max(5, min(40, int(budget_ms / max(once, 1e-3))))
    return timed(n)[n // 2]


def operands(batch, heads, kv_heads, queries, keys, width):
    def normal(h, t):
        return torch.randn(batch, h, t, width, device="cuda").to(torch.bfloat16)

    return normal(heads, queries), normal(kv_heads, keys), normal(kv_heads, keys), normal(heads, queries)


def tau_of(batch, queries, width):
    return math.sqrt(width) * (0.5 + 0.5 * torch.rand(batch, queries, device="cuda"))


def slopes_of(heads):
    return torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)], device="cuda")


def labels_of(batch, keys, documents):
    cuts = torch.stack([torch.randperm(keys - 1)[:documents - 1].sort().values + 1 for _ in range(batch)])
    return (torch.arange(keys)[None, :, None] >= cuts[:, None, :]).sum(-1)


def settings_of(batch, heads, queries, keys, width):
    """One of each, and all together."""
    tau, sink = tau_of(batch, queries, width), torch.randn(heads, device="cuda")
    yield "full", Settings(causal=False)
    yield "causal", Settings()
    yield "sink logit", Settings(sink_logit=sink)
    yield "temperature", Settings(tau=tau)
    yield "soft-cap", Settings(soft_cap=2.0)
    yield "alibi", Settings(alibi=slopes_of(heads))
    yield "window 200, 4 sinks", Settings(window=200, sinks=4)
    yield "documents", Settings(documents=labels_of(batch, keys, 5))
    for gate in ("log", "logsig", "mul"):
        yield f"soft Focus {gate}", soft_focus(batch, queries, keys, gate)
        yield f"soft Focus {gate} and others", soft_focus(batch, queries, keys, gate, tau=tau, alibi=slopes_of(heads), window=300,
                                                          sinks=4, sink_logit=sink, documents=labels_of(batch, keys, 2))
    yield "everything", Settings(tau=tau, soft_cap=2.0, alibi=slopes_of(heads), window=200, sinks=4, sink_logit=sink,
                                 documents=labels_of(batch, keys, 5))


def soft_focus(batch, queries, keys, gate, **rest):
    """Random groups, K = 8, w = 128; the queries are the last keys."""
    groups = torch.softmax(2 * torch.randn(batch, keys, 8, device="cuda"), -1)
    rows = groups[:, keys - queries:] * (1.0 if gate == "log" else 10.0)
    return Settings(gate=gate, gate_query=rows.contiguous(), gate_key=groups, **rest)


def members_of(batch, keys, groups, together):
    """Random memberships in `together` of the groups."""
    chosen = torch.rand(batch, keys, groups, device="cuda").topk(together, dim=-1).indices
    return (torch.ones_like(chosen) << chosen).sum(-1)


def focus_settings_of(batch, keys):
    for together in (1, 2):
        yield f"hard Focus top-{together}", Settings(members=members_of(batch, keys, 8, together), most_groups=together)


def error(got, truth) -> float:
    hidden = torch.isinf(truth)  # lse of empty rows
    if not torch.equal(got[hidden].double(), truth[hidden].double()):
        return math.inf
    difference = (got.double() - truth.double())[~hidden].norm() / truth[~hidden].double().norm().clamp_min(1e-30)
    return difference.item() if math.isfinite(difference.item()) else math.inf


def check_one(library, report, name, settings, batch, heads, kv_heads, queries, keys, width):
    """No result is further from the truth than twice the formula in bfloat16 is (and 1e-3)."""
    q, k, v, d_out = operands(batch, heads, kv_heads, queries, keys, width)
    d_lse = torch.randn(batch, heads, queries, device="cuda")
    call = Attention(library, q, k, v, settings, d_out, d_lse)
    call.forward(), call.backward()
    first = call.out.clone()
    call.forward()
    torch.cuda.synchronize()
    truth = by_formula(q, k, v, settings, d_out, d_lse, torch.float64)
    eager = by_formula(q, k, v, settings, d_out, d_lse, torch.bfloat16)
    got = {"out": call.out, "lse": call.lse, "dq": call.dq, "dk": call.dk, "dv": call.dv}
    if call.dtau is not None:
        got["dtau"] = call.dtau.sum(1)
    if call.dsink is not None:
        got["dsink"] = call.dsink.sum(0)
    if call.dgate_query is not None:
        got |= {"dgate_query": call.dgate_query.sum(1), "dgate_key": call.dgate_key.sum(1)}
    errors = {key: (error(x, truth[key]), error(eager[key], truth[key])) for key, x in got.items()}
    report.judge(f"{name}, {batch}x{heads}/{kv_heads} {queries}x{keys} d{width}", errors, torch.equal(first, call.out))


def check(library, report):
    torch.manual_seed(0)
    print("[gpu] errors: ours / the formula in bfloat16", flush=True)
    cases = []
    for batch, heads, kv_heads, keys, width in ((2, 4, 2, 1000, 128), (2, 4, 4, 777, 64)):
        cases += [(name, s, batch, heads, kv_heads, keys, keys, width)
                  for name, s in (*settings_of(batch, heads, keys, keys, width), *focus_settings_of(batch, keys))]
    for queries, keys in ((1, 500), (130, 1030), (1, 1), (257, 257)):
        cases += [(name, s, 1, 2, 1, queries, keys, 128) for name, s in (("full", Settings(causal=False)), ("causal", Settings()))]
    for case in cases:
        try:
            check_one(library, report, *case)
        except Exception as failure:  # one wrong form must not hide the others
            report.wrong.append(f"{case[0]}: {failure}")
            print(f"[gpu] WRONG {case[0]}: {str(failure)[:200]}", flush=True)
            if "CUDA error" in str(failure):
                raise


def small(library, report):
    """For compute-sanitizer: one short text of every form."""
    for width in (64, 128):
        for name, one in (*settings_of(1, 2, 200, 200, width), *focus_settings_of(1, 200)):
            check_one(library, report, name, one, 1, 2, 1, 200, 200, width)
    check_mixing(library, report, small=True)


def mixing(library, report):
    check_mixing(library, report)
    for settings in ((1024, 96), (2048, 96), (4096, 96), (2048, 64), (2048, 128)):
        if report.time_left(f"mixed attention T = {settings[0]}, d = {settings[1]}"):
            time_mixing(library, report, *settings)


def ours_ms(library, tensors, settings):
    q, k, v, d_out = tensors
    call = Attention(library, q, k, v, settings, d_out)
    return {"forward": median_ms(call.forward), "backward": median_ms(call.backward)}


def peer_ms(run, tensors):
    q, k, v, d_out = tensors
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with torch.no_grad():
        forward = median_ms(lambda: run(q, k, v))
    out = run(*leaves)
    return {"forward": forward, "backward": median_ms(lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True))}


def best_dense(tensors):
    """The best of torch's backends, pass by pass: {pass: (ms, backend)}."""
    peers = {}
    for backend, kind in BACKENDS.items():
        try:
            with sdpa_kernel([kind]):
                peers[backend] = peer_ms(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), tensors)
        except RuntimeError as failure:
            print(f"[gpu] no {backend}: {str(failure)[:100]}", flush=True)
    return {way: min((ms[way], backend) for backend, ms in peers.items()) for way in ("forward", "backward")}


def plain(library, report):
    """The best of torch's backends is the peer, pass by pass."""
    for heads, length, width in PLAIN:
        name = f"plain causal d = {width}, T = {length}"
        if not report.time_left(name):
            continue
        tensors = operands(1, heads, heads, length, length, width)
        ours = ours_ms(library, tensors, Settings())
        for way, (ms, backend) in best_dense(tensors).items():
            report.row(f"{name}, {way}", ours[way], f"SDPA {backend}", ms, GOAL["plain"])


def timed_settings(heads, length, width):
    labels = (torch.arange(length) * 8 // length)[None]
    yield "temperature", Settings(tau=tau_of(1, length, width))
    yield "soft-cap 30", Settings(soft_cap=30.0)
    yield "alibi", Settings(alibi=slopes_of(heads))
    yield "window 1024, 4 sinks", Settings(window=1024, sinks=4)
    yield "8 documents", Settings(documents=labels)
    for gate in ("log", "logsig", "mul"):
        yield f"soft Focus {gate}, K = 8", soft_focus(1, length, length, gate)


def settings(library, report):
    """What a setting costs over the plain kernel."""
    heads, length, width = SETTINGS_AT
    tensors = operands(1, heads, heads, length, length, width)
    base = ours_ms(library, tensors, Settings())
    for name, one in timed_settings(heads, length, width):
        if not report.time_left(name):
            continue
        for way, ms in ours_ms(library, tensors, one).items():
            report.row(f"{name}, {way}, cost over plain", ms, "own plain", base[way], GOAL["gate" if one.gate else "cost"])


def focus(library, report):
    """K = 8, top-1, w = 128, random memberships; the plan is part of each call."""
    for length, goal in FOCUS.items():
        name = f"hard Focus K = 8, top-1, d = 128, T = {length}"
        if not report.time_left(name):
            continue
        tensors = operands(1, 16, 16, length, length, 128)
        ours = ours_ms(library, tensors, Settings(members=members_of(1, length, 8, 1)))
        for way, (ms, backend) in best_dense(tensors).items():
            report.row(f"{name}, {way}", ours[way], f"SDPA {backend}", ms, goal if way == "forward" else 0.8 * goal)


def flex(library, report):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    heads, length, width = SETTINGS_AT
    tensors = operands(1, heads, heads, length, length, width)
    for name, one in timed_settings(heads, length, width):
        if one.gate is not None or not report.time_left(f"{name} against FlexAttention"):
            continue
        tau, slopes = one.tau, one.alibi
        labels = one.documents[0].cuda() if one.documents is not None else None
        score, passes = None, ("forward", "backward")
        if tau is not None:  # FlexAttention's gradient of a captured tensor is another product: forward alone
            score, passes = (lambda s, b, h, i, j: s * (math.sqrt(width) / tau[b, i])), ("forward",)
        if one.soft_cap:
            score = lambda s, b, h, i, j: one.soft_cap * torch.tanh(s / one.soft_cap)  # noqa: B023
        if slopes is not None:
            score = lambda s, b, h, i, j: s + slopes[h] * (j - i)  # noqa: B023

        def mask(b, h, i, j):
            see = j <= i
            if one.window:
                see = see & ((i - j < one.window) | (j < one.sinks))  # noqa: B023
            return see & (labels[i] == labels[j]) if labels is not None else see  # noqa: B023

        torch._dynamo.reset()
        compiled = torch.compile(flex_attention, dynamic=False)
        block = create_block_mask(mask, None, None, length, length, device="cuda")
        run = lambda q, k, v: compiled(q, k, v, score_mod=score, block_mask=block)  # noqa: B023
        try:
            if passes == ("forward",):
                with torch.no_grad():
                    peer = {"forward": median_ms(lambda: run(*tensors[:3]))}
            else:
                peer = peer_ms(run, tensors)
        except Exception as failure:
            print(f"[gpu] FlexAttention, {name}: {str(failure)[:150]}", flush=True)
            continue
        ours = ours_ms(library, tensors, one)
        for way in passes:
            report.row(f"{name}, {way}", ours[way], "FlexAttention", peer[way], GOAL["settings"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--parts", default="check,mixing,plain,settings,focus,flex")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    library, report = Library(options.library), Report(options.seconds)
    print(f"[gpu] {torch.cuda.get_device_name()}, torch {torch.__version__}, kernels {library.isa()}", flush=True)
    parts = {"check": check, "mixing": mixing, "small": small, "plain": plain, "settings": settings, "focus": focus, "flex": flex}
    for part in options.parts.split(","):
        if not report.time_left(part):
            continue
        try:
            parts[part](library, report)
        except Exception as failure:
            report.wrong.append(f"{part} ended: {failure}")
            print(f"[gpu] {part} ended: {str(failure)[:300]}", flush=True)
        torch.cuda.empty_cache()
    if options.output:
        options.output.write_text(json.dumps({
            "benchmark": "gpu", "ratio": "times, peer / ours, above 1 ours is faster",
            "commit": commit(), "date": datetime.date.today().isoformat(), "gpu": torch.cuda.get_device_name(),
            "machine": {"kind": torch.cuda.get_device_name().split()[1].lower()},
            "torch": torch.__version__, "kernels": library.isa(), "command": " ".join(sys.argv), "rows": report.rows,
            "wrong": report.wrong, "left_out": report.left_out}, indent=1) + "\n")
    for name in report.left_out:
        print(f"[gpu] left out, no time: {name}")
    for line in report.wrong:
        print(f"[gpu] WRONG {line}")
    met = sum(row["met"] for row in report.rows)
    print(f"[gpu] {len(report.wrong)} wrong; {met} of {len(report.rows)} goals met; {time.monotonic() - START:.0f} s")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
