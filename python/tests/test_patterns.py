# Rules for distant keys (routing, Performer, SparQ, MagicPIG, StreamingLLM), KV shifting and the heads' output, by kernels and
# by the reference, against formulas in plain torch.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from eager import attend

import fovea

B, H, G, T, S, D = 2, 4, 2, 40, 53, 16
FIRST = S - T
I, J = torch.arange(FIRST, S)[:, None], torch.arange(S)[None]


def numbers(*shape, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).requires_grad_()


def rows(queries=T, keys=S):
    return [numbers(B, H, queries, D), *(numbers(B, G, keys, D, seed=n) for n in (1, 2))]


def of_heads(x):
    return x.repeat_interleave(H // G, 1)


def merged_softmax(x, seen, v):
    """out and lse of logits x."""
    x = x.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(x, -1)
    return torch.exp(x - lse[..., None]) @ of_heads(v), lse


CENTROIDS = numbers(H, 4, D, seed=5).detach()
QUERY_ROUTES, KEY_ROUTES, NEARNESS = fovea.routes(rows()[0].detach(), rows()[1].detach(), CENTROIDS)


def routing_seen(keep, score=None):
    """Row by row: the `keep` best keys of the query's cluster."""
    seen = torch.zeros(B, H, T, S, dtype=torch.bool)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                own = [j for j in range(FIRST + t + 1) if KEY_ROUTES[b, h, j] == QUERY_ROUTES[b, h, t]]
                own.sort(key=lambda j: (float(score[b, h, j]) if score is not None else 0.0, j))
                seen[b, h, t, own[-keep:]] = True
    return seen


def routed(q, k, v, seen, **settings):
    """Rows that see nothing have no truth by attend()."""
    out, lse = attend(q, k, v, visible=seen, **settings)
    return out, lse


def streamed(q, k, v, q_start, recent, start, slopes=None):
    scores = [x @ of_heads(k).transpose(2, 3) * D**-0.5 for x in (q, q_start)]
    starts = J < start
    distance = torch.where(starts, I.clamp(max=start + recent - 1) - J, I - J)
    x = torch.where(starts, scores[1], scores[0])
    x = x if slopes is None else x - slopes[None, :, None, None] * distance
    return merged_softmax(x, (J <= I) & (starts | (I - J < recent)), v)


def performed(q, k, v, w, tau=None):
    q = q * D**0.25 / (D**0.5 if tau is None else tau[:, None, :, None])
    k = of_heads(k) * D**-0.25
    logits = [[(w @ x[b, h].T).T - 0.5 * x[b, h].square().sum(-1, keepdim=True) for h in range(H) for b in range(B)] for x in (q, k)]
    pairs = [torch.logsumexp(a[:, None] + b[None], -1) - math.log(len(w)) for a, b in zip(*logits)]
    x = torch.stack([torch.stack(pairs[h * B : h * B + B]) for h in range(H)], 1)
    return merged_softmax(x, J <= I, v)


def best(score, count):
    """Indices of the largest; ties go to the lower index."""
    return sorted(range(len(score)), key=lambda j: (-score[j], j))[:count]


def sparq(q, k, v, components, keys, recent, reallocate):
    """Query by query, as in the paper's listing; the query's own key is read besides."""
    outs, lses = torch.zeros_like(q), []
    chosen = torch.zeros(B, H, T, S, dtype=torch.bool)
    alpha = []
    for b in range(B):
        for g in range(G):
            for t in range(T):
                heads, end = range(2 * g, 2 * g + 2), FIRST + t + 1
                kept = best([float(sum(q[b, h, t, c].abs() for h in heads)) for c in range(D)], components)
                guesses = []
                for h in heads:
                    share = q[b, h, t, kept].abs().sum() / q[b, h, t].abs().sum()
                    logits = k[b, g, :end][:, kept] @ q[b, h, t, kept] / (D * share).sqrt()
                    guesses.append(torch.softmax(logits, 0))
                score = (guesses[0] + guesses[1]).detach()
                score[max(end - recent - 1, 0):] = torch.inf
                read = best(score.tolist(), keys + 1)
                for h, guess in zip(heads, guesses):
                    chosen[b, h, t, read] = True
                    alpha.append(((b, h, t), guess[read].sum()))
    x = q @ of_heads(k).transpose(2, 3) * D**-0.5
    out, lse = merged_softmax(x, chosen, v)
    if not reallocate:
        return out, lse
    mean = of_heads(v).cumsum(2)[:, :, FIRST:] / torch.arange(FIRST + 1, S + 1, dtype=v.dtype)[:, None]
    share = torch.zeros(B, H, T, dtype=q.dtype)
    where, values = zip(*alpha)
    share = share.index_put(tuple(torch.tensor(x) for x in zip(*where)), torch.stack(values))[..., None]
    return share * out + (1 - share) * mean, lse


def magic_pig(q, k, v, bits, tables, start, recent):
    w = fovea._patterns.hash_directions(bits, tables, 0, D)
    x = q @ of_heads(k).transpose(2, 3) * D**-0.5
    seen = (J <= I).expand(B, H, T, S).clone()
    added = []
    for b in range(B):
        for h in range(H):
            for t in range(T):
                region = list(range(start, FIRST + t - recent))
                row = torch.zeros(S, dtype=q.dtype)
                if len(region) >= 2:
                    keys = k[b, h // 2, region] - k[b, h // 2, region].mean(0)
                    signs = (keys.detach() @ w.T > 0).reshape(-1, tables, bits) == (q[b, h, t].detach() @ w.T > 0).reshape(tables, bits)
                    seen[b, h, t, region] = signs.all(-1).sum(-1) >= 2
                    p = 1 - torch.acos(torch.nn.functional.cosine_similarity(keys, q[b, h, t][None])) / math.pi
                    c = p**bits
                    u = 1 - (1 - c) ** tables - tables * c * (1 - c) ** (tables - 1)
                    row = row.index_put((torch.tensor(region),), -torch.log(u + 1e-4))
                added.append(row)
    return merged_softmax(x + torch.stack(added).reshape(B, H, T, S), seen, v)


def shifted(x, weights):
    before = torch.cat([torch.zeros_like(x[:, :, :1]), x[:, :, :-1]], 2)
    return x * weights[:, 0, None, None] + before * weights[:, 1, None, None]


ALIBI = torch.tensor([2.0 ** (-2 * (h + 1)) for h in range(H)]).double()
TAU = (numbers(B, T).detach().abs() + 0.5).requires_grad_()
START_Q = numbers(B, H, T, D, seed=8)
FEATURES = fovea.performer_features(24, D, seed=3)
SHIFTS = [numbers(G, 2, seed=3), numbers(G, 2, seed=4)]
# name: learned tensors, settings of fovea.attention, the truth of q, k, v and them; and whether kernels compute it
CASES = {
    "routing": ([], lambda: {"routing": fovea.Routing(QUERY_ROUTES, KEY_ROUTES, 5)},
                lambda q, k, v: attend(q, k, v, visible=routing_seen(5)), True),
    "routing with temperature, cap and sink": (
        [TAU, numbers(H)], lambda x, y: {"routing": fovea.Routing(QUERY_ROUTES, KEY_ROUTES, 4), "temperature": x,
                                         "sink_logit": y, "softcap": 3.0},
        lambda q, k, v, x, y: attend(q, k, v, visible=routing_seen(4), tau=x, sink_logit=y, softcap=3.0), True),
    "routing by nearness": ([], lambda: {"routing": fovea.Routing(QUERY_ROUTES, KEY_ROUTES, 3, "nearest", NEARNESS)},
                            lambda q, k, v: attend(q, k, v, visible=routing_seen(3, NEARNESS)), False),
    "routing with alibi": ([], lambda: {"routing": fovea.Routing(QUERY_ROUTES, KEY_ROUTES, 5), "bias": fovea.Alibi()},
                           lambda q, k, v: attend(q, k, v, visible=routing_seen(5),
                                                  bias=lambda n: -ALIBI[None, :, None, None] * n), False),
    "streaming": ([START_Q], lambda x: {"streaming": fovea.Streaming(x, 7, 3)},
                  lambda q, k, v, x: streamed(q, k, v, x, 7, 3), True),
    "streaming with alibi": ([START_Q], lambda x: {"streaming": fovea.Streaming(x, 7, 3), "bias": fovea.Alibi()},
                             lambda q, k, v, x: streamed(q, k, v, x, 7, 3, ALIBI), True),
    "streaming without start keys": ([], lambda: {"streaming": fovea.Streaming(START_Q.detach(), 7, 0)},
                                     lambda q, k, v: attend(q, k, v, window=7), True),
    "performer": ([], lambda: {"performer": fovea.Performer(FEATURES)},
                  lambda q, k, v: performed(q, k, v, FEATURES.double()), False),
    "performer with temperature": ([TAU], lambda x: {"performer": fovea.Performer(FEATURES), "temperature": x},
                                   lambda q, k, v, x: performed(q, k, v, FEATURES.double(), x * D**0.5), False),
    "sparq": ([], lambda: {"sparq": fovea.Sparq(4, 8, 3)}, lambda q, k, v: sparq(q, k, v, 4, 8, 3, True), False),
    "sparq without reallocation": ([], lambda: {"sparq": fovea.Sparq(4, 8, reallocate=False)},
                                   lambda q, k, v: sparq(q, k, v, 4, 8, 2, False), False),
    "magic pig": ([], lambda: {"magic_pig": fovea.MagicPig(2, 12, 2, 5)},
                  lambda q, k, v: magic_pig(q, k, v, 2, 12, 2, 5), False),
    "shifted keys and values": (
        SHIFTS, lambda x, y: {"kv_shift": fovea.KvShift(x, y), "window": 9},
        lambda q, k, v, x, y: attend(q, shifted(k, x), shifted(v, y), window=9), True),
    "shifted values of documents": (
        SHIFTS[1:], lambda y: {"kv_shift": fovea.KvShift(values=y), "documents": fovea.Documents(LABELS[:, FIRST:], LABELS)},
        lambda q, k, v, y: attend(q, k, shifted_in_documents(v, y), documents=LABELS), True),
    "norm and scalar gate": (
        [numbers(D), numbers(D), numbers(1)],
        lambda x, y, z: {"head_output": fovea.HeadOutput(x, 1e-4, "lambda", 2, y, z.reshape(()))},
        lambda q, k, v, x, y, z: with_output(attend(q, k, v), lambda o: gated(
            o / (o.square().mean(-1, keepdim=True) + 1e-4).sqrt() * x * (1 - (0.8 - 0.6 * math.exp(-0.6))),
            lambda o: (o @ y)[..., None] + z)), True),
    "full gate": (
        [numbers(D, D, scale=0.3), numbers(D)],
        lambda x, y: {"head_output": fovea.HeadOutput(depth_scale="inverse_sqrt", depth=3, gate=x, gate_bias=y)},
        lambda q, k, v, x, y: with_output(attend(q, k, v), lambda o: gated(o / 2, lambda o: o @ x.T + y)), True),
}
LABELS = torch.tensor([[0] * 20 + [1] * 33, [0] * 31 + [3] * 22])


def shifted_in_documents(x, weights):
    before = torch.cat([torch.zeros_like(x[:, :, :1]), x[:, :, :-1]], 2)
    same = torch.cat([LABELS[:, :1] * 0 == 1, LABELS[:, 1:] == LABELS[:, :-1]], 1)[:, None, :, None]
    return x * weights[:, 0, None, None] + before * same * weights[:, 1, None, None]


def with_output(result, formula):
    return formula(result[0]), result[1]


def gated(o, score):
    return o * torch.sigmoid(score(o))


def results_and_gradients(compute, tensors):
    got = [x.clone() for x in compute(*tensors)]
    empty = got[1].detach() == -torch.inf
    got[0] = got[0].masked_fill(empty[..., None], 0.0)
    weights = [numbers(*x.shape, seed=9).detach() for x in got]
    loss = sum((x[s] * w[s]).sum() for x, w, s in zip(got, weights, (~empty, ~empty)))
    return *got, *(torch.nan_to_num(x) for x in torch.autograd.grad(loss, tensors))


def assert_close(name, dtype, path, tolerance):
    learned, ours, truth, _ = CASES[name]
    tensors, doubles = ([x.detach().to(kind).requires_grad_() for x in rows() + learned] for kind in (dtype, torch.float64))
    got = results_and_gradients(lambda *x: fovea.attention(*x[:3], **ours(*x[3:]), return_lse=True, path=path), tensors)
    expected = results_and_gradients(truth, doubles)
    for n, (x, y) in enumerate(zip(got, expected)):
        factor = 1.0 if n < 2 else 10.0 * max(1.0, float(y.abs().max()))
        torch.testing.assert_close(x.double(), y, rtol=10 * tolerance, atol=factor * tolerance, msg=lambda text: f"{n}: {text}")


@pytest.mark.parametrize("name", CASES)
def test_the_reference_gives_the_results_and_gradients_of_the_formula_in_float64(name):
    assert_close(name, torch.float64, "reference", 1e-9)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[3]])
def test_kernels_give_the_results_and_gradients_of_the_formula(name):
    assert_close(name, torch.float32, "fused", 1e-4)


@pytest.mark.parametrize("name", ["performer", "performer with temperature"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_running_sums_give_the_results_and_gradients_of_performer(name, dtype):
    assert_close(name, dtype, "automatic", 1e-4 if dtype == torch.float32 else 1e-9)


def test_running_sums_of_a_long_text_are_those_of_all_pairs():
    x = [numbers(1, 2, 300, D, seed=n).detach().double() for n in range(3)]
    spec = fovea.Performer(FEATURES)
    got, lse = fovea.attention(*x, performer=spec, return_lse=True)
    exact, of_exact = fovea.attention(*x, performer=spec, return_lse=True, path="reference")
    torch.testing.assert_close(got, exact, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(lse, of_exact, rtol=1e-8, atol=1e-8)
    later = fovea.attention(*(y[:, :, :150] for y in x), performer=spec)
    torch.testing.assert_close(got[:, :, :150], later, rtol=1e-8, atol=1e-8)


def test_the_published_form_of_performer_adds_an_epsilon_to_features():
    q, k, v = (x.detach().double() for x in rows(S, S))
    w, epsilon = FEATURES.double(), 1e-3
    a, b = q * D**-0.25, of_heads(k) * D**-0.25
    phi_q, phi_k = (torch.exp(x @ w.T - 0.5 * x.square().sum(-1, keepdim=True) - (x @ w.T).amax(axes, keepdim=True)) + epsilon
                    for x, axes in ((a, -1), (b, (2, 3))))
    p = (phi_q @ phi_k.transpose(2, 3)).tril()
    got = fovea.attention(q, k, v, performer=fovea.Performer(FEATURES, "global", epsilon))
    torch.testing.assert_close(got, p / p.sum(-1, keepdim=True) @ of_heads(v), rtol=1e-9, atol=1e-9)


def test_features_are_orthogonal_blocks_as_long_as_gaussian_vectors():
    w = fovea.performer_features(40, 16, seed=1).double()
    for block in (w[:16], w[16:32], w[32:]):
        unit = block / block.norm(dim=1, keepdim=True)
        torch.testing.assert_close(unit @ unit.T, torch.eye(len(block)).double(), rtol=0, atol=1e-6)
    assert 2.5 < w.norm(dim=1).mean() < 5.5 and w.norm(dim=1).std() > 0.1
    torch.testing.assert_close(fovea.performer_features(20, 16, scaling="root").norm(dim=1), torch.full((20,), 4.0))


def test_draws_are_those_of_the_philox_generator_that_random123_publishes():
    words = fovea._random.philox(0xFFFFFFFFFFFFFFFF, torch.tensor(-1), 0xFFFFFFFFFFFFFFFF)
    assert [f"{int(x):08x}" for x in words] == ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]
    many = fovea._random.normals(7, 0, 40000)
    assert abs(float(many.mean())) < 0.02 and abs(float(many.std()) - 1) < 0.02
    assert torch.equal(fovea._random.normals(7, 100, 5), many[100:105])


def test_routes_are_the_nearest_centroids_of_normalised_rows():
    q, k, _ = rows()
    for x, heads, found in ((q, lambda h: h, QUERY_ROUTES), (k, lambda h: h // 2, KEY_ROUTES)):
        for h in range(H):
            z = x[0, heads(h), 3]
            z = (z - z.mean()) / (z.var(unbiased=False) + 1e-6).sqrt()
            assert int((CENTROIDS[h] @ z).argmax()) == int(found[0, h, 3])


# Decoding: settings of the next tokens, by their range; they are those of the whole text cut to these.
def of_tokens(name, a, b):
    return {
        "routing": lambda: {"routing": fovea.Routing(ALL_ROUTES[0][:, :, a:b], ALL_ROUTES[1][:, :, a:b], 5)},
        "routing by nearness": lambda: {"routing": fovea.Routing(
            ALL_ROUTES[0][:, :, a:b], ALL_ROUTES[1][:, :, a:b], 3, "nearest", ALL_ROUTES[2][:, :, a:b])},
        "streaming": lambda: {"streaming": fovea.Streaming(ALL_START[:, :, a:b], 7, 3)},
        "performer": lambda: {"performer": fovea.Performer(FEATURES)},
        "sparq": lambda: {"sparq": fovea.Sparq(4, 8)},
        "magic pig": lambda: {"magic_pig": fovea.MagicPig(2, 12, 2, 5)},
        "kv shift and gate": lambda: {"kv_shift": fovea.KvShift(*SHIFTS),
                                      "head_output": fovea.HeadOutput(gate=torch.ones(D), gate_bias=torch.tensor(0.1))},
    }[name]()


ALL_ROUTES = fovea.routes(*(x.detach() for x in rows(S, S)[:2]), CENTROIDS)
ALL_START = numbers(B, H, S, D, seed=8).detach()


@torch.no_grad()
@pytest.mark.parametrize("name", ["routing", "routing by nearness", "streaming", "performer", "sparq", "magic pig",
                                  "kv shift and gate"])
def test_decoding_gives_the_rows_of_the_whole_text(name):
    q, k, v = rows(S, S)
    whole = fovea.attention(q, k, v, **of_tokens(name, 0, S))
    cache, parts = fovea.Cache(), []
    for a, b in ((0, 30), (30, 31), (31, 40), (40, 41), (41, S)):
        parts.append(fovea.decode(*(x[:, :, a:b] for x in (q, k, v)), cache, **of_tokens(name, a, b)))
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_compiles_without_graph_break(name):
    learned, ours, _, _ = CASES[name]
    tensors = rows() + learned
    torch._dynamo.reset()
    function = torch.compile(lambda *x: fovea.attention(*x[:3], **ours(*x[3:])), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(function(*tensors), fovea.attention(*tensors[:3], **ours(*tensors[3:])), rtol=1e-4, atol=1e-5)


def test_what_does_not_go_together_is_refused_by_name():
    q, k, v = rows()
    sparq_of_some = fovea.Sparq(4)
    for settings, text in (
            ({"sparq": sparq_of_some, "softcap": 1.0}, "sparq without soft_cap"),
            ({"sparq": sparq_of_some, "window": 3}, "sparq without window"),
            ({"sparq": sparq_of_some, "magic_pig": fovea.MagicPig(3)}, "one rule for distant keys"),
            ({"performer": fovea.Performer(FEATURES), "bias": fovea.Alibi()}, "performer without bias"),
            ({"routing": fovea.Routing(QUERY_ROUTES, KEY_ROUTES, 0)}, "keep of at least 1"),
            ({"routing": fovea.Routing(QUERY_ROUTES, KEY_ROUTES), "causal": False}, "causal=True"),
            ({"routing": fovea.Routing(KEY_ROUTES, KEY_ROUTES)}, "routing.queries"),
            ({"streaming": fovea.Streaming(q[:, :, 1:], 4)}, "streaming.queries"),
            ({"performer": fovea.Performer(FEATURES[:, 1:])}, "performer.features"),
            ({"performer": fovea.Performer(FEATURES, epsilon=0.1)}, "epsilon of 0"),
            ({"sparq": fovea.Sparq(D + 1)}, "sparq.components"),
            ({"magic_pig": fovea.MagicPig(31)}, "magic_pig.bits"),
            ({"kv_shift": fovea.KvShift(torch.ones(H, 2))}, "kv_shift.keys"),
            ({"head_output": fovea.HeadOutput(gate=torch.ones(D))}, "gate_bias"),
            ({"head_output": fovea.HeadOutput(torch.ones(3))}, "head_output.norm"),
            ({"sparq": fovea.Blocks(4, [])}, "fovea.Sparq")):
        with pytest.raises(ValueError, match=text):
            fovea.attention(q, k, v, **settings)
    with pytest.raises(NotImplementedError, match="no kernels of MagicPig"):
        fovea.attention(q, k, v, magic_pig=fovea.MagicPig(3), path="fused")
