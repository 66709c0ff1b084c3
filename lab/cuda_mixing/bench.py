# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
"""Checks the kernels against a float64 reference and times them beside eager torch and scaled_dot_product_attention.
python3 bench.py [seconds [sections to skip]]: prints tables; stops starting new sections once the time is used.
Times marked "graph" are CUDA graph replays, ours and SDPA alike: without it autograd's host time hides the GPU time at small sizes."""
import sys
import time
import torch
import torch.nn.functional as F
import bindings as K

START, LIMIT = time.time(), float(sys.argv[1]) if len(sys.argv) > 1 else 120
dev = "cuda"
rows = []


def left():
    return LIMIT - (time.time() - START)


def eager(q, k, v, pre=None, post=None, mpre=None, mpost=None, doc=None):
    """The order of operations of Multi-Token Attention with T x T maps in the inputs' dtype, softmax in float32 (float64 for float64)."""
    B, H, T, D = q.shape
    i = torch.arange(T, device=q.device)
    blocked = i[None, :] > i[:, None]
    s = (q @ k.transpose(-1, -2)) * D ** -0.5

    def conv(x, w):
        cq, ck = w.shape[1:]
        x = F.pad(x, ((ck - 1) // 2, ck // 2, cq - 1, 0))
        if x.dtype == torch.float64:
            return sum(w[None, :, a, b, None, None] * x[..., a:a + T, b:b + T] for a in range(cq) for b in range(ck))
        return F.conv2d(x, w.to(x.dtype)[:, None], groups=H)

    def mix(x, w):
        return torch.einsum("oh,bhij->boij", w.to(x.dtype), x)

    if pre is not None:
        s = conv(s.masked_fill(blocked, 0), pre)
    if mpre is not None:
        s = mix(s, mpre)
    s = s.masked_fill(blocked, float("-inf"))
    w = torch.softmax(s if s.dtype == torch.float64 else s.float(), -1).to(q.dtype)
    if post is not None:
        w = conv(w.masked_fill(blocked, 0), post).masked_fill(blocked, 0)
    if mpost is not None:
        w = mix(w, mpost)
    return w @ v


def inputs(B, H, T, D, seed=0, grad_size=1e-4):
    g = torch.Generator(device=dev).manual_seed(seed)
    r = lambda *s: torch.randn(*s, device=dev, generator=g)
    q, k, v, d_o = (r(B, H, T, D).bfloat16() for _ in range(4))
    d_o = (d_o.float() * grad_size).bfloat16()
    pre, post = 0.1 * r(H, 6, 11), 0.1 * r(H, 6, 11)
    pre[:, 5, 5] += 1
    post[:, 5, 5] += 1
    eye = torch.eye(H, device=dev)
    return q, k, v, d_o, pre, post, (eye + 0.1 * r(H, H)).contiguous(), (eye + 0.1 * r(H, H)).contiguous()


def err(ref, x):
    x = x.double()
    if not torch.isfinite(x).all():
        return float("inf")
    return ((x - ref).abs().max() / ref.abs().max().clamp_min(1e-300)).item()


def grads(fn, xs, d_o):
    xs = [x.detach().requires_grad_() for x in xs]
    o = fn(*xs)
    return [o.detach()] + [g.detach() for g in torch.autograd.grad(o, xs, d_o)]


def timed(fn, reps=7):
    try:
        fn()
        torch.cuda.synchronize()
        ts = []
        for _ in range(reps):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            fn()
            b.record()
            torch.cuda.synchronize()
            ts.append(a.elapsed_time(b))
        return sorted(ts)[len(ts) // 2]
    except Exception as e:
        rows.append(f"  FAILED {type(e).__name__} {str(e)[:150]}")
        return float("nan")


def replayed(fn, reps=11):
    """Median ms of a replay of fn captured as a CUDA graph."""
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            fn()
            fn()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            fn()
        return timed(graph.replay, reps)
    except Exception as e:
        rows.append(f"  NO GRAPH {type(e).__name__} {str(e)[:120]}")
        return float("nan")


def memory(fn):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    fn()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - base) / 2 ** 20


def section(f):
    if f.__name__ in sys.argv[2:]:
        return
    if left() < 8:
        rows.append(f"skipped {f.__name__}: time used")
        return
    t = time.time()
    try:
        f()
        torch.cuda.synchronize()
    except Exception as e:
        rows.append(f"FAILED {f.__name__}: {type(e).__name__} {str(e)[:300]}")
    rows.append(f"[{f.__name__} {time.time() - t:.1f} s]")
    print("\n".join(rows), flush=True)
    rows.clear()


def judge(name, ref, ours, base, names):
    text, bad = [], False
    for n, r, x, y in zip(names, ref, ours, base):
        e, b = err(r, x), err(r, y)
        bad |= not e <= 2 * b + 1e-7
        text.append(f"{n} {e:.1e}/{b:.1e}")
    rows.append(f"{'WRONG ' if bad else 'ok    '}{name}: " + " ".join(text))


NAMES = "o dq dk dv dpre dpost".split()
BOTH_NAMES = "o dq dk dv dkpre dkpost dpre dpost".split()


def check_conv():
    rows.append("relative max errors against float64, ours/eager bf16 (rule: at most 2x)")
    for B, H, T, D, variant in [(2, 4, 333, 64, 0), (1, 2, 1024, 64, 1), (1, 2, 500, 64, 2), (2, 4, 333, 96, 0), (1, 2, 1024, 96, 1), (1, 2, 500, 96, 2), (2, 4, 700, 96, 3), (1, 2, 1024, 96, 0), (1, 2, 700, 128, 0), (1, 2, 333, 128, 1), (1, 2, 400, 64, 3), (1, 2, 400, 128, 2), (1, 2, 400, 128, 3)]:
        q, k, v, d_o, pre, post, _, _ = inputs(B, H, T, D, T + D)
        xs = (q, k, v, pre, post)
        ref = grads(eager, [x.double() for x in xs], d_o.double())
        base = grads(eager, xs, d_o)
        o, lse = K.conv_forward(*xs, variant=variant)
        again = torch.equal(o, K.conv_forward(*xs, variant=variant)[0])
        g = K.ConvGrad(*xs, d_o, lse)
        g.run(variant)
        judge(f"conv B{B} H{H} T{T} d{D} v{variant} repeat {'equal' if again else 'DIFFERS'}", ref, [o, *g.bf16()], base, NAMES)


def check_documents():  # packed documents must equal the documents one by one
    q, k, v, d_o, pre, post, mpre, mpost = inputs(1, 16, 400, 96, 5)
    cuts = [0, 37, 39, 200, 400]
    doc = torch.cat([torch.full((b - a,), a) for a, b in zip(cuts, cuts[1:])]).int().to(dev)[None].contiguous()
    xs = (q, k, v)
    for name, w in [("conv", (pre, post)), ("mix", (mpre, mpost)), ("conv+mix", (pre, post, mpre, mpost))]:
        parts = []
        for dt in (torch.float64, torch.bfloat16):
            fn = (lambda q, k, v, *w: eager(q, k, v, None, None, *w)) if name == "mix" else eager
            pieces = [grads(fn, [x[:, :, a:b].to(dt) for x in xs] + [y.double() if dt == torch.float64 else y for y in w], d_o[:, :, a:b].to(dt)) for a, b in zip(cuts, cuts[1:])]
            parts.append([torch.cat([p[n] for p in pieces], 2) for n in range(4)] + [sum(p[n].double() for p in pieces) for n in range(4, 4 + len(w))])
        if name == "conv":
            o, lse = K.conv_forward(*xs, *w, doc=doc)
            g = K.ConvGrad(*xs, *w, d_o, lse, doc)
            g.run()
        else:
            g = (K.Mix if name == "mix" else K.ConvMix)(*xs, *w, d_o, doc, rows=128)
            o = g.forward()
            g.backward()
        judge(f"{name} documents", parts[0], [o, *g.bf16()], parts[1], BOTH_NAMES if name == "conv+mix" else NAMES)


class Layer(torch.autograd.Function):
    """The whole attention layer: convolutions and mixing on both sides of the softmax."""

    @staticmethod
    def forward(ctx, q, k, v, *w):
        ctx.save_for_backward(q, k, v, *w)
        m = K.ConvMix(q, k, v, *(x.detach() for x in w), torch.zeros_like(q))
        ctx.m = m
        return m.forward()

    @staticmethod
    def backward(ctx, d_o):
        ctx.m.set_gradient(d_o.contiguous())
        ctx.m.backward()
        return ctx.m.bf16()


def check_training():  # the same small model trained through our layer, through eager bf16 and through eager float32
    B, T, D, width = 2, 300, 64, 256
    losses = {}
    for name in ("ours", "eager bf16", "eager f32"):
        g = torch.Generator(device=dev).manual_seed(1)
        r = lambda *s: torch.randn(*s, device=dev, generator=g)
        x, target = r(B, T, width), r(B, T, width)
        target[:, 1:] = x[:, :-1]  # copy the previous token
        eye = torch.eye(16, device=dev)
        ws = [r(width, 3 * 16 * D) * width ** -0.5, r(16 * D, width) * (16 * D) ** -0.5, 0.02 * r(16, 6, 11), 0.02 * r(16, 6, 11), eye + 0.02 * r(16, 16), eye + 0.02 * r(16, 16)]
        ws[2][:, 5, 5] += 1
        ws[3][:, 5, 5] += 1
        ws = [w.requires_grad_() for w in ws]
        opt = torch.optim.Adam(ws, 3e-3)
        trace = []
        for step in range(40):
            q, k, v = (x @ ws[0]).view(B, T, 3, 16, D).permute(2, 0, 3, 1, 4)
            if name != "eager f32":
                q, k, v = (y.bfloat16().contiguous() for y in (q, k, v))
            o = (Layer.apply if name == "ours" else eager)(q, k, v, *ws[2:])
            loss = F.mse_loss(o.float().permute(0, 2, 1, 3).reshape(B, T, 16 * D) @ ws[1], target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            trace.append(loss.item())
        losses[name] = trace
    rows.append("training, loss at steps 1, 10, 20, 40: " + " | ".join(f"{n} " + " ".join(f"{t[i]:.4f}" for i in (0, 9, 19, 39)) for n, t in losses.items()))


def repeated(m):
    before = [x.clone() for x in (m.dq, m.dk, m.dv)]
    m.backward()
    return " repeat equal" if all(torch.equal(x, y) for x, y in zip(before, (m.dq, m.dk, m.dv))) else " repeat DIFFERS"


def check_mix():
    for B, T, D, r in [(2, 333, 64, 128), (1, 500, 96, 192), (1, 640, 128, None), (1, 1100, 96, 512)]:
        q, k, v, d_o, _, _, mpre, mpost = inputs(B, 16, T, D, T + D)
        xs = (q, k, v, mpre, mpost)
        fn = lambda q, k, v, a, b: eager(q, k, v, None, None, a, b)
        ref = grads(fn, [x.double() for x in xs], d_o.double())
        base = grads(fn, xs, d_o)
        g = K.Mix(*xs, d_o, rows=r)
        o = g.forward()
        g.backward()
        judge(f"mix B{B} T{T} d{D}{repeated(g)}", ref, [o, *g.bf16()], base, NAMES)


def check_conv_mix():
    for B, T, D, r in [(2, 333, 64, 128), (1, 500, 96, 192), (1, 640, 128, None), (1, 1100, 96, 512)]:
        q, k, v, d_o, pre, post, mpre, mpost = inputs(B, 16, T, D, T + D)
        xs = (q, k, v, pre, post, mpre, mpost)
        ref = grads(eager, [x.double() for x in xs], d_o.double())
        base = grads(eager, xs, d_o)
        m = K.ConvMix(*xs, d_o, rows=r)
        o = m.forward()
        m.backward()
        judge(f"conv+mix B{B} T{T} d{D} rows {m.rows}{repeated(m)}", ref, [o, *m.bf16()], base, BOTH_NAMES)


def plain(q, k, v, d_o):
    fn = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    qs = [x.detach().requires_grad_() for x in (q, k, v)]

    def both():
        o = F.scaled_dot_product_attention(*qs, is_causal=True)
        torch.autograd.grad(o, qs, d_o)
    return replayed(fn), replayed(both)


SETTINGS = [(1, 2048, 96), (1, 2048, 64), (4, 2048, 96), (1, 1024, 96), (1, 4096, 96), (4, 1024, 64), (1, 4096, 64), (1, 2048, 128)]


def time_conv():
    rows.append("conv 6x11 pre and post, H=16, ms. plain = SDPA; parts: lse+out | norms+value+score; totals and plain are graph replays, parts are single launches")
    for B, T, D in SETTINGS:
        q, k, v, d_o, pre, post, _, _ = inputs(B, 16, T, D)
        pf, pfb = plain(q, k, v, d_o)
        out = K.conv_forward(q, k, v, pre, post)
        g = K.ConvGrad(q, k, v, pre, post, d_o, out[1])
        g.run()
        var = range(4)
        a = [timed(lambda: K.conv_forward(q, k, v, pre, post, variant=i, parts=1, out=out)) for i in var]
        b = [timed(lambda: K.conv_forward(q, k, v, pre, post, variant=i, parts=2, out=out)) for i in var]
        n = timed(lambda: g.run(0, 1, clear=False))
        c = [timed(lambda: g.run(i, 2, clear=False)) for i in var]
        d = [timed(lambda: g.run(i, 4, clear=False)) for i in var]
        ia, ib, ic, id_ = (min(range(len(x)), key=lambda j: x[j]) for x in (a, b, c, d))

        def fwd():
            K.conv_forward(q, k, v, pre, post, variant=ia, parts=1, out=out)
            K.conv_forward(q, k, v, pre, post, variant=ib, parts=2, out=out)

        def both():
            fwd()
            g.sums.zero_()
            g.run(0, 1, clear=False)
            g.run(ic, 2, clear=False)
            g.run(id_, 4, clear=False)
            g.bf16()
        f, fb = replayed(fwd), replayed(both)
        pairs = B * 16 * T * (T + 1) / 2
        flops_f, flops_b = pairs * (4 * D + 2 * 132), pairs * (10 * D + 6 * 132)
        fmt = lambda x: " ".join(f"{y:.3f}" for y in x)
        rows.append(f"B{B} T{T} d{D}: plain {pf:.3f} {pfb:.3f} | fwd {f:.3f} ({f / pf:.2f}x, {flops_f / f / 1e9:.0f} TF useful) fwd+bwd {fb:.3f} ({fb / pfb:.2f}x, {(flops_f + flops_b) / fb / 1e9:.0f} TF)"
                    f" | lse [{fmt(a)}] out [{fmt(b)}] norms {n:.3f} value [{fmt(c)}] score [{fmt(d)}]")
        print(rows.pop(), flush=True)


def time_mix():
    rows.append("head mixing 16x16 pre and post, ms")
    for B, T, D in SETTINGS:
        q, k, v, d_o, _, _, mpre, mpost = inputs(B, 16, T, D)
        pf, pfb = plain(q, k, v, d_o)
        res = []
        for n in (512, 1024, 2048):
            m = K.Mix(q, k, v, mpre, mpost, d_o, rows=K.slab_rows(B, T, n))

            def both():
                m.forward()
                m.backward()
                m.bf16()
            f, fb = replayed(m.forward), replayed(both)
            res.append(f"rows {m.rows} (slab {m.slab.numel() / 2**19:.0f} MiB): fwd {f:.3f} ({f / pf:.2f}x) fwd+bwd {fb:.3f} ({fb / pfb:.2f}x)")
        rows.append(f"B{B} T{T} d{D}: plain {pf:.3f} {pfb:.3f} | " + " | ".join(res))
        print(rows.pop(), flush=True)


def time_conv_mix():
    rows.append("conv and head mixing, ms")
    for B, T, D in SETTINGS:
        q, k, v, d_o, pre, post, mpre, mpost = inputs(B, 16, T, D)
        pf, pfb = plain(q, k, v, d_o)
        m = K.ConvMix(q, k, v, pre, post, mpre, mpost, d_o)

        def both():
            m.forward()
            m.backward()
            m.bf16()
        f, fb = replayed(m.forward), replayed(both)
        rows.append(f"B{B} T{T} d{D}: plain {pf:.3f} {pfb:.3f} | rows {m.rows}: fwd {f:.3f} ({f / pf:.2f}x) fwd+bwd {fb:.3f} ({fb / pfb:.2f}x)")


def run_conv(q, k, v, d_o, pre, post):
    o, lse = K.conv_forward(q, k, v, pre, post)
    g = K.ConvGrad(q, k, v, pre, post, d_o, lse)
    g.run()
    return o, *g.bf16()


def run_mix(q, k, v, d_o, a, b):
    m = K.Mix(q, k, v, a, b, d_o)
    m.forward()
    m.backward()
    return m.o, *m.bf16()


def run_both(q, k, v, d_o, *w):
    m = K.ConvMix(q, k, v, *w, d_o)
    m.forward()
    m.backward()
    return m.o, *m.bf16()


def time_eager():
    rows.append("eager bf16: fwd ms, fwd+bwd ms, peak MiB (ours: peak MiB of fwd+bwd, every buffer counted)")
    for B, T, D in [(1, 2048, 96), (1, 1024, 96), (1, 4096, 96)]:
        if left() < 15:
            rows.append("skipped the rest of eager")
            break
        q, k, v, d_o, pre, post, mpre, mpost = inputs(B, 16, T, D)
        for name, ws, fn, ours in [("conv", (pre, post), lambda q, k, v, a, b: eager(q, k, v, a, b), run_conv), ("mix", (mpre, mpost), lambda q, k, v, a, b: eager(q, k, v, None, None, a, b), run_mix), ("conv+mix", (pre, post, mpre, mpost), eager, run_both)]:
            with torch.no_grad():
                f = timed(lambda: fn(q, k, v, *ws), 3)
            mine = timed(lambda: ours(q, k, v, d_o, *ws), 7)
            fb = timed(lambda: grads(fn, (q, k, v, *ws), d_o), 2)
            mem = memory(lambda: grads(fn, (q, k, v, *ws), d_o))
            rows.append(f"{name} B{B} T{T} d{D}: eager fwd {f:.2f} fwd+bwd {fb:.2f} peak {mem:.0f} | ours fwd+bwd {mine:.2f} (launched from Python, buffers allocated anew) peak {memory(lambda: ours(q, k, v, d_o, *ws)):.0f}")
            print(rows.pop(), flush=True)
            torch.cuda.empty_cache()


def time_compiled():
    B, T, D = 1, 2048, 96
    q, k, v, d_o, pre, post, mpre, mpost = inputs(B, 16, T, D)
    for name, ws, fn in [("conv", (pre, post), lambda q, k, v, a, b: eager(q, k, v, a, b)), ("mix", (mpre, mpost), lambda q, k, v, a, b: eager(q, k, v, None, None, a, b))]:
        if left() < 25:
            rows.append(f"skipped compiled {name}")
            continue
        comp = torch.compile(fn, dynamic=False)
        fb = timed(lambda: grads(comp, (q, k, v, *ws), d_o), 3)
        mem = memory(lambda: grads(comp, (q, k, v, *ws), d_o))
        rows.append(f"{name} B{B} T{T} d{D}: torch.compile fwd+bwd {fb:.2f} peak {mem:.0f}")


print(torch.cuda.get_device_name(), torch.__version__, flush=True)
for f in (check_conv, check_mix, check_conv_mix, check_documents, check_training, time_conv, time_mix, time_conv_mix, time_eager, time_compiled):
    section(f)
print(f"total {time.time() - START:.0f} s")
