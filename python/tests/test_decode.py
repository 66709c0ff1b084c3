# fovea.decode: tokens that come one by one, or in pieces, have the attention of the whole sequence.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import fovea

B, H, G, S, D, K = 2, 4, 2, 61, 16, 6
PIECES = (23, 1, 1, 7, 1, 17, 1, 10)  # tokens of every call


def numbers(*shape, scale=1.0, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))) * scale


ROWS = [numbers(B, H, S, D), numbers(B, G, S, D, seed=1), numbers(B, G, S, D, seed=2)]
SHARES = torch.softmax(2 * numbers(B, S, K), -1)
MEMBERS = fovea.focus.top_members(SHARES, 2)
TAU = numbers(B, S).abs() + 0.5
TAPS, LATER = numbers(H, 3, 5, scale=0.3), numbers(H, 2, 3, scale=0.3)
LABELS = torch.tensor([[0] * 10 + [1] * 51, [0] * 20 + [3] * 41])
PLACES = torch.cat([torch.arange(30), torch.arange(31)])[None]
PAIRS = [(0, 0), (1, 1), (2, 2), (2, 0), (3, 1), (3, 3)]
GLOBALS = [numbers(*x.shape, seed=7) for x in ROWS]


def same(**settings):
    return lambda a, b: settings


def focus(gate):
    return lambda a, b: {"focus": fovea.Focus(SHARES[:, a:b], MEMBERS[:, a:b], gate, 9, 2)}


def longformer(a, b):
    return {"longformer": fovea.Longformer(5, (1, 1, 2, 3), 1, (20, 40), *(x[:, :, a:b] for x in GLOBALS))}


# name: settings of tokens a to b
CASES = {
    "plain": same(),
    "softcap, window and sinks": same(softcap=2.0, window=9, sinks=3, scale=0.4),
    "sink logit": same(sink_logit=numbers(H)),
    "a temperature a token": lambda a, b: {"temperature": TAU[:, a:b]},
    "alibi": same(bias=fovea.Alibi()),
    "distance bias": same(bias=fovea.DistanceBias(numbers(H, 12))),
    "packed documents": lambda a, b: {"documents": fovea.Documents(LABELS[:, a:b])},
    "positions": lambda a, b: {"documents": fovea.Documents((torch.arange(a, b) >= 30).long()[None]),
                               "positions": PLACES[:, a:b], "window": 9, "sinks": 2},
    "multi-token": same(multi_token=fovea.MultiToken(TAPS, LATER, renormalise=True)),
    "multi-token, eq4": same(multi_token=fovea.MultiToken(TAPS, equation="eq4")),
    "multi-token and a temperature": lambda a, b: {"multi_token": fovea.MultiToken(TAPS), "temperature": TAU[:, a:b]},
    "multi-token and documents": lambda a, b: {"multi_token": fovea.MultiToken(TAPS), "documents": fovea.Documents(LABELS[:, a:b])},
    "head mix": same(head_mix=fovea.HeadMix(numbers(2, 2, 2), numbers(1, 4, 4))),
    "focus log": focus("log"),
    "focus logsig": focus("logsig"),
    "focus straight through": focus("straight_through"),
    "focus hard": focus("hard"),
    "focus hard and multi-token": lambda a, b: focus("hard")(a, b) | {"multi_token": fovea.MultiToken(TAPS)},
    "longformer": longformer,
    "longformer, no projections": same(longformer=fovea.Longformer(7, globals=3)),
    "blocks": same(blocks=fovea.Blocks(16, PAIRS)),
    "strided": same(sparsity=fovea.Strided(7), window=4, sinks=1),
    "fixed": same(sparsity=fovea.Fixed(8, 2)),
    "t5": same(bias=fovea.t5_bias(numbers(8, H), max_distance=20)),
}


def whole(rows, settings):
    given = dict(settings)
    if "positions" in given:
        given["query_positions"] = given["key_positions"] = given.pop("positions")
    return fovea.attention(*rows, **given)


def decoded(rows, settings, cache, pieces=PIECES):
    parts, begin = [], 0
    for n in pieces:
        parts.append(fovea.decode(*(x[:, :, begin:begin + n] for x in rows), cache, **settings(begin, begin + n)))
        begin += n
    return torch.cat(parts, 2)


@pytest.mark.parametrize("name", CASES)
def test_pieces_have_the_attention_of_the_whole_sequence(name):
    cache = fovea.Cache()
    got = decoded(ROWS, CASES[name], cache)
    torch.testing.assert_close(got, whole(ROWS, CASES[name](0, S)), rtol=1e-4, atol=1e-5)
    assert len(cache) == S and torch.equal(cache.keys, ROWS[1]) and torch.equal(cache.values, ROWS[2])


@pytest.mark.parametrize("name", ["plain", "multi-token and a temperature", "focus straight through"])
def test_one_token_at_a_time_and_the_reference_agree(name):
    one, other = (decoded(ROWS, lambda a, b: CASES[name](a, b) | {"path": path}, fovea.Cache(8), [1] * S)
                  for path in ("automatic", "reference"))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_differential_decodes():
    rows = [ROWS[0], ROWS[1], ROWS[2][:, ::2]]
    settings = {"differential": fovea.Differential(numbers(4, D, scale=0.3), 3)}
    torch.testing.assert_close(decoded(rows, same(**settings), fovea.Cache()), whole(rows, settings), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_decode_in_their_dtype(dtype):
    rows = [x.to(dtype) for x in ROWS]
    got = decoded(rows, same(window=20), fovea.Cache())
    assert got.dtype == dtype
    torch.testing.assert_close(got, whole(rows, {"window": 20}), rtol=2e-2, atol=2e-2)


def test_a_few_queries_of_padded_rows_see_their_own_tokens_alone():
    labels = torch.zeros(B, S, dtype=torch.long)
    labels[1, :13] = -1
    own = fovea.Documents(labels[:, -2:], labels)
    got, lse = fovea.attention(ROWS[0][:, :, -2:], *ROWS[1:], documents=own, window=30, sinks=4, return_lse=True)
    for b, first in ((0, 0), (1, 13)):
        places = torch.arange(first, S)[None]
        alone, own_lse = fovea.attention(
            ROWS[0][b : b + 1, :, -2:], *(x[b : b + 1, :, first:] for x in ROWS[1:]), window=30, sinks=4, return_lse=True,
            query_positions=places[:, -2:], key_positions=places, path="reference")
        torch.testing.assert_close(got[b : b + 1], alone, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(lse[b : b + 1], own_lse, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [
    {"causal": False}, {"causal": False, "window": 9, "sinks": 2}, {"window": 3, "sink_logit": numbers(H)},
    {"query_positions": torch.tensor([[-4, 7, 70]]), "window": 5, "sinks": 2},
    {"query_positions": torch.tensor([[-4, 7, 70]]), "bias": fovea.Alibi(), "temperature": TAU[:, :3]},
    {"query_positions": torch.tensor([[2, 7, 70]]), "key_positions": torch.arange(S)[None] * 2, "window": 9},
    {"documents": fovea.Documents(torch.tensor([[0, 0, 0], [3, 3, 3]]), LABELS)},
    {"documents": fovea.Documents(torch.tensor([[0, 1, 0], [3, 0, 3]]), LABELS)},
    {"documents": fovea.Documents(torch.full((1, 3), 9), LABELS), "sink_logit": numbers(H)},
    {"key_positions": torch.arange(S).flip(0)[None]}], ids=range(10))
def test_a_few_queries_agree_with_the_reference_wherever_they_stand(settings):
    got, lse = fovea.attention(ROWS[0][:, :, -3:], *ROWS[1:], **settings, return_lse=True, path="fused")
    expected, own_lse = fovea.attention(ROWS[0][:, :, -3:], *ROWS[1:], **settings, return_lse=True, path="reference")
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse, own_lse, rtol=1e-4, atol=1e-5)


def test_a_truncated_and_reordered_cache_goes_on_as_another_text():
    cache, settings = fovea.Cache(), CASES["multi-token and a temperature"]
    decoded(ROWS, settings, cache)
    cache.truncate(40)
    swap = torch.tensor([1, 0])
    cache.reorder(swap)
    after = [x.flip(0)[:, :, 40:].contiguous() * 0.5 for x in ROWS]
    tau = TAU[swap]
    got = fovea.decode(*after, cache, multi_token=fovea.MultiToken(TAPS), temperature=tau[:, 40:])
    rows = [torch.cat([x[swap][:, :, :40], y], 2) for x, y in zip(ROWS, after)]
    expected = fovea.attention(*rows, multi_token=fovea.MultiToken(TAPS), temperature=tau)[:, :, 40:]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_sums_and_statistics_are_those_of_the_new_tokens():
    cache = fovea.Cache()
    decoded([x[:, :, :50] for x in ROWS], same(), cache, (50,))
    out, lse, stats = fovea.decode(*(x[:, :, 50:] for x in ROWS), cache, return_lse=True, stats=True)
    expected = fovea.attention(*ROWS, return_lse=True, stats=True)
    torch.testing.assert_close(out, expected[0][:, :, 50:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse, expected[1][:, :, 50:], rtol=1e-4, atol=1e-5)
    for x, y in zip(stats, expected[2]):
        torch.testing.assert_close(x, y[:, :, 50:], rtol=1e-4, atol=1e-5)


def test_a_refused_call_leaves_the_cache_as_it_was():
    cache = fovea.Cache()
    decoded([x[:, :, :50] for x in ROWS], CASES["focus log"], cache, (50,))
    new = [x[:, :, 50:] for x in ROWS]
    for settings, text in (({}, "assignment no more"), (focus("log")(0, 50), "of the new tokens"),
                           (focus("log")(50, S) | {"temperature": -1.0}, "above 0"),
                           (focus("log")(50, S) | {"multi_token": fovea.MultiToken(TAPS)}, "q for the first time")):
        with pytest.raises(ValueError, match=text):
            fovea.decode(*new, cache, **settings)
        assert len(cache) == 50
    with pytest.raises(ValueError, match="queries"):
        fovea.decode(new[0][:, :, :1], *new[1:], cache)
    with pytest.raises(ValueError, match="length of 0 to 50"):
        cache.truncate(51)
    torch.testing.assert_close(fovea.decode(*new, cache, **focus("log")(50, S)),
                               whole(ROWS, focus("log")(0, S))[:, :, 50:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("module", [fovea.nn.Attention, fovea.nn.MultiTokenAttention, fovea.nn.FocusAttention])
def test_modules_decode_with_a_cache(module):
    torch.manual_seed(3)
    layer, x, cache = module(32, 4, kv_heads=2, temperature=0.7).eval(), numbers(B, 40, 32), fovea.Cache()
    with torch.no_grad():
        parts = [layer(x[:, a:b], cache=cache) for a, b in ((0, 20), (20, 21), (21, 40))]
        torch.testing.assert_close(torch.cat(parts, 1), layer(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="causal"):
        layer(x, cache=cache, causal=False)
