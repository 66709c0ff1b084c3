"""`attn_implementation="fovea"` for the library transformers.

    import fovea.transformers
    fovea.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="fovea")

Models that Fovea trained (`model_type: fovea`) load by AutoModelForCausalLM, too, once this module is imported.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

from typing import Callable, Optional

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

from . import _model
from ._attention import attention
from ._layers import PADDING
from ._settings import Documents

NAME = "fovea"


def register() -> None:
    """Makes the name known; may be called again. Models that are loaded with it compute attention by `fovea.attention`."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_places)


def _refuse(what: str) -> None:
    raise NotImplementedError(f"[fovea.transformers] {what}; load the model with attn_implementation='sdpa'")


def _relation(places: Tensor, queries: int, causal: bool, window: Optional[int]) -> Tensor:
    """Which pairs the places allow: [b, 1, t, s]."""
    (of_query, i), (of_key, j) = (x[..., None].unbind(2) for x in (places[:, :queries], places[:, queries:]))
    j, of_key = j.transpose(1, 2), of_key.transpose(1, 2)
    seen = of_query == of_key
    if causal:
        seen = seen & (j <= i)
        seen = seen & (i - j < window) if window else seen
    return seen[:, None]


def attention_places(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable = masking_utils.causal_mask_function,
    attention_mask: Optional[Tensor] = None,
    local_size: Optional[int] = None,
    device="cpu",
    **kwargs,
) -> Tensor:
    """Document and position of every query, then of every key, [b or 1, 1, q_length + kv_length, 2]: instead of a mask.

    Four axes, because `generate` prepares masks ahead for a static cache and hands them to the model, which takes a tensor
    of four axes for a finished mask.
    A pattern other than causal and bidirectional is compared with transformers' own mask, pair by pair, and refused
    unless it is a causal window.
    """
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    queries = torch.arange(q_length, device=device) + q_offset
    keys = torch.arange(kv_length, device=device) + kv_offset
    rows = 1 if padding is None else padding.shape[0]
    positions = torch.cat([queries, keys]).expand(rows, -1)
    of_keys = torch.zeros_like(positions[:, q_length:])
    if padding is not None:
        of_keys = torch.where(padding[:, kv_offset : kv_offset + kv_length].to(torch.bool), 0, PADDING)
    own = (queries - kv_offset).clamp(0, kv_length - 1)  # queries of padding see padding: so rows are runs of documents
    places = torch.stack([torch.cat([of_keys[:, own], of_keys], 1), positions], -1)
    if mask_function in (masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function):
        return places[:, None]
    exact = masking_utils.sdpa_mask(
        batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, device=device,
        allow_is_causal_skip=False, use_vmap=kwargs.get("use_vmap", False))
    real = (places[:, None, :q_length, :1] != PADDING)
    if not (exact == _relation(places, q_length, True, local_size))[real.expand_as(exact)].all():
        _refuse("expected a causal mask, with or without a window; got another pattern of pairs")
    return places[:, None]


def _on_host(places: Tensor) -> Tensor:
    """The places of a GPU's tokens, copied once for all layers: plans are made on the CPU."""
    if not places.is_cuda or torch.compiler.is_compiling():
        return places
    if not hasattr(places, "fovea_on_host"):
        places.fovea_on_host = places.cpu()
    return places.fovea_on_host


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    is_causal: Optional[bool] = None,
    sliding_window: Optional[int] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[Tensor] = None,
    position_bias: Optional[Tensor] = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """query [b, h, t, d], key and value [b, g, s, d]; `attention_mask`: attention_places(). Returns [b, t, h, d], None."""
    if position_bias is not None:
        _refuse("expected no position_bias; got one")
    settings = {}
    if attention_mask is not None:
        queries = query.shape[2]
        of_places = (1, queries + key.shape[2], 2)
        if attention_mask.dtype != torch.int64 or attention_mask.shape[1:] != of_places:
            _refuse(f"expected an attention_mask [batch, tokens]; got a mask of pairs {tuple(attention_mask.shape)}")
        documents, positions = _on_host(attention_mask)[:, 0].unbind(-1)
        settings = {
            "documents": Documents(documents[:, :queries], documents[:, queries:]),
            "query_positions": positions[:, :queries],
            "key_positions": positions[:, queries:],
        }
    settings |= {"causal": getattr(module, "is_causal", True) if is_causal is None else is_causal, "scale": scaling,
                 "softcap": softcap or 0.0, "window": sliding_window or 0, "sink_logit": s_aux, "dropout": dropout}
    if (mechanisms := getattr(module, "fovea", None)) is not None:
        scale = query.shape[3] ** -0.5 if scaling is None else scaling
        settings |= mechanisms.settings(module, query, key.shape[2], scale, settings)
    if "differential" in settings:  # neighbouring value heads are one of twice the width
        value = value.unflatten(1, (-1, 2)).transpose(2, 3).flatten(3)
    out = attention(query, key, value, **settings)
    return out.transpose(1, 2), None


# AutoModelForCausalLM loads models of `model_type: fovea` from here on; their attention goes by that name.
_model.register()
register()
