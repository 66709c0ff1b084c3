# Focus, given blocks, Longformer and Differential, by the kernels and by the reference, against formulas in plain torch.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from eager import attend
from operator_calls import opcheck

import fovea
from fovea import _call

B, H, G, T, S, D, K = 2, 4, 2, 70, 83, 16, 6
FIRST = S - T
WINDOW, SINKS = 9, 2


def numbers(*shape, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).requires_grad_()


def rows(queries=T, keys=S):
    return [numbers(B, H, queries, D), *(numbers(B, G, keys, D, seed=n) for n in (1, 2))]


def distances(queries=T, keys=S):
    return torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)[None]


LOCAL = (distances() < WINDOW) | (torch.arange(S) < SINKS)[None]
SHARES = torch.softmax(2.0 * numbers(B, S, K).detach(), -1).requires_grad_()
MEMBERS = fovea.focus.top_members(SHARES, 2)
HARD = ((MEMBERS[:, FIRST:, None] & MEMBERS[:, None, :]) != 0)[:, None]
STRENGTH = torch.tensor(3.0, requires_grad=True)
TAPS = numbers(H, 3, 5, scale=0.3)


def focus(gate, shares=None, **settings):
    return fovea.Focus(shares, MEMBERS, gate, WINDOW, SINKS, **settings)


def agreement(g):
    return (g[:, FIRST:] @ g.transpose(1, 2))[:, None]


def gated(formula):
    """A gate of distant logits: formula(logits, agreement)."""
    return lambda g, *x: {"gate": lambda s: torch.where(LOCAL, s, formula(s, agreement(g), *x))}


def straight_through(s, a):
    return s + torch.log(HARD.double() + a - a.detach() + 1e-6)


PAIRS = [(0, 0), (1, 1), (2, 2), (2, 0), (3, 1), (3, 3), (4, 4), (5, 0), (5, 5), (1, 4)]


def in_pairs():
    of = torch.arange(S) // 16
    table = torch.zeros(6, 6, dtype=torch.bool)
    for query, key in PAIRS:
        table[query, key] = True
    return table[of[FIRST:, None], of[None]]


def in_blocks_or_their_ends(block, summary):
    j = torch.arange(S)
    return (torch.arange(FIRST, S)[:, None] // block == j // block) | (j % block >= block - summary)


def longformer_seen(window, dilation, positions):
    i, j, n = torch.arange(FIRST, S)[:, None], torch.arange(S)[None], distances()
    is_global = torch.tensor([p in positions for p in range(S)])
    steps = torch.tensor(dilation)[:, None, None]
    return (n % steps == 0) & (n <= window * steps) | is_global[i] | is_global[j]


def differential(q, k, v, lambdas, depth):
    maps = [attend(q[:, n::2], k[:, n::2], v) for n in range(2)]
    start = {0: 0.2, 3: 0.8 - 0.6 * torch.e ** -0.9}[depth]
    weight = torch.exp((lambdas[0] * lambdas[1]).sum()) - torch.exp((lambdas[2] * lambdas[3]).sum()) + start
    return maps[0][0] - weight * maps[1][0], torch.stack([maps[0][1], maps[1][1]], 2).flatten(1, 2)


# name: learned tensors, settings of fovea.attention, settings of attend(); both of the learned tensors
CASES = {
    "focus log": ([SHARES], lambda g: {"focus": focus("log", g)}, gated(lambda s, a: s + torch.log(a + 1e-6))),
    "focus identity": ([SHARES], lambda g: {"focus": focus("identity", g)},
                       gated(lambda s, a: s + torch.log(K * a + 1e-6))),
    "focus mul": ([SHARES], lambda g: {"focus": focus("mul", g, strength=4.0)},
                  gated(lambda s, a: s * torch.sigmoid(4.0 * a))),
    "focus logsig": ([SHARES], lambda g: {"focus": focus("logsig", g, strength=4.0)},
                     gated(lambda s, a: s + torch.nn.functional.logsigmoid(4.0 * (a - 0.5)))),
    "focus logsig of a learned strength": (
        [SHARES, STRENGTH], lambda g, x: {"focus": focus("logsig", g, strength=x, threshold=0.3)},
        gated(lambda s, a, x: s + torch.nn.functional.logsigmoid(x * (a - 0.3)))),
    "focus straight through": ([SHARES], lambda g: {"focus": focus("straight_through", g)}, gated(straight_through)),
    "focus hard": ([], lambda: {"focus": focus("hard")}, lambda: {"visible": HARD | LOCAL}),
    "focus hard with alibi": ([], lambda: {"focus": focus("hard"), "bias": fovea.Alibi()},
                              lambda: {"visible": HARD | LOCAL, "bias": lambda n: -torch.tensor(
                                  [2.0 ** (-2 * (h + 1)) for h in range(H)]).double()[None, :, None, None] * n}),
    "focus hard with multi-token": ([TAPS], lambda x: {"focus": focus("hard"), "multi_token": fovea.MultiToken(x)},
                                    lambda x: {"visible": HARD | LOCAL, "before": x}),
    "focus log with multi-token": (
        [SHARES, TAPS], lambda g, x: {"focus": focus("log", g), "multi_token": fovea.MultiToken(x)},
        lambda g, x: gated(lambda s, a: s + torch.log(a + 1e-6))(g) | {"before": x}),
    "blocks": ([], lambda: {"blocks": fovea.Blocks(16, PAIRS)}, lambda: {"visible": in_pairs()}),
    "strided": ([], lambda: {"sparsity": fovea.Strided(11), "window": 5},
                lambda: {"visible": (distances() < 5) | (distances() % 11 == 0)}),
    "strided alone, with sinks": ([], lambda: {"sparsity": fovea.Strided(11), "sinks": 2},
                                  lambda: {"visible": (distances() % 11 == 0) | (torch.arange(S) < 2)}),
    "strided both ways": ([], lambda: {"sparsity": fovea.Strided(11), "window": 5, "causal": False},
                          lambda: {"visible": (distances().abs() < 5) | (distances() % 11 == 0), "causal": False}),
    "fixed": ([numbers(H)], lambda x: {"sparsity": fovea.Fixed(16, 3), "sink_logit": x},
              lambda x: {"visible": in_blocks_or_their_ends(16, 3), "sink_logit": x}),
    "fixed with alibi": ([], lambda: {"sparsity": fovea.Fixed(10, 1), "bias": fovea.Alibi()},
                         lambda: {"visible": in_blocks_or_their_ends(10, 1), "bias": lambda n: -torch.tensor(
                             [2.0 ** (-2 * (h + 1)) for h in range(H)]).double()[None, :, None, None] * n}),
    "strided with multi-token": ([TAPS], lambda x: {"sparsity": fovea.Strided(11), "window": 5, "multi_token": fovea.MultiToken(x)},
                                 lambda x: {"visible": (distances() < 5) | (distances() % 11 == 0), "before": x}),
    "longformer": ([numbers(H)],
                   lambda x: {"longformer": fovea.Longformer(7, globals=3), "sink_logit": x},
                   lambda x: {"visible": longformer_seen(7, [1] * H, [0, 1, 2]), "sink_logit": x}),
    "dilated longformer": ([numbers(H)],
                           lambda x: {"longformer": fovea.Longformer(5, (1, 1, 2, 3), 1, (20, 40)), "sink_logit": x},
                           lambda x: {"visible": longformer_seen(5, [1, 1, 2, 3], [0, 20, 40]), "sink_logit": x}),
}


def run(name, dtype, **settings):
    learned, ours, _ = CASES[name]
    tensors = [x.detach().to(dtype).requires_grad_() for x in rows() + learned]
    got = fovea.attention(*tensors[:3], **ours(*tensors[3:]), return_lse=True, **settings)
    return tensors, got


def gradients(tensors, got):
    weights = [numbers(*x.shape, seed=9).detach() for x in got]
    seen = [torch.isfinite(x) for x in got]
    return torch.autograd.grad(sum((x[s] * w[s]).sum() for x, w, s in zip(got, weights, seen)), tensors)


def truth_of(name):
    learned, _, theirs = CASES[name]
    doubles = [x.detach().double().requires_grad_() for x in rows() + learned]
    return doubles, attend(*doubles[:3], **theirs(*doubles[3:]))


def assert_close(name, dtype, path, tolerance):
    tensors, got = run(name, dtype, path=path)
    doubles, expected = truth_of(name)
    empty = expected[1] == -torch.inf
    expected = (expected[0].masked_fill(empty[..., None], 0.0), expected[1])
    for x, y in zip(got, expected):
        torch.testing.assert_close(x.double(), y, rtol=tolerance, atol=tolerance)
    for x, y in zip(gradients(tensors, got), gradients(doubles, expected)):
        torch.testing.assert_close(x.double(), torch.nan_to_num(y), rtol=10 * tolerance,
                                   atol=10 * tolerance * max(1.0, float(torch.nan_to_num(y).abs().max())))


@pytest.mark.parametrize("name", CASES)
def test_kernels_give_the_results_and_gradients_of_the_formula(name):
    assert_close(name, torch.float32, "fused", 1e-4)


@pytest.mark.parametrize("name", CASES)
def test_the_reference_gives_the_results_and_gradients_of_the_formula_in_float64(name):
    assert_close(name, torch.float64, "reference", 1e-10)


@pytest.mark.parametrize("path", ["fused", "reference"])
@pytest.mark.parametrize("depth", [0, 3])
def test_differential_attention_is_the_difference_of_two_maps(path, depth):
    dtype, tolerance = (torch.float32, 1e-4) if path == "fused" else (torch.float64, 1e-10)
    shapes = [(B, H, T, D), (B, G, S, D), (B, G // 2, S, 2 * D), (4, D)]
    given = [numbers(*x, scale=0.3 if n == 3 else 1.0, seed=n) for n, x in enumerate(shapes)]
    tensors, doubles = ([x.detach().to(kind).requires_grad_() for x in given] for kind in (dtype, torch.float64))
    got = fovea.attention(*tensors[:3], differential=fovea.Differential(tensors[3], depth), return_lse=True, path=path)
    expected = differential(*doubles, depth)
    for x, y in zip(got + gradients(tensors, got), expected + gradients(doubles, expected)):
        torch.testing.assert_close(x.double(), y, rtol=10 * tolerance, atol=10 * tolerance * float(y.detach().abs().max()))


@pytest.mark.parametrize("path", ["fused", "reference"])
def test_global_queries_of_longformer_have_projections_of_their_own(path):
    q, k, v, of_q, of_k, of_v = [x.detach().requires_grad_() for x in rows() + [x + 1.0 for x in rows()]]
    spec = fovea.Longformer(6, (1, 1, 2, 2), 0, (15, 50), of_q, of_k, of_v)
    tensors = [q, k, v, of_q, of_k, of_v]
    got = fovea.attention(q, k, v, longformer=spec, return_lse=True, path=path)
    doubles = [x.detach().double().requires_grad_() for x in tensors]
    visible = longformer_seen(6, [1, 1, 2, 2], [15, 50])
    plain, own = (attend(*x, visible=visible) for x in (doubles[:3], doubles[3:]))
    is_global = torch.tensor([p in (15, 50) for p in range(FIRST, S)])
    expected = torch.where(is_global[:, None], own[0], plain[0]), torch.where(is_global, own[1], plain[1])
    for x, y in zip(got + gradients(tensors, got), expected + gradients(doubles, expected)):
        torch.testing.assert_close(x.double(), y, rtol=1e-3, atol=1e-3 * max(1.0, float(y.detach().abs().max())))


@pytest.mark.parametrize("settings", [{}, {"focus": focus("hard")}, {"focus": focus("log", SHARES)}, {"window": 5},
                                      {"blocks": fovea.Blocks(16, PAIRS)}], ids=lambda x: "-".join(x) or "plain")
def test_statistics_of_the_kernels_are_those_of_the_reference(settings):
    _, fused = fovea.attention(*rows(), **settings, stats=True, path="fused")
    _, exact = fovea.attention(*(x.double() for x in rows()), **settings, stats=True)
    for x, y in zip(fused, exact):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
        assert not x.requires_grad and x.shape == (B, H, T)


def test_uniform_weights_have_the_entropy_of_their_number():
    q, k, v = (torch.zeros(1, 1, 5, 16) for _ in range(3))
    _, stats = fovea.attention(q, k, v, stats=True)
    torch.testing.assert_close(stats.entropy[0, 0], torch.arange(1.0, 6.0).log())
    torch.testing.assert_close(stats.first_weight[0, 0], 1 / torch.arange(1.0, 6.0))
    torch.testing.assert_close(stats.largest_weight, stats.first_weight)


def small(name):
    """The case's settings for few tokens, for gradcheck."""
    g = torch.softmax(numbers(1, 7, 3).detach().double(), -1).requires_grad_()
    members = fovea.focus.top_members(g, 1)
    gates = {f"focus {gate}": ([g], lambda g, gate=gate: {"focus": fovea.Focus(g, members, gate, 2, 1)})
             for gate in ("log", "identity", "mul", "logsig")}
    taps, mixes, heads = numbers(2, 2, 3).double(), numbers(1, 2, 2).double(), numbers(2).double()
    table, lambdas = numbers(2, 4).double(), (0.3 * numbers(4, 4)).double()
    return (gates | {
        "plain": ([], lambda: {}),
        "focus hard": ([], lambda: {"focus": fovea.Focus(None, members, "hard", 2, 1)}),
        "temperature": ([(numbers(1, 5).abs() + 0.5).double()], lambda x: {"temperature": x, "softcap": 2.0}),
        "bias and sink": ([table, heads], lambda x, y: {"bias": fovea.DistanceBias(x), "sink_logit": y, "window": 4}),
        "multi-token": ([taps, taps + 0.1], lambda x, y: {"multi_token": fovea.MultiToken(x, y)}),
        "eq4, renormalised": ([taps, taps.abs() + 0.1],
                              lambda x, y: {"multi_token": fovea.MultiToken(x, y, "eq4", True)}),
        "head mix": ([mixes, mixes + 1.0], lambda x, y: {"head_mix": fovea.HeadMix(x, y)}),
        "strided": ([], lambda: {"sparsity": fovea.Strided(3), "window": 2}),
        "fixed": ([], lambda: {"sparsity": fovea.Fixed(3, 1)}),
        "blocks": ([], lambda: {"blocks": fovea.Blocks(2, [(1, 0), (1, 1), (2, 1), (3, 3)])}),
        "longformer": ([], lambda: {"longformer": fovea.Longformer(2, (1, 2), 1, (4,))}),
        "differential": ([lambdas], lambda x: {"differential": fovea.Differential(x, 1)}),
    })[name]


@pytest.mark.parametrize("name", ["plain", "focus log", "focus identity", "focus mul", "focus logsig", "focus hard",
                                  "temperature", "bias and sink", "multi-token", "eq4, renormalised", "head mix", "blocks",
                                  "strided", "fixed", "longformer", "differential"])
def test_gradcheck_passes_in_float64(name):
    learned, settings = small(name)
    given = [numbers(1, 2, 5, 4), numbers(1, 2, 7, 4, seed=1), numbers(1, 1 if name == "differential" else 2, 7, 3)]
    tensors = [x.detach().double().requires_grad_() for x in given + learned]
    torch.autograd.gradcheck(lambda *x: fovea.attention(*x[:3], **settings(*x[3:])), tensors)


def test_the_reference_has_second_derivatives():
    q, k, v = (numbers(1, 1, 4, 3, seed=n).detach().double().requires_grad_() for n in range(3))
    torch.autograd.gradgradcheck(lambda *x: fovea.attention(*x), (q, k, v))


@pytest.mark.parametrize("name", ["focus log", "focus logsig of a learned strength", "focus hard", "focus log with multi-token",
                                  "focus hard with multi-token", "blocks", "strided", "fixed"])
def test_opcheck_passes(name):
    learned, ours, _ = CASES[name]
    opcheck(rows(), **ours(*learned), path="fused")


def test_opcheck_passes_with_statistics():
    opcheck(rows(), stats=True)


@pytest.mark.parametrize("path", ["fused", "reference"])
@pytest.mark.parametrize("name", ["multi-token", "focus hard", "focus log"])
def test_packed_documents_give_the_results_of_each_alone(name, path):
    lengths, all_q = (30, 53), rows(S, S)
    settings = {"multi-token": lambda a, b: {"multi_token": fovea.MultiToken(TAPS, TAPS)},
                "focus hard": lambda a, b: {"focus": fovea.Focus(None, MEMBERS[:, a:b], "hard", WINDOW, SINKS)},
                "focus log": lambda a, b: {"focus": fovea.Focus(SHARES[:, a:b], None, "log", WINDOW, SINKS)}}[name]
    labels = torch.cat([torch.full((n,), m) for m, n in enumerate(lengths)])[None]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    got = fovea.attention(*all_q, **settings(0, S), documents=fovea.Documents(labels), query_positions=positions,
                          key_positions=positions, path=path)
    for begin, end in ((0, 30), (30, S)):
        alone = fovea.attention(*(x[:, :, begin:end] for x in all_q), **settings(begin, end), path=path)
        torch.testing.assert_close(got[:, :, begin:end], alone, rtol=1e-5, atol=1e-5)


def test_a_call_beyond_the_kernels_takes_the_reference_unless_kernels_are_asked_for():
    q, k, v = rows()
    wide = fovea.MultiToken(before=torch.ones(H, 9, 3) / 27)
    torch.testing.assert_close(fovea.attention(q, k, v, multi_token=wide),
                               fovea.attention(q, k, v, multi_token=wide, path="reference"), rtol=0, atol=0)
    with pytest.raises(NotImplementedError, match="8 queries x 15 keys"):
        fovea.attention(q, k, v, multi_token=wide, path="fused")
    with pytest.raises(NotImplementedError, match="float32"):
        fovea.attention(q.double(), k.double(), v.double(), path="fused")
    with pytest.raises(ValueError, match="gate of log"):
        fovea.attention(q, k, v, focus=focus("soft", SHARES))
    with pytest.raises(ValueError, match="members"):
        fovea.attention(q, k, v, focus=fovea.Focus(SHARES, None, "hard"))
    with pytest.raises(ValueError, match="lambdas"):
        fovea.attention(q, k, v[:, ::2], differential=fovea.Differential(torch.ones(3, D)))
    for settings, text in (({"sparsity": fovea.Strided(0)}, "stride"), ({"sparsity": fovea.Fixed(4, 5)}, "summary"),
                           ({"sparsity": fovea.Fixed(4), "window": 3}, "window"), ({"sparsity": 3}, "fovea.Strided"),
                           ({"sparsity": fovea.Strided(3), "focus": focus("hard")}, "without focus"),
                           ({"sparsity": fovea.Strided(3), "sparq": fovea.Sparq(4)}, "sparq without sparsity")):
        with pytest.raises(ValueError, match=text):
            fovea.attention(q, k, v, **settings)
    with pytest.raises(ValueError, match="dilation"):
        fovea.attention(q, k, v, longformer=fovea.Longformer(4, (1, 2)))


def test_groups_are_balanced_by_sinkhorn_and_learn():
    x, weight, centroids = numbers(2, 200, 12), numbers(5, 12), numbers(4, 5, seed=3)
    scores = torch.nn.functional.linear(x, weight) @ centroids.T / 2.0
    potentials = fovea.sinkhorn_potentials(scores.flatten(0, 1), 50)
    shares, members = fovea.focus_groups(x, weight, centroids, potentials=potentials, temperature=2.0, top_k=2)
    torch.testing.assert_close(shares.mean((0, 1)), torch.full((4,), 0.25), rtol=1e-2, atol=1e-2)
    assert all(bin(m).count("1") == 2 for m in members.flatten().tolist()) and _call.most_groups(members, 4) == 2
    out = fovea.attention(*rows(), focus=focus("log", fovea.focus_groups(x[:, :S], weight, centroids, temperature=2.0)[0]))
    for gradient in torch.autograd.grad(out.square().sum(), (x, weight, centroids)):
        assert gradient.abs().max() > 0


def test_a_focus_module_is_plain_attention_within_its_window_and_learns_its_groups():
    torch.manual_seed(2)
    x = numbers(2, 40, 32)
    module = fovea.nn.FocusAttention(32, 4, groups=4, window=40, gate="hard")
    plain = fovea.nn.Attention(32, 4)
    plain.load_state_dict({n: y for n, y in module.state_dict().items() if "proj" in n})
    torch.testing.assert_close(module(x), plain(x), rtol=1e-4, atol=1e-5)
    module.gate, module.window = "log", 6
    module(x).square().sum().backward()
    assert module.centroids.grad.abs().max() > 0 and module.group_weight.grad.abs().max() > 0
    groups = (x, module.group_weight, module.centroids)
    balanced, others = (fovea.focus_groups(*groups, potentials=b)[0].mean((0, 1)) for b in (module.potentials, None))
    assert (balanced - 0.25).abs().max() < 0.7 * (others - 0.25).abs().max()
    before = module.potentials.clone()
    module.eval()(x)
    assert torch.equal(before, module.potentials)
