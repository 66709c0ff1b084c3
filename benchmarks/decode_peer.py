#!/usr/bin/env python3
"""Peer of the decode benchmark: the same shape as `LlamaForCausalLM` of transformers, bfloat16, its cache and its best
attention on this machine (sdpa).

    decode_peer.py SIZES THREADS        the protocol on stdin is that of decode.cpp

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import sys
import time

import torch
import transformers


def main() -> None:
    sizes = json.loads(sys.argv[1])
    torch.set_num_threads(int(sys.argv[2]))
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=sizes["vocabulary"], hidden_size=sizes["width"], intermediate_size=sizes["ffn_width"],
        num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"], num_key_value_heads=sizes["kv_heads"],
        max_position_embeddings=sizes["context"], tie_word_embeddings=True, dtype="bfloat16",
        attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    cache = transformers.DynamicCache(config=config)
    position, tokens = sizes["position"], sizes["tokens"]
    with torch.inference_mode():
        if position:
            model(torch.arange(position)[None] % sizes["vocabulary"], past_key_values=cache, use_cache=True, logits_to_keep=1)
        for line in sys.stdin:
            if line.strip() == "about":
                print(json.dumps({"parameters": model.num_parameters(), "transformers": transformers.__version__,
                                  "torch": torch.__version__, "attention": config._attn_implementation}), flush=True)
            elif line.strip() == "step":
                token = torch.ones(1, 1, dtype=torch.long)
                start = time.perf_counter()
                for _ in range(tokens):
                    token = model(token, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1)[:, None]
                print((time.perf_counter() - start) * 1e3, flush=True)
                cache.crop(-tokens)  # back to the start: transformers 5 takes what to remove


if __name__ == "__main__":
    main()
