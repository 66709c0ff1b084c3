"""The operators of the library, with fake kernels and gradients. The schema names the operands: no list repeats them.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from pathlib import Path

import torch

LIBRARY = Path(__file__).parent / "libfovea_kernels.so"
if not LIBRARY.is_file():
    raise ImportError(f"[fovea] expected the kernels {LIBRARY}; got no such file: run `pip install ./python`")
torch.ops.load_library(str(LIBRARY))

operator = torch.ops.fovea_kernels.attention.default
_backward = torch.ops.fovea_kernels.attention_backward.default
NAMES = [argument.name for argument in operator._schema.arguments]
_RESULTS = [result.name for result in _backward._schema.returns]  # dq, dk, ...
_LEARNED = [name[1:] for name in _RESULTS[3:]]
# The kernels write gradients of every row of the batch, to be summed over it; that of tau over the heads. Those of
# a gate have a row for each of the batch.
_SUMMED = {"tau": 1, "gate_query": None, "gate_key": None}


def _by_token(like, width):
    return like.new_empty(like.shape[0], like.shape[2], like.shape[1], width).transpose(1, 2)


def _fake(*inputs, **settings):
    call = dict(zip(NAMES, inputs)) | settings
    q, rows = call["q"], call["q"].shape[:3]
    lse = q.new_empty(rows, dtype=torch.float32)
    row_sums = q.new_empty(rows if call["renormalise"] else (0,), dtype=torch.float32)
    stats = q.new_empty((*rows, 3) if call["stats"] else (0,), dtype=torch.float32)
    return _by_token(q, call["v"].shape[3]), lse, row_sums, stats


def _gradient_shape(name, x, q):
    if _SUMMED.get(name, 0) is None:
        return x.shape
    return q.shape[:3] if name == "tau" else q.shape[:1] + x.shape


def _backward_fake(dout, dlse, out, lse, row_sums, *inputs, **settings):
    call = dict(zip(NAMES, inputs)) | settings
    q = call["q"]
    rows = [_by_token(call[name], call[name].shape[3]) for name in "qkv"]
    learned = [
        q.new_empty((0,) if call[name] is None else _gradient_shape(name, call[name], q), dtype=torch.float32)
        for name in _LEARNED
    ]
    return *rows, *learned


def _keep(ctx, inputs, output):
    ctx.names = [name for name, x in zip(NAMES, inputs) if isinstance(x, torch.Tensor)]
    ctx.settings = {name: x for name, x in zip(NAMES, inputs) if not isinstance(x, torch.Tensor)}
    ctx.save_for_backward(*(x for x in inputs if isinstance(x, torch.Tensor)), *output[:3])
    ctx.set_materialize_grads(False)


def _gradients(ctx, dout, dlse, *_):
    *tensors, out, lse, row_sums = ctx.saved_tensors
    call = ctx.settings | dict(zip(ctx.names, tensors))
    dout = torch.zeros_like(out) if dout is None else dout.to(out.dtype)
    if dout.stride(-1) != 1:
        dout = dout.contiguous()
    dlse = torch.zeros_like(lse) if dlse is None else dlse.contiguous()
    found = dict(zip(_RESULTS, _backward(dout, dlse, out, lse, row_sums, *(call[name] for name in NAMES))))
    grads = {name: found["d" + name] for name in "qkv"}
    for name in _LEARNED:
        if call[name] is not None:
            axis, x = _SUMMED.get(name, 0), found["d" + name]
            grads[name] = x if axis is None else x.sum(axis)
    return tuple(grads.get(name) for name in NAMES)


def _refuse_twice(ctx, *grads):
    raise NotImplementedError("[fovea.attention] expected one backward pass; got a second derivative (double backward)")


def _refuse_vmap(info, in_dims, *inputs, **settings):
    raise NotImplementedError("[fovea.attention] vmap is not supported; make the mapped axis part of the batch")


for _name in ("attention", "attention_backward"):
    torch.library.register_vmap(f"fovea_kernels::{_name}", _refuse_vmap)
torch.library.register_fake("fovea_kernels::attention", _fake)
torch.library.register_fake("fovea_kernels::attention_backward", _backward_fake)
torch.library.register_autograd("fovea_kernels::attention", _gradients, setup_context=_keep)
torch.library.register_autograd("fovea_kernels::attention_backward", _refuse_twice)
