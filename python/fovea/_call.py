"""A call of `fovea.attention` as the operands of its operator, checked.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

from typing import Callable, Optional, Union

import torch
from torch import Tensor

from ._operator import why_not_cuda
from ._settings import (Alibi, Blocks, DistanceBias, Documents, Dropout, Fixed, Focus, HeadMix, MultiToken, Sparsity, Strided,
                        alibi_slopes)

GATES = {"log": 1, "identity": 1, "straight_through": 2, "logsig": 3, "mul": 4}  # forms of the operator
MOST_WIDTH, MOST_KERNEL, MOST_MIX, MOST_COLUMNS = 256, (8, 15), 32, 65  # of the kernels


def expect(holds: bool, text: Callable[[], str]) -> None:
    if not holds:  # the text is made for errors alone: it costs more than the check
        raise ValueError(f"[fovea.attention] {text()}")


def check_rows(q: Tensor, k: Tensor, v: Tensor, maps: int = 1) -> None:
    """`maps`: heads of k for one of v."""
    of_q, of_k, of_v = q.shape, k.shape, v.shape

    def shapes() -> str:
        return f"got q {tuple(of_q)}, k {tuple(of_k)}, v {tuple(of_v)}"

    if not (len(of_q) == len(of_k) == len(of_v) == 4):
        expect(False, lambda: f"expected q, k and v of shape [b, heads, tokens, width]; {shapes()}")
    (b, h, _, d), (b_of_k, g, s, d_of_k), (b_of_v, g_of_v, s_of_v, _) = of_q, of_k, of_v
    if not (b_of_k == b_of_v == b and g == maps * g_of_v and s == s_of_v and d == d_of_k):
        expect(False, lambda: f"expected q [b, h, t, d], k [b, {'g' if maps == 1 else '2g'}, s, d] and v [b, g, s, e]; {shapes()}")
    if not (g > 0 and h % g == 0):
        expect(False, lambda: f"expected heads of q that are a multiple of those of k; {shapes()}")
    if not (q.dtype == k.dtype == v.dtype):
        expect(False, lambda: f"expected one dtype; got {q.dtype}, {k.dtype} and {v.dtype}")
    if not (q.device == k.device == v.device):
        expect(False, lambda: f"expected one device; got {q.device}, {k.device} and {v.device}")
    if not q.is_floating_point():
        expect(False, lambda: f"expected floating-point numbers; got {q.dtype}")


def wide_type(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _places(x: Tensor, name: str, batch: int, tokens: int) -> Tensor:
    x = x[None] if x.dim() == 1 else x
    expect(x.dim() == 2 and x.shape[0] in (1, batch) and x.shape[1] == tokens and not x.is_floating_point(),
           lambda: f"expected {name} as integers [{batch} or 1, {tokens}]; got {x.dtype} {tuple(x.shape)}")
    return x.long().contiguous()


def _tau(temperature: Union[float, Tensor], scale: float, q: Tensor):
    """The scale of all logits, and tau [b, t] where the temperature is a tensor: logits are q.k / tau."""
    if not isinstance(temperature, Tensor):
        expect(temperature > 0, lambda: f"expected a temperature above 0; got {temperature}")
        return scale / temperature, None
    rows = (q.shape[0], q.shape[2])
    expect(temperature.dim() <= 2, lambda: f"expected a temperature that broadcasts to [b, t]; got {tuple(temperature.shape)}")
    return scale, (temperature.to(wide_type(q)) / scale).expand(rows).contiguous()


def _kernel(x: Optional[Tensor], name: str, heads: int) -> None:
    expect(x is None or (x.dim() == 3 and x.shape[0] == heads and x.shape[1] > 0 and x.shape[2] > 0),
           lambda: f"expected {name} [{heads}, queries, keys]; got {tuple(x.shape)}")


def _mix(x: Optional[Tensor], name: str, heads: int) -> None:
    expect(x is None or (x.dim() == 3 and x.shape[1] == x.shape[2] and x.shape[0] * x.shape[1] == heads),
           lambda: f"expected {name} [{heads} / width, width, width]; got {tuple(x.shape)}")


def _shares_and_bits(focus: Focus, q: Tensor, keys: int) -> None:
    x, members = focus.assignment, focus.members
    expect(focus.gate == "hard" or focus.gate in GATES,
           lambda: f"expected a gate of {', '.join([*GATES, 'hard'])}; got {focus.gate!r}")
    expect(focus.gate == "hard" or (x is not None and x.dim() == 3 and x.shape[:2] == (q.shape[0], keys)),
           lambda: f"expected focus.assignment [{q.shape[0]}, {keys}, groups]; got {None if x is None else tuple(x.shape)}")
    expect(focus.gate not in ("hard", "straight_through")
           or (members is not None and members.shape == (q.shape[0], keys) and members.dtype == torch.int64),
           lambda: f"expected focus.members [{q.shape[0]}, {keys}], int64; got "
           f"{None if members is None else (members.dtype, tuple(members.shape))}")
    expect(q.shape[2] <= keys, lambda: "expected queries that are the last of the keys, under Focus")
    expect(focus.window >= 1 and focus.sinks >= 0, lambda: f"expected focus.window of at least 1 and focus.sinks of at "
           f"least 0; got {focus.window} and {focus.sinks}")


def _gate(focus: Focus, queries: int, wide: torch.dtype) -> dict:
    """The factors of the gate (fovea/kernels/common/pair_gate.h): z_ij = query_i.key_j + offset."""
    g = focus.assignment.to(wide)
    rows = g[:, g.shape[1] - queries :]
    strength, learned = focus.strength, isinstance(focus.strength, Tensor)
    strength = strength.to(wide).reshape(()) if learned else strength
    if focus.gate == "straight_through":  # the value counts shared groups; the gradient is that of the agreement
        bits = torch.arange(g.shape[2], device=g.device)
        hard, fixed = ((focus.members[..., None] >> bits) & 1).to(wide), g.detach()
        rows = torch.cat([hard, g - fixed, fixed], -1)
        return {"gate": 2, "gate_offset": focus.epsilon, "gate_query": rows[:, g.shape[1] - queries :].contiguous(),
                "gate_key": torch.cat([hard, fixed, g - fixed], -1)}
    offset, has_column = {"log": focus.epsilon, "identity": focus.epsilon}.get(focus.gate, 0.0), False
    if focus.gate == "identity":
        rows = rows * g.shape[2]
    elif focus.gate in ("mul", "logsig"):
        rows = rows * strength
        if focus.gate == "logsig" and learned:
            has_column = True
            rows = torch.cat([rows, (strength * -focus.threshold).expand(*rows.shape[:2], 1)], -1)
            g = torch.cat([g, torch.ones_like(g[..., :1])], -1)
        elif focus.gate == "logsig":
            offset = -strength * focus.threshold
    return {"gate": GATES[focus.gate], "gate_offset": offset, "gate_learned": has_column,
            "gate_query": rows.contiguous(), "gate_key": g.contiguous()}


def most_groups(members: Tensor, groups: int) -> int:
    """The most groups that a token is in. Waits for the device."""
    bits = torch.arange(groups, device=members.device)
    return int(((members[..., None] >> bits) & 1).sum(-1).amax()) if members.numel() else 0


def _focus(focus: Focus, q: Tensor, keys: int) -> dict:
    _shares_and_bits(focus, q, keys)
    call = {"near": focus.window, "near_sinks": focus.sinks}
    if focus.gate == "hard":
        count = 64 if focus.assignment is None else focus.assignment.shape[2]
        most = focus.top_k or 0
        if focus.top_k is None and focus.members.is_cuda and not torch.compiler.is_compiling():
            most = most_groups(focus.members, count)
        return call | {"members": focus.members.contiguous(), "groups": count, "most_groups": most}
    return call | _gate(focus, q.shape[2], wide_type(q))


def _documents(documents: Documents, batch: int, queries: int, keys: int) -> dict:
    expect(documents.keys is not None or queries == keys, lambda: "documents of keys are needed where there are more keys")
    of_keys = documents.queries if documents.keys is None else documents.keys
    return {"query_documents": _places(documents.queries, "documents.queries", batch, queries),
            "key_documents": _places(of_keys, "documents.keys", batch, keys)}


def _bias(bias, heads: int, q: Tensor) -> dict:
    wide = wide_type(q)
    if isinstance(bias, Alibi):
        slopes = alibi_slopes(heads).to(q.device) if bias.slopes is None else bias.slopes.detach().float().contiguous()
        expect(slopes.shape == (heads,), lambda: f"expected {heads} slopes; got {tuple(slopes.shape)}")
        return {"alibi": slopes}
    expect(isinstance(bias, DistanceBias) and bias.table.dim() == 2 and bias.table.shape[0] == heads,
           lambda: f"expected Alibi, or a DistanceBias with a table [{heads}, n]")
    return {"bias": bias.table.to(wide).contiguous(), "bias_first": bias.first}


# The operands of plain attention; mechanisms replace them.
_PLAIN = {
    "tau": None, "bias": None, "alibi": None, "bias_first": 0, "sink_logit": None, "kernel_before": None, "kernel_after": None,
    "mix_before": None, "mix_after": None, "eq4": False, "renormalise": False, "query_positions": None, "key_positions": None,
    "query_documents": None, "key_documents": None, "gate": 0, "gate_offset": 0.0, "gate_learned": False, "gate_query": None,
    "gate_key": None, "near": 0, "near_sinks": 0, "members": None, "groups": 0, "most_groups": 0, "block_pairs": None, "block_size": 0,
    "mask_stride": 0, "mask_block": 0, "mask_summary": 0, "dropout": 0.0, "dropout_seed": None, "dropout_layer": 0,
    "score_mod": None, "mask_mod": None}


def _floats(x: Optional[Tensor], wide: torch.dtype) -> Optional[Tensor]:
    return None if x is None else x.to(wide).contiguous()


def _multi_token(spec: MultiToken, heads: int, wide: torch.dtype) -> dict:
    expect(spec.equation in ("eq4", "eq5"), lambda: f"expected the equation eq4 or eq5; got {spec.equation!r}")
    _kernel(spec.before, "multi_token.before", heads), _kernel(spec.after, "multi_token.after", heads)
    return {"kernel_before": _floats(spec.before, wide), "kernel_after": _floats(spec.after, wide),
            "eq4": spec.equation == "eq4", "renormalise": spec.renormalise and spec.after is not None}


def _head_mix(spec: HeadMix, heads: int, wide: torch.dtype) -> dict:
    _mix(spec.before, "head_mix.before", heads), _mix(spec.after, "head_mix.after", heads)
    return {"mix_before": _floats(spec.before, wide), "mix_after": _floats(spec.after, wide)}


def _blocks(spec: Blocks, device: torch.device) -> dict:
    expect(spec.size > 0, lambda: f"expected blocks.size above 0; got {spec.size}")
    pairs = torch.tensor([tuple(x) for x in spec.pairs], dtype=torch.int64, device=device).reshape(-1, 2)
    return {"block_pairs": pairs, "block_size": spec.size}


def _sparsity(spec: Sparsity, settings: dict) -> dict:
    if isinstance(spec, Strided):
        expect(spec.stride >= 1, lambda: f"expected a stride of at least 1; got {spec.stride}")
        call = {"mask_stride": spec.stride}
    else:
        expect(isinstance(spec, Fixed), lambda: f"expected fovea.Strided or fovea.Fixed for sparsity; got {type(spec).__name__}")
        expect(1 <= spec.block and 0 <= spec.summary <= spec.block,
               lambda: f"expected a block of at least 1 and a summary of 0 to as many; got {spec.block} and {spec.summary}")
        expect(not settings["window"], lambda: "expected no window beside fovea.Fixed: its blocks are the near keys")
        call = {"mask_block": spec.block, "mask_summary": spec.summary}
    expect(settings["focus"] is None, lambda: "expected sparsity without focus; got both: one of them has to go")
    return call


def drawn(given: Union[float, Dropout]) -> Optional[Dropout]:
    """Dropout with its seed as a tensor; None where nothing is dropped."""
    spec = given if isinstance(given, Dropout) else Dropout(given)
    expect(0.0 <= spec.rate < 1.0, lambda: f"expected dropout of at least 0 and below 1; got {spec.rate}")
    expect(spec.layer >= 0, lambda: f"expected dropout.layer of at least 0; got {spec.layer}")
    if spec.rate == 0.0:
        return None
    seed = spec.seed
    if seed is None:
        seed = torch.randint(2**63 - 1, (1,))
    elif isinstance(seed, Tensor):
        expect(seed.numel() == 1 and seed.dtype == torch.int64,
               lambda: f"expected dropout.seed as one number in int64; got {seed.dtype} {tuple(seed.shape)}")
    else:
        expect(0 <= seed < 2**63, lambda: f"expected dropout.seed of 0 to 2^63 - 1; got {seed}")
        seed = torch.tensor([seed])
    return Dropout(spec.rate, seed.reshape(1).cpu(), spec.layer)


def operands(q: Tensor, k: Tensor, v: Tensor, settings: dict) -> dict:
    """What the operator and the reference take, by name."""
    scale = settings["scale"]
    if scale is None:
        scale = q.shape[3] ** -0.5
    call = {**_PLAIN, "q": q, "k": k, "v": v, "scale": scale, "causal": settings["causal"], "soft_cap": settings["soft_cap"],
            "window": settings["window"], "sinks": settings["sinks"], "stats": settings["stats"]}
    for name in _MECHANISMS:
        if settings[name] is not None:
            call |= _mechanism_operands(q, k.shape[2], scale, settings)
            break
    return call


_MECHANISMS = ("temperature", "sink_logit", "documents", "query_positions", "key_positions", "bias", "multi_token", "head_mix",
               "focus", "blocks", "sparsity", "dropout", "score_mod", "mask_mod")


def _mechanism_operands(q: Tensor, keys: int, scale: float, settings: dict) -> dict:
    temperature, sink_logit, documents, query_positions, key_positions, bias, multi_token, head_mix, focus, blocks, sparsity, dropout, \
        score_mod, mask_mod = (settings[name] for name in _MECHANISMS)
    (batch, heads, queries, _), wide = q.shape, wide_type(q)
    call = {"score_mod": score_mod, "mask_mod": mask_mod}
    if temperature is not None:
        call["scale"], call["tau"] = _tau(temperature, scale, q)
    if sink_logit is not None:
        expect(sink_logit.shape == (heads,), lambda: f"expected sink_logit [{heads}]; got {tuple(sink_logit.shape)}")
        call["sink_logit"] = _floats(sink_logit, wide)
    if query_positions is not None:
        call["query_positions"] = _places(query_positions, "query_positions", batch, queries)
    if key_positions is not None:
        call["key_positions"] = _places(key_positions, "key_positions", batch, keys)
    if documents is not None:
        call |= _documents(documents, batch, queries, keys)
    if bias is not None:
        call |= _bias(bias, heads, q)
    if multi_token is not None:
        call |= _multi_token(multi_token, heads, wide)
    if head_mix is not None:
        call |= _head_mix(head_mix, heads, wide)
    if focus is not None:
        call |= _focus(focus, q, keys)
    if blocks is not None:
        call |= _blocks(blocks, q.device)
    if sparsity is not None:
        call |= _sparsity(sparsity, settings)
    if dropout is not None:
        call |= {"dropout": dropout.rate, "dropout_seed": dropout.seed, "dropout_layer": dropout.layer}
    return call


_CONVOLUTIONS, _MIXES = ("kernel_before", "kernel_after"), ("mix_before", "mix_after")
# Operands that the kernels do not compute in every combination and size.
_JOINED = (*_CONVOLUTIONS, *_MIXES, "bias", "alibi", "gate_key", "members", "block_pairs")


def _why_not_mechanisms(call: dict, given: set[str]) -> Optional[str]:
    joins, has_bias = given & {*_CONVOLUTIONS, *_MIXES}, given & {"bias", "alibi"}
    for name in given & {*_CONVOLUTIONS}:
        if any(n > most for n, most in zip(call[name].shape[1:], MOST_KERNEL)):
            return "the kernels take convolutions of at most 8 queries x 15 keys"
    for name in given & {*_MIXES}:
        if call[name].shape[1] > MOST_MIX:
            return f"the kernels mix groups of at most {MOST_MIX} heads"
    if "gate_key" in given and call["gate_key"].shape[2] > MOST_COLUMNS:
        return f"the kernels take gates of at most {MOST_COLUMNS} columns (straight_through: three a group)"
    others = joins or has_bias or given & {"gate_key", "members"} or not call["causal"]
    others = others or call["window"] or call["mask_stride"] or call["mask_block"] or call["dropout"]
    if "block_pairs" in given and others:
        return "the kernels have no block pairs beside other patterns, biases, convolutions, mixes and dropout"
    if call["stats"] and (joins or "members" in given and (has_bias or call["dropout"])):
        return "the kernels have no statistics of joined pairs"
    return None


def why_not_kernels(call: dict) -> Optional[str]:
    """Why the kernels cannot compute a call, or None."""
    q, v = call["q"], call["v"]
    if q.dtype == torch.float64:
        return "the kernels compute in float32"
    if call["score_mod"] is not None or call["mask_mod"] is not None:
        return "the kernels know no functions of yours, score_mod and mask_mod"
    if q.is_cuda:
        if 0 in q.shape or call["k"].shape[2] == 0:
            return "there is nothing to compute"
        return why_not_cuda(call) or None
    if not q.is_cpu and not q.is_meta:
        return f"the kernels of this package run on the CPU and on CUDA; got tensors on {q.device}"
    for width in (q.shape[3], v.shape[3]):
        if width > MOST_WIDTH or width % 8 or width == 0:
            return f"the kernels are made for widths that are multiples of 8 from 8 to {MOST_WIDTH}; got {width}"
    for name in _JOINED:
        if call[name] is not None:
            return _why_not_mechanisms(call, {n for n in _JOINED if call[n] is not None})
    return None
