# Dropout of weights, by the kernels and by the reference. The draws themselves are compared with golden cases and with the
# program in test_cases.py; here the factors of a call are read from its result for values that are the identity.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import eager
import pytest
import torch
from eager import attend, numbers
from operator_calls import opcheck

import fovea

B, H, G, T, S, D = 2, 4, 2, 56, 64, 16
RATE = 0.3
DROP = fovea.Dropout(RATE, seed=11, layer=2)


def rows(dtype=torch.float32):
    return eager.rows(B, H, G, T, S, D, dtype)


def factors(drop=DROP):
    """1 / (1 - rate) or 0 of all weights: each is 1 / S of queries that see all keys alike."""
    q, k = torch.zeros(B, H, T, D), torch.zeros(B, G, S, D)
    values = torch.eye(S).expand(B, G, S, S).contiguous()
    return fovea.attention(q, k, values, causal=False, dropout=drop, path="fused") * S


MEMBERS = fovea.focus.top_members(torch.softmax(2.0 * numbers(B, S, 6).detach(), -1), 2)
SHARES = torch.softmax(2.0 * numbers(B, S, 6).detach(), -1).requires_grad_()
DISTANCE = torch.arange(S - T, S)[:, None] - torch.arange(S)[None]
LOCAL = (DISTANCE < 9) | (torch.arange(S) < 2)[None]
LABELS = torch.tensor([[0] * 20 + [1] * 44, [0] * 31 + [3] * 33])
# name: learned tensors, settings of fovea.attention, settings of attend(); both of the learned tensors
CASES = {
    "causal": ([], lambda: {}, lambda: {}),
    "bidirectional": ([], lambda: {"causal": False}, lambda: {"causal": False}),
    "soft-cap, window and sinks": ([], lambda: {"softcap": 2.0, "window": 9, "sinks": 3},
                                   lambda: {"softcap": 2.0, "window": 9, "sinks": 3}),
    "strided": ([], lambda: {"sparsity": fovea.Strided(7), "window": 4},
                lambda: {"visible": (DISTANCE < 4) | (DISTANCE % 7 == 0)}),
    "documents and sink logit": (
        [numbers(H)], lambda x: {"documents": fovea.Documents(LABELS[:, -T:], LABELS), "sink_logit": x},
        lambda x: {"documents": LABELS, "sink_logit": x}),
    "distance bias": ([numbers(H, 12)], lambda x: {"bias": fovea.DistanceBias(x)},
                      lambda x: {"bias": lambda n: x[:, n.clamp(0, 11)][None]}),
    "multi-token": ([numbers(H, 3, 5, scale=0.3), numbers(H, 2, 3, scale=0.3)],
                    lambda x, y: {"multi_token": fovea.MultiToken(before=x, after=y)}, lambda x, y: {"before": x, "after": y}),
    "head mix": ([numbers(2, 2, 2), numbers(1, 4, 4)], lambda x, y: {"head_mix": fovea.HeadMix(before=x, after=y)},
                 lambda x, y: {"mix_before": x, "mix_after": y}),
    "soft Focus": ([SHARES], lambda g: {"focus": fovea.Focus(g, None, "log", 9, 2)},
                   lambda g: {"gate": lambda s: torch.where(LOCAL, s, s + torch.log(
                       (g[:, S - T:] @ g.transpose(1, 2))[:, None] + 1e-6))}),
    "hard Focus": ([], lambda: {"focus": fovea.Focus(None, MEMBERS, "hard", 9, 2)},
                   lambda: {"visible": LOCAL | ((MEMBERS[:, S - T:, None] & MEMBERS[:, None]) != 0)[:, None]}),
}


def assert_close(name, dtype, path, tolerance):
    learned, ours, theirs = CASES[name]
    tensors, doubles = ([x.detach().to(kind).requires_grad_() for x in rows() + learned] for kind in (dtype, torch.float64))
    got = fovea.attention(*tensors[:3], **ours(*tensors[3:]), dropout=DROP, return_lse=True, path=path)
    expected = attend(*doubles[:3], **theirs(*doubles[3:]), factors=factors().double())
    weights = [numbers(*x.shape, seed=9).detach() for x in got]
    grads, truth = (torch.autograd.grad(sum((x * w).sum() for x, w in zip(results, weights)), leaves)
                    for results, leaves in ((got, tensors), (expected, doubles)))
    for x, y in zip((*got, *grads), (*expected, *truth)):
        torch.testing.assert_close(x.double(), y, rtol=10 * tolerance, atol=10 * tolerance * max(1.0, float(y.detach().abs().max())))


@pytest.mark.parametrize("name", CASES)
def test_kernels_give_the_results_and_gradients_of_weights_times_factors(name):
    assert_close(name, torch.float32, "fused", 1e-4)


@pytest.mark.parametrize("name", CASES)
def test_the_reference_gives_them_in_float64(name):
    assert_close(name, torch.float64, "reference", 1e-7)  # the factors come from float32


def test_a_factor_is_0_or_the_rest_of_the_rate_and_as_many_are_0():
    found = factors()
    kept = found != 0
    torch.testing.assert_close(found[kept], torch.full_like(found[kept], 1 / (1 - RATE)))
    deviation = (RATE * (1 - RATE) / found.numel()) ** 0.5
    assert abs(1 - float(kept.float().mean()) - RATE) < 5 * deviation
    for axis in (0, 1):  # rows of the batch, and heads, draw their own
        assert not torch.equal(kept.select(axis, 0), kept.select(axis, 1))
    for other in (fovea.Dropout(RATE, 12, 2), fovea.Dropout(RATE, 11, 3)):
        assert not torch.equal(kept, factors(other) != 0)
    assert torch.equal(kept, factors(fovea.Dropout(RATE, torch.tensor(11), 2)) != 0)


def test_last_queries_drop_what_they_drop_in_the_whole_text():
    q, k, v = rows()
    torch.testing.assert_close(fovea.attention(q[:, :, -5:], k, v, dropout=DROP), fovea.attention(q, k, v, dropout=DROP)[:, :, -5:])


def test_a_rate_alone_draws_its_seed_from_torch():
    q, k, v = rows()
    torch.manual_seed(4)
    first, second = (fovea.attention(q, k, v, dropout=0.2) for _ in range(2))
    torch.manual_seed(4)
    assert torch.equal(first, fovea.attention(q, k, v, dropout=0.2)) and not torch.equal(first, second)
    torch.testing.assert_close(fovea.attention(q, k, v, dropout=0.0), fovea.attention(q, k, v), rtol=0, atol=0)


def test_differential_attention_drops_weights_of_both_maps():
    q, k, v = rows()
    lambdas = numbers(4, D, scale=0.3)
    got = [fovea.attention(q, k, v[:, ::2], differential=fovea.Differential(lambdas), dropout=DROP, path=path)
           for path in ("fused", "reference")]
    torch.testing.assert_close(*got, rtol=1e-4, atol=1e-4)
    assert (got[0] - fovea.attention(q, k, v[:, ::2], differential=fovea.Differential(lambdas))).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_and_autocast_drop_the_same(dtype):
    exact = fovea.attention(*rows(), dropout=DROP)
    got = fovea.attention(*rows(dtype), dropout=DROP)
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), exact, rtol=5e-2, atol=5e-2)
    with torch.autocast("cpu", dtype=dtype):
        torch.testing.assert_close(fovea.attention(*rows(), dropout=DROP), got, rtol=5e-2, atol=5e-2)


def test_statistics_are_those_of_all_weights():
    (_, dropped), (_, plain) = (fovea.attention(*rows(), stats=True, path="fused", **x) for x in ({"dropout": DROP}, {}))
    for x, y in zip(dropped, plain):
        torch.testing.assert_close(x, y)


def test_one_thread_and_two_give_the_same_bits():
    before, results = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        q, k, v = rows()
        out = fovea.attention(q, k, v, dropout=DROP)
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    torch.set_num_threads(before)
    assert all(torch.equal(x, y) for x, y in zip(*results))


@pytest.mark.parametrize("name", ["causal", "multi-token", "hard Focus"])
def test_opcheck_passes(name):
    learned, ours, _ = CASES[name]
    opcheck(rows(), **ours(*learned), dropout=DROP, path="fused")


def test_gradcheck_passes_in_float64():
    tensors = [numbers(1, 2, n, 4, seed=n).detach().double().requires_grad_() for n in (5, 7, 7)]
    torch.autograd.gradcheck(lambda *x: fovea.attention(*x, dropout=DROP), tensors)


def test_a_compiled_step_drops_by_its_seed_and_draws_another_each_time():
    torch._dynamo.reset()
    function = torch.compile(lambda q, k, v, seed: fovea.attention(q, k, v, dropout=fovea.Dropout(RATE, seed)), fullgraph=True,
                             backend="aot_eager")
    for seed in (torch.tensor([3]), torch.tensor([5])):
        tensors = rows()
        expected = fovea.attention(*tensors, dropout=fovea.Dropout(RATE, seed))
        got = function(*tensors, seed)
        torch.testing.assert_close(got, expected)
        for x, y in zip(*(torch.autograd.grad(out.square().sum(), tensors) for out in (got, expected))):
            torch.testing.assert_close(x, y)
    drawing = torch.compile(lambda q, k, v: fovea.attention(q, k, v, dropout=RATE), fullgraph=True, backend="aot_eager")
    assert not torch.equal(drawing(*rows()), drawing(*rows()))


def test_activation_checkpointing_drops_the_same_again():
    q, k, v = rows()
    function = lambda *x: fovea.attention(*x, dropout=RATE).square().sum()  # noqa: E731
    grads = []
    for compute in (lambda *x: torch.utils.checkpoint.checkpoint(function, *x, use_reentrant=False), function):
        torch.manual_seed(6)
        grads.append(torch.autograd.grad(compute(q, k, v), (q, k, v)))
    assert all(torch.equal(x, y) for x, y in zip(*grads))


def test_a_module_drops_weights_in_training_alone():
    module, plain = fovea.nn.Attention(32, 4, dropout=0.5), fovea.nn.Attention(32, 4)
    plain.load_state_dict(module.state_dict())
    x = numbers(2, 19, 32)
    assert (module(x) - plain(x)).abs().max() > 1e-2
    with pytest.raises(ValueError, match="eval"):
        module(x, cache=fovea.Cache())
    module.eval()
    assert torch.equal(module(x), plain(x))
    assert torch.equal(module(x, cache=fovea.Cache()), plain(x, cache=fovea.Cache()))


def test_what_does_not_go_with_dropout_is_computed_by_the_reference_or_refused():
    q, k, v = rows()
    blocks, wide = fovea.Blocks(16, [(0, 0), (1, 0), (2, 2), (3, 1)]), fovea.Longformer(5, 2)
    for settings, text in (({"blocks": blocks}, "dropout"), ({"longformer": wide}, "dropout counts")):
        with pytest.raises(NotImplementedError, match=text):
            fovea.attention(q, k, v, **settings, dropout=DROP, path="fused")
        got = fovea.attention(q, k, v, **settings, dropout=DROP)
        torch.testing.assert_close(got, fovea.attention(q, k, v, **settings, dropout=DROP, path="reference"), rtol=0, atol=0)
    for dropout, text in ((1.0, "below 1"), (-0.1, "at least 0"), (fovea.Dropout(0.1, -1), "dropout.seed"),
                          (fovea.Dropout(0.1, torch.ones(1)), "int64"), (fovea.Dropout(0.1, layer=-1), "dropout.layer")):
        with pytest.raises(ValueError, match=text):
            fovea.attention(q, k, v, dropout=dropout)
    with pytest.raises(ValueError, match="performer without dropout"):
        fovea.attention(q, k, v, performer=fovea.Performer(fovea.performer_features(8, D)), dropout=0.1)
