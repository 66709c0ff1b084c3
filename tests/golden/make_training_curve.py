# Golden losses of ten AdamW steps, from an implementation that shares nothing with Fovea but the specification.
#
# A decoder of two layers (LLaMA style with per-head QK-norm, spec 6.1, 7.1-7.4, 10.1-10.2), plain PyTorch autograd,
# torch.optim.AdamW, clip_grad_norm_, and the schedule of spec 3.7. Weights and tokens come from formulas that
# tests/train/golden_curve_test.cpp computes too. Run it with a Python that has torch and numpy:
#
#   python tests/golden/make_training_curve.py        # writes tests/golden/training_curve.json
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import json
import math
import pathlib

import torch

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, CONTEXT = 2, 32, 4, 2, 8, 64, 64, 16
EPS, THETA = 1e-5, 10000.0
ROWS, STEPS, WARMUP, FINAL_RATIO = 2, 10, 3, 0.1
RATE, BETAS, ADAM_EPS, DECAY, CLIP = 5e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
TAU_LOW, TAU_HIGH = 5.0 * math.sqrt(HEAD_DIM / 128), 10.0 * math.sqrt(HEAD_DIM / 128)


def shapes(learned):
    out = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        out |= {
            p + "input_layernorm.weight": (WIDTH,),
            p + "post_attention_layernorm.weight": (WIDTH,),
            p + "self_attn.q_proj.weight": (HEADS * HEAD_DIM, WIDTH),
            p + "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, WIDTH),
            p + "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, WIDTH),
            p + "self_attn.o_proj.weight": (WIDTH, HEADS * HEAD_DIM),
            p + "self_attn.q_norm.weight": (HEAD_DIM,),
            p + "self_attn.k_norm.weight": (HEAD_DIM,),
            p + "mlp.gate_proj.weight": (FFN, WIDTH),
            p + "mlp.up_proj.weight": (FFN, WIDTH),
            p + "mlp.down_proj.weight": (WIDTH, FFN),
        }
        if learned:
            out |= {p + "self_attn.temperature.weight": (WIDTH,), p + "self_attn.temperature.bias": ()}
    return out


def is_norm(name):
    return "norm" in name


def decays(name):
    return not is_norm(name) and "temperature" not in name


def make_parameters(learned, dtype):
    """Element j of the i-th name in sorted order; rounded to float32 first, so that both precisions start alike."""
    out = {}
    for i, (name, shape) in enumerate(sorted(shapes(learned).items())):
        count = math.prod(shape)
        if name.endswith("temperature.bias"):
            values = [(TAU_LOW + TAU_HIGH) / 2]
        else:
            wave = [math.sin(1.0 + i + 0.7 * j + 0.013 * j * (j % 17)) for j in range(count)]
            scale, shift = (0.1, 1.0) if is_norm(name) else (0.05, 0.0) if "temperature" in name else (0.2, 0.0)
            values = [shift + scale * w for w in wave]
        tensor = torch.tensor(values, dtype=torch.float64).to(torch.float32).to(dtype).reshape(shape)
        out[name] = tensor.requires_grad_(True)
    return out


def make_tokens(step):
    rows = [[(11 * b + 5 * t + (t * t) % 7 + 13 * step) % VOCAB for t in range(CONTEXT + 1)] for b in range(ROWS)]
    tokens = torch.tensor(rows)
    return tokens[:, :-1], tokens[:, 1:]


def rms(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def rotate(x):
    """x [b, heads, t, d]; pairs (c, c + d/2)."""
    half = HEAD_DIM // 2
    frequency = THETA ** (-2.0 * torch.arange(half, dtype=torch.float64) / HEAD_DIM)
    angle = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def attention(y, p, prefix, temperature):
    b, t, _ = y.shape

    def heads(name, n):
        return (y @ p[prefix + name].T).view(b, t, n, HEAD_DIM).transpose(1, 2)

    q = rotate(rms(heads("q_proj.weight", HEADS), p[prefix + "q_norm.weight"]))
    k = rotate(rms(heads("k_proj.weight", KV_HEADS), p[prefix + "k_norm.weight"]))
    v = heads("v_proj.weight", KV_HEADS)
    k, v = k.repeat_interleave(HEADS // KV_HEADS, 1), v.repeat_interleave(HEADS // KV_HEADS, 1)
    raw = q @ k.transpose(-1, -2)
    if temperature == "learned":
        score = y @ p[prefix + "temperature.weight"]
        mean = score.cumsum(1) / torch.arange(1, t + 1, dtype=y.dtype)
        tau = (mean + p[prefix + "temperature.bias"]).clamp(TAU_LOW, TAU_HIGH)
        logits = raw / tau[:, None, :, None]
    else:
        logits = raw / (temperature * math.sqrt(HEAD_DIM))
    future = torch.ones(t, t, dtype=torch.bool).triu(1)
    weights = logits.masked_fill(future, -math.inf).softmax(-1)
    out = (weights @ v).transpose(1, 2).reshape(b, t, HEADS * HEAD_DIM)
    return out @ p[prefix + "o_proj.weight"].T


def loss_of(p, inputs, targets, temperature):
    x = p["model.embed_tokens.weight"][inputs]
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        x = x + attention(rms(x, p[prefix + "input_layernorm.weight"]), p, prefix + "self_attn.", temperature)
        z = rms(x, p[prefix + "post_attention_layernorm.weight"])
        gate, up = z @ p[prefix + "mlp.gate_proj.weight"].T, z @ p[prefix + "mlp.up_proj.weight"].T
        x = x + (torch.nn.functional.silu(gate) * up) @ p[prefix + "mlp.down_proj.weight"].T
    logits = rms(x, p["model.norm.weight"]) @ p["model.embed_tokens.weight"].T
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def multiplier(step):
    if step < WARMUP:
        return step / WARMUP
    u = (step - WARMUP) / (STEPS - WARMUP)
    return FINAL_RATIO + 0.5 * (1 - FINAL_RATIO) * (1 + math.cos(math.pi * u))


def curve(temperature, dtype):
    p = make_parameters(temperature == "learned", dtype)
    groups = [
        {"params": [v for n, v in p.items() if decays(n)], "weight_decay": DECAY},
        {"params": [v for n, v in p.items() if not decays(n)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=ADAM_EPS, foreach=False, fused=False)
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * multiplier(step)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(p, *make_tokens(step), temperature)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(p.values()), CLIP)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return {"loss": losses, "gradient_norm": norms}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    out = {"made_by": "make_training_curve.py", "torch": torch.__version__, "curves": {}}
    for name, temperature in {"standard": 1.0, "focal_0.4": 0.4, "learned_prefix": "learned"}.items():
        out["curves"][name] = {
            "float32": curve(temperature, torch.float32),
            "float64": curve(temperature, torch.float64),
        }
    path = pathlib.Path(__file__).with_name("training_curve.json")
    path.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
