# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
"""ctypes bindings of libmixing.so for torch tensors. q, k, v, o: bf16 [B, H, T, D] views, last axis contiguous."""
import ctypes as c
import os
import torch

lib = c.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "libmixing.so"))
P = c.c_void_p


class Strides(c.Structure):
    _fields_ = [("b", c.c_int64), ("h", c.c_int64), ("t", c.c_int64)]


class Taps(c.Structure):
    _fields_ = [("data", P), ("cq", c.c_int), ("ck", c.c_int)]


class ConvForward(c.Structure):
    _fields_ = ([(n, P) for n in "q k v o lse".split()] + [(n, Strides) for n in "sq sk sv so".split()]
                + [("pre", Taps), ("post", Taps), ("doc", P), ("H", c.c_int), ("Hkv", c.c_int), ("T", c.c_int), ("scale", c.c_float)])


class ConvBackward(c.Structure):
    _fields_ = ([(n, P) for n in "q k v d_o lse delta norms dq dk dv d_pre d_post".split()]
                + [(n, Strides) for n in "sq sk sv so sdq".split()]
                + [("pre", Taps), ("post", Taps), ("doc", P), ("H", c.c_int), ("Hkv", c.c_int), ("T", c.c_int), ("scale", c.c_float)])


class Operand(c.Structure):
    _fields_ = [("p", P), ("s", Strides), ("rep", c.c_int)]


class MixTensors(c.Structure):
    _fields_ = ([(n, Operand) for n in "q k v d_o".split()] + [("o", P), ("dq", P), ("so", Strides), ("sdq", Strides), ("dk", P), ("dv", P)])


class MixProblem(c.Structure):
    _fields_ = [("pre", P), ("post", P), ("lse", P), ("doc", P), ("B", c.c_int), ("T", c.c_int), ("scale", c.c_float), ("exponent", P), ("d_pre", P), ("d_post", P)]


def strides(x):
    assert x.stride(3) == 1
    return Strides(x.stride(0), x.stride(1), x.stride(2))


def taps(x):  # [H, cq, ck] float32 contiguous
    return Taps(x.data_ptr(), x.shape[1], x.shape[2])


def stream():
    return P(torch.cuda.current_stream().cuda_stream)


def check(e):
    if e:
        raise RuntimeError(f"launch failed: error {e}")


def ptr(x):
    return None if x is None else x.data_ptr()


def conv_forward(q, k, v, pre, post, doc=None, variant=0, parts=3, out=None):
    B, H, T, D = q.shape
    o, lse = out if out else (torch.empty_like(q), torch.empty(B, H, T, device=q.device))
    p = ConvForward(ptr(q), ptr(k), ptr(v), ptr(o), ptr(lse), strides(q), strides(k), strides(v), strides(o), taps(pre), taps(post), ptr(doc), H, k.shape[1], T, D ** -0.5)
    check(getattr(lib, f"conv_forward_{D}")(c.byref(p), B, variant, parts, stream()))
    return o, lse


class ConvGrad:
    """Workspace and results of the backward; run(parts) launches row norms (1), value kernel (2), score kernel (4)."""

    def __init__(self, q, k, v, pre, post, d_o, lse, doc=None):
        B, H, T, D = q.shape
        f = dict(device=q.device, dtype=torch.float32)
        self.B, self.D, self.keep = B, D, (q, k, v, pre, post, d_o, lse, doc)
        self.delta, self.norms = torch.empty(B, H, T, **f), torch.empty(B * H * 2, **f)
        self.dq = torch.empty_like(q)
        self.sums = torch.zeros(2 * k.numel() + pre.numel() + post.numel(), **f)
        self.dk, self.dv, self.d_pre, self.d_post = (x.view(s) for x, s in zip(
            self.sums.split([k.numel(), k.numel(), pre.numel(), post.numel()]), [(B, k.shape[1], T, D)] * 2 + [pre.shape, post.shape]))
        self.p = ConvBackward(ptr(q), ptr(k), ptr(v), ptr(d_o), ptr(lse), ptr(self.delta), ptr(self.norms), ptr(self.dq), ptr(self.dk), ptr(self.dv), ptr(self.d_pre), ptr(self.d_post),
                              strides(q), strides(k), strides(v), strides(d_o), strides(self.dq), taps(pre), taps(post), ptr(doc), H, k.shape[1], T, D ** -0.5)

    def run(self, variant=0, parts=7, clear=True):
        if clear:
            self.sums.zero_()
        check(getattr(lib, f"conv_backward_{self.D}")(c.byref(self.p), P(self.norms.data_ptr()), self.B, variant, parts, stream()))

    def bf16(self):
        return self.dq, self.dk.bfloat16(), self.dv.bfloat16(), self.d_pre, self.d_post


def slab_rows(B, T, total=1024):
    """Rows of a slab: about `total` rows over the batch, so that every multiprocessor has work."""
    return max(64, min((T + 63) // 64 * 64, total // B // 64 * 64))


class Mix:
    """Head mixing."""

    def __init__(self, q, k, v, pre, post, d_o=None, doc=None, rows=None):
        B, H, T, D = q.shape
        assert H == 16
        f = dict(device=q.device, dtype=torch.float32)
        self.D, self.T, self.Hkv, self.keep = D, T, k.shape[1], (q, k, v, pre, post, d_o, doc)
        pitch = (T + 127) // 128 * 128
        self.rows = rows or slab_rows(B, T)
        self.slab = torch.empty(B * self.rows * 16 * pitch, device=q.device, dtype=torch.bfloat16)
        self.o, self.lse = torch.empty_like(q), torch.empty(B, H, T, **f)
        rep = H // self.Hkv
        if d_o is not None:
            self.slab_g = torch.empty_like(self.slab)
            self.dq = torch.empty_like(q)
            self.norms, self.exponent = torch.empty(B * H * 2, **f), torch.empty(B * H * 2, **f)
            self.sums = torch.zeros(2 * k.numel() + 512, **f)
            self.dk, self.dv, self.d_pre, self.d_post = (x.view(s) for x, s in zip(self.sums.split([k.numel(), k.numel(), 256, 256]), [(B, self.Hkv, T, D)] * 2 + [(16, 16)] * 2))
        g = d_o is not None
        self.m = MixTensors(Operand(ptr(q), strides(q), 1), Operand(ptr(k), strides(k), rep), Operand(ptr(v), strides(v), rep), Operand(ptr(d_o), strides(d_o if g else q), 1),
                            ptr(self.o), ptr(self.dq) if g else None, strides(self.o), strides(self.dq if g else q), ptr(self.dk) if g else None, ptr(self.dv) if g else None)
        self.p = MixProblem(ptr(pre), ptr(post), ptr(self.lse), ptr(doc), B, T, D ** -0.5, ptr(self.exponent) if g else None, ptr(self.d_pre) if g else None, ptr(self.d_post) if g else None)

    def set_gradient(self, d_o):
        self.m.d_o, self.grad = Operand(ptr(d_o), strides(d_o), 1), d_o

    def forward(self):
        check(lib.mix_forward(self.D, c.byref(self.m), c.byref(self.p), P(self.slab.data_ptr()), self.rows, stream()))
        return self.o

    def backward(self):
        self.sums.zero_()
        check(lib.mix_backward(self.D, c.byref(self.m), c.byref(self.p), P(self.slab.data_ptr()), P(self.slab_g.data_ptr()), self.rows, P(self.norms.data_ptr()), P(self.exponent.data_ptr()), self.Hkv, stream()))

    def bf16(self):
        return self.dq, self.dk.bfloat16(), self.dv.bfloat16(), self.d_pre, self.d_post


class ConvMixSlabs(c.Structure):
    _fields_ = [(n, P) for n in "s w y g".split()]


class ConvMix(Mix):
    """Convolutions and head mixing: more slabs, and 8 lead rows in the first. d_taps_pre, d_taps_post: gradients of the convolutions."""

    def __init__(self, q, k, v, taps_pre, taps_post, pre, post, d_o=None, doc=None, rows=None):
        B, T = q.shape[0], q.shape[2]
        super().__init__(q, k, v, pre, post, d_o, doc, rows or slab_rows(B, T))
        pitch = (T + 127) // 128 * 128
        new = lambda n: torch.empty(B * n * 16 * pitch, device=q.device, dtype=torch.bfloat16)
        self.back_rows = max(128, self.rows)
        self.slab, self.slab2 = new(self.back_rows + 8), new(self.back_rows)
        self.taps, self.keep2 = (taps(taps_pre), taps(taps_post)), (taps_pre, taps_post)
        if d_o is not None:
            self.slab_g, self.slab3 = new(self.back_rows), new(self.back_rows)
            self.d_taps = torch.zeros(taps_pre.numel() + taps_post.numel(), device=q.device)
            self.d_taps_pre, self.d_taps_post = (x.view(t.shape) for x, t in zip(self.d_taps.split([taps_pre.numel(), taps_post.numel()]), self.keep2))
            self.slabs = ConvMixSlabs(*(x.data_ptr() for x in (self.slab, self.slab2, self.slab3, self.slab_g)))

    def forward(self):
        check(lib.conv_mix_forward(self.D, c.byref(self.m), c.byref(self.p), c.byref(self.taps[0]), c.byref(self.taps[1]), P(self.slab.data_ptr()), P(self.slab2.data_ptr()), self.rows, stream()))
        return self.o

    def backward(self):
        self.sums.zero_()
        self.d_taps.zero_()
        check(lib.conv_mix_backward(self.D, c.byref(self.m), c.byref(self.p), c.byref(self.taps[0]), c.byref(self.taps[1]), P(self.d_taps_pre.data_ptr()), P(self.d_taps_post.data_ptr()), c.byref(self.slabs),
                                    self.back_rows, P(self.norms.data_ptr()), P(self.exponent.data_ptr()), self.Hkv, stream()))

    def bf16(self):
        return self.dq, self.dk.bfloat16(), self.dv.bfloat16(), self.d_taps_pre, self.d_taps_post, self.d_pre, self.d_post
