# Position biases by T5's buckets, and functions of one's own as in FlexAttention.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import eager
import pytest
import torch
from eager import attend, numbers

import fovea

B, H, G, T, S, D = 2, 4, 2, 70, 83, 16
DISTANCE = torch.arange(S - T, S)[:, None] - torch.arange(S)[None]


def rows(dtype=torch.float32):
    return eager.rows(B, H, G, T, S, D, dtype)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("buckets, most", [(32, 128), (16, 40), (64, 512)])
def test_buckets_are_those_of_t5_in_transformers(causal, buckets, most):
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    distances = torch.arange(-2 * most, 2 * most + 1)
    table = torch.arange(buckets).double()[:, None]
    bias = fovea.t5_bias(table, max_distance=most, causal=causal)
    got = bias.table[0, (distances - bias.first).clamp(0, bias.table.shape[1] - 1)]
    expected = modeling.T5Attention._relative_position_bucket(-distances, not causal, buckets, most)
    assert torch.equal(got.long(), expected)


def test_the_buckets_of_the_paper_are_these():
    bias = fovea.t5_bias(torch.arange(32.0)[:, None])
    assert [int(bias.table[0, n]) for n in (0, 15, 16, 32, 64, 127, 128)] == [0, 15, 16, 21, 26, 31, 31]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype, path, tolerance", [(torch.float32, "fused", 1e-4), (torch.float64, "reference", 1e-10)])
def test_the_bias_and_the_gradient_of_its_table_are_those_of_plain_torch(causal, dtype, path, tolerance):
    given = rows() + [numbers(12, H)]
    tensors, doubles = ([x.detach().to(kind).requires_grad_() for x in given] for kind in (dtype, torch.float64))
    got = fovea.attention(*tensors[:3], causal=causal, bias=fovea.t5_bias(tensors[3], max_distance=30, causal=causal), path=path)
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    of = modeling.T5Attention._relative_position_bucket(-DISTANCE, not causal, 12, 30)
    expected, _ = attend(*doubles[:3], causal=causal, bias=lambda n: doubles[3][of].permute(2, 0, 1)[None])
    weights = numbers(*got.shape, seed=9).detach()
    grads, truth = (torch.autograd.grad((x * weights).sum(), leaves) for x, leaves in ((got, tensors), (expected, doubles)))
    for x, y in zip((got, *grads), (expected, *truth)):
        torch.testing.assert_close(x.double(), y, rtol=10 * tolerance, atol=10 * tolerance * max(1.0, float(y.detach().abs().max())))


def test_a_compiled_call_has_the_bias_of_t5():
    torch._dynamo.reset()
    table = numbers(32, H)
    function = torch.compile(lambda q, k, v, x: fovea.attention(q, k, v, bias=fovea.t5_bias(x)), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(function(*rows(), table), fovea.attention(*rows(), bias=fovea.t5_bias(table)))


def test_tables_that_have_no_buckets_are_refused():
    for table, settings, text in ((torch.ones(31, 2), {}, "even number"), (torch.ones(32, 2), {"max_distance": 16}, "above the 16"),
                                  (torch.ones(18, 2), {"causal": False}, "multiple of 4"), (torch.ones(4), {}, "table")):
        with pytest.raises(ValueError, match=text):
            fovea.t5_bias(table, **settings)


SLOPES = numbers(H)
# name: fovea's score_mod and mask_mod, with learned slopes
FUNCTIONS = {
    "a bias of one's own": (lambda x: lambda s, b, h, i, j: s + x[h] * (i - j).sin(), None),
    "a factor of distant pairs": (lambda x: lambda s, b, h, i, j: torch.where(i - j < 9, s, s * x[h].sigmoid()), None),
    "every third key": (None, lambda b, h, i, j: ((i - j) % 3 == 0) | (b == 1)),
    "both": (lambda x: lambda s, b, h, i, j: s + x[h], lambda b, h, i, j: (i >= j) & (h % 2 == j % 2) | (i == j)),
}


def functions(name, x):
    score, mask = FUNCTIONS[name]
    return {"score_mod": None if score is None else score(x), "mask_mod": mask}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_ones_own_give_the_results_and_gradients_of_plain_torch(name):
    given = rows() + [SLOPES]
    tensors, doubles = ([x.detach().to(kind).requires_grad_() for x in given] for kind in (torch.float32, torch.float64))
    b, h = torch.arange(B)[:, None, None, None], torch.arange(H)[:, None, None]
    i, j = torch.arange(S - T, S)[:, None], torch.arange(S)
    of = functions(name, doubles[3])
    score, mask = of["score_mod"], of["mask_mod"]
    got = fovea.attention(*tensors[:3], **functions(name, tensors[3]), softcap=3.0)
    expected, _ = attend(*doubles[:3], softcap=3.0, gate=None if score is None else lambda s: score(s, b, h, i, j),
                         visible=None if mask is None else mask(b, h, i, j))
    weights = numbers(*got.shape, seed=9).detach()
    grads, truth = (torch.autograd.grad((x * weights).sum(), leaves, allow_unused=True)
                    for x, leaves in ((got, tensors), (expected, doubles)))
    for x, y in zip((got, *grads), (expected, *truth)):
        assert (x is None) == (y is None)
        if y is not None:
            torch.testing.assert_close(x.double(), y, rtol=1e-3, atol=1e-3 * max(1.0, float(y.detach().abs().max())))


@torch.no_grad()
def test_functions_of_flex_attention_have_its_results():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    q, k, v = (numbers(B, H, S, D, seed=n).detach() for n in range(3))

    def score(s, b, h, i, j):
        return s - SLOPES[h].abs() * (i - j)

    def mask(b, h, i, j):
        return (i >= j) & (i - j < 20)

    block_mask = flex.create_block_mask(mask, None, None, S, S, device="cpu")
    expected = flex.flex_attention(q, k, v, score_mod=score, block_mask=block_mask)
    torch.testing.assert_close(fovea.attention(q, k, v, score_mod=score, mask_mod=mask), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_functions_see_the_places_of_tokens_and_decode():
    q, k, v = (numbers(B, H, S, D, seed=n) for n in range(3))
    settings = {"score_mod": lambda s, b, h, i, j: s + SLOPES[h] * (i - j).sin(), "mask_mod": lambda b, h, i, j: (i + j) % 5 != 1}
    whole = fovea.attention(q, k, v, **settings)
    cache, parts = fovea.Cache(), []
    for begin, end in ((0, 30), (30, 31), (31, S)):
        parts.append(fovea.decode(*(x[:, :, begin:end] for x in (q, k, v)), cache, **settings))
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-4, atol=1e-5)
    places = torch.cat([torch.arange(40), torch.arange(S - 40)])[None]
    labels = torch.tensor([[0] * 40 + [1] * (S - 40)])
    packed = fovea.attention(q, k, v, **settings, documents=fovea.Documents(labels), query_positions=places, key_positions=places)
    alone = fovea.attention(*(x[:, :, 40:] for x in (q, k, v)), **settings)
    torch.testing.assert_close(packed[:, :, 40:], alone, rtol=1e-4, atol=1e-5)


def test_functions_compile_and_are_refused_where_no_logits_are():
    torch._dynamo.reset()
    function = torch.compile(lambda q, k, v, x: fovea.attention(q, k, v, **functions("both", x)), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(function(*rows(), SLOPES), fovea.attention(*rows(), **functions("both", SLOPES)), rtol=1e-4, atol=1e-5)
    with pytest.raises(NotImplementedError, match="functions of yours"):
        fovea.attention(*rows(), **functions("both", SLOPES), path="fused")
    with pytest.raises(ValueError, match="sparq without mask_mod"):
        fovea.attention(*rows(), sparq=fovea.Sparq(4), mask_mod=FUNCTIONS["both"][1])
