"""The operators of the library, with fake kernels and gradients. The schema names the operands: no list repeats them.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from functools import lru_cache
from operator import itemgetter
from pathlib import Path

import torch
from torch import _C
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

LIBRARY = Path(__file__).parent / "libfovea_kernels.so"
if not LIBRARY.is_file():
    raise ImportError(f"[fovea] expected the kernels {LIBRARY}; got no such file: run `pip install ./python`")
torch.ops.load_library(str(LIBRARY))

operator = torch.ops.fovea_kernels.attention.default
_backward = torch.ops.fovea_kernels.attention_backward.default
NAMES = [argument.name for argument in operator._schema.arguments]
_DEFAULTS = {argument.name: argument.default_value for argument in operator._schema.arguments if argument.has_default_value()}
_ALWAYS = len(NAMES) - len(_DEFAULTS)  # q, k, v and settings that each call gives
_SLOTS = [name for name in NAMES[3:] if _DEFAULTS.get(name, 0) is None]  # operands that may be absent, in a row
_END = _ALWAYS + len(_SLOTS)
_always, _others, _DEFAULT_OTHERS = itemgetter(*NAMES[:_ALWAYS]), itemgetter(*_DEFAULTS), tuple(_DEFAULTS.values())
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_DIFFERENTIABLE = [result.name[1:] for result in _backward._schema.returns]  # of dq, dk, ...
_LEARNED = _DIFFERENTIABLE[3:]
_differentiable = itemgetter(*_DIFFERENTIABLE)
# The kernels write gradients of every row of the batch, to be summed over it. That of tau is to be summed over the heads,
# and so are those of a gate, which joined pairs have no heads for.
_OF_TOKENS = {"tau", "gate_query", "gate_key"}
_JOINED = ("kernel_before", "kernel_after", "mix_before", "mix_after")
REFUSED = "the CUDA kernels lack this call"  # as python/src/operators.cpp says it


def _by_token(like, width):
    return like.new_empty(like.shape[0], like.shape[2], like.shape[1], width).transpose(1, 2)


def _fake(*inputs, **settings):
    call = _DEFAULTS | dict(zip(NAMES, inputs)) | settings
    q, rows = call["q"], call["q"].shape[:3]
    lse = q.new_empty(rows, dtype=torch.float32)
    row_sums = q.new_empty(rows if call["renormalise"] else (0,), dtype=torch.float32)
    stats = q.new_empty((*rows, 3) if call["stats"] else (0,), dtype=torch.float32)
    return _by_token(q, call["v"].shape[3]), lse, row_sums, stats


def _gradient_shape(name, call):
    x, q = call[name], call["q"]
    if name == "tau":
        return q.shape[:3]
    if name not in _OF_TOKENS:
        return q.shape[:1] + x.shape
    if any(call[of] is not None for of in _JOINED):
        return x.shape
    return (x.shape[0], q.shape[1] if name == "gate_query" else call["k"].shape[1], *x.shape[1:])


def _backward_fake(dout, dlse, out, lse, row_sums, *inputs, **settings):
    call = _DEFAULTS | dict(zip(NAMES, inputs)) | settings
    q = call["q"]
    rows = [_by_token(call[name], call[name].shape[3]) for name in "qkv"]
    learned = [
        q.new_empty((0,) if call[name] is None else _gradient_shape(name, call), dtype=torch.float32)
        for name in _LEARNED
    ]
    return *rows, *learned


def _keep(ctx, inputs, output):
    inputs = (*inputs, *_DEFAULT_OTHERS[len(inputs) - _ALWAYS :])
    tensors = inputs[:3] + inputs[_ALWAYS:_END]
    ctx.given, ctx.settings = [x is not None for x in tensors], (inputs[3:_ALWAYS], inputs[_END:])
    ctx.save_for_backward(*(x for x in tensors if x is not None), *output[:3])
    ctx.set_materialize_grads(False)


def _gradients_by_name(ctx, dout, dlse):
    *tensors, out, lse, row_sums = ctx.saved_tensors
    tensors = iter(tensors)
    q, k, v, *slots = [next(tensors) if given else None for given in ctx.given]
    first, others = ctx.settings
    dout = torch.zeros_like(out) if dout is None else dout.to(out.dtype)
    if dout.stride(-1) != 1:
        dout = dout.contiguous()
    dlse = torch.zeros_like(lse) if dlse is None else dlse.contiguous()
    results = _backward_operator(dout, dlse, out, lse, row_sums, q, k, v, *first, *slots, *others)
    grads = dict(zip(_DIFFERENTIABLE, results))
    for name, x in zip(_SLOTS, slots):
        if x is None:
            grads.pop(name, None)
        elif name in grads and grads[name].dim() > x.dim():
            grads[name] = grads[name].sum(1 if name in _OF_TOKENS else 0)
    return grads


def _gradients(ctx, dout, dlse, *_):
    grads = _gradients_by_name(ctx, dout, dlse)
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


class _Attention(torch.autograd.Function):
    """As register_autograd makes it of the operator. `leaves`: the operands with gradients, again, for autograd."""

    @staticmethod
    def forward(ctx, inputs, *leaves):
        output = _at_once(operator, inputs)
        _keep(ctx, inputs, output)
        ctx.mark_non_differentiable(*output[2:])
        return output

    @staticmethod
    def backward(ctx, dout, dlse, *_):
        grads = _gradients_by_name(ctx, dout, dlse)
        return None, *(grads.get(name) for name in _DIFFERENTIABLE)


try:  # names inside of torch, as of 2.11
    _CPU, _CUDA = (_C.DispatchKeySet(key) for key in (_C.DispatchKey.CPU, _C.DispatchKey.CUDA))
    _observers = (_C._len_torch_dispatch_stack, _C._functorch.peek_interpreter_stack, _C._autograd._profiler_enabled)
    _any_requires_grad, _ = _C._any_requires_grad, (forward_ad._current_level, operator._handle.redispatch_boxed)
except AttributeError:  # a torch without them: every call takes the dispatcher
    _observers = None


def _at_once(of, inputs):
    return of._handle.redispatch_boxed(_CPU if inputs[0].is_cpu else _CUDA, *inputs)


def _is_plain(x):
    """Whether autograd alone looks at a call: no compiler, mode, transform, profiler or subclass of Tensor does."""
    if torch.compiler.is_compiling() or _observers is None or type(x) not in _PLAIN or not (x.is_cpu or x.is_cuda):
        return False
    modes, transforms, profiles = _observers
    return not modes() and transforms() is None and not profiles() and forward_ad._current_level < 0


def _needs_gradient(inputs):
    return torch.is_grad_enabled() and _any_requires_grad(*inputs)


# Gradients that Python registers cost 0.1 ms: the dispatcher makes Python's objects of all operands, and the kernels' of
# these again. Attention of a short sequence is faster than that, so plain calls go to the kernels at once.
def attention_operator(call: dict):
    """out, lse, row_sums and stats of the operands by name."""
    if torch.compiler.is_compiling():
        return operator(*(call[name] for name in NAMES))
    inputs, others = _always(call), _others(call)
    if others != _DEFAULT_OTHERS:  # each value costs time
        inputs += others
    if not _is_plain(inputs[0]):
        return operator(*inputs)
    return _Attention.apply(inputs, *_differentiable(call)) if _needs_gradient(inputs) else _at_once(operator, inputs)


def _backward_operator(*inputs):
    if _is_plain(inputs[0]) and not _needs_gradient(inputs):
        return _at_once(_backward, inputs)
    return _backward(*inputs)


# Operands whose second axis is that of the queries, or of the keys.
_BY_QUERY = {"tau", "gate_query", "query_positions", "query_documents"}
_BY_KEY = {"gate_key", "key_positions", "key_documents", "members"}
_MANY = 256  # tokens that stand for any number
_UNREAD = {"scale": 1.0, "gate_offset": 0.0, "bias_first": 0, "dropout_layer": 0}  # the answer does not depend on these


@lru_cache(maxsize=256)
def _answer(device: int, question: tuple) -> str:
    def operand(x):
        return torch.empty(x[1:], dtype=x[0], device="meta") if isinstance(x, tuple) else x

    with _disable_current_modes():
        return torch.ops.fovea_kernels.why_not_cuda.default(device, *(operand(x) for x in question))


@torch.compiler.assume_constant_result
def _constant_answer(device: int, question: tuple) -> str:
    return _answer(device, question)


def why_not_cuda(call: dict) -> str:
    """Why the CUDA kernels of this package, or of this machine, cannot compute a call of tensors on a GPU, or ""."""
    q, k = call["q"], call["k"]
    queries = _MANY if q.shape[2] == k.shape[2] else _MANY // 2

    def described(name):
        x = call[name]
        if name in _UNREAD or x is None:
            return _UNREAD.get(name)
        if not isinstance(x, torch.Tensor):  # only whether a soft-cap or dropout acts is read; a compiler's numbers become constants
            return float(bool(x)) / 2 if name in ("soft_cap", "dropout") else bool(x) if isinstance(x, bool) else int(x)
        if x.dim() == 4:
            sizes = (1, int(x.shape[1]), queries if name == "q" else _MANY, int(x.shape[3]))
        elif name in _BY_QUERY or name in _BY_KEY:
            sizes = (1, queries if name in _BY_QUERY else _MANY, *(int(n) for n in x.shape[2:]))
        else:
            sizes = tuple(int(n) for n in x.shape)
        return (x.dtype, *sizes)

    return _constant_answer(q.device.index, tuple(described(name) for name in NAMES))
