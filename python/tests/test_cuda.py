# fovea.attention of tensors on a GPU: every setting, in bfloat16 by the CUDA kernels, against plain PyTorch in float64.
#
# The truth is computed on the CPU from the same bfloat16 numbers. Plain PyTorch in bfloat16 is the measure of errors: ours
# are at most twice as large.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from eager import attend

import fovea
from fovea import _call, _operator

if not torch.cuda.is_available():
    pytest.skip("not run: no GPU that torch can use", allow_module_level=True)

B, H, G, T, D, K = 2, 4, 2, 150, 64, 5
WINDOW, SINKS = 20, 2
DEVICE = torch.device("cuda")


def numbers(*shape, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator) * scale


def rows(queries=T, width=D, scale=1.0):
    shapes = (H, queries), (G, T), (G, T)
    return [numbers(B, heads, tokens, width, scale=scale, seed=n).bfloat16() for n, (heads, tokens) in enumerate(shapes)]


def distances(queries=T):
    return torch.arange(T - queries, T)[:, None] - torch.arange(T)[None]


LABELS = torch.tensor([[0] * 40 + [1] * 110, [0] * 90 + [3] * 60])
LOCAL = (distances() < WINDOW) | (torch.arange(T) < SINKS)[None]
SHARES = torch.softmax(2.0 * numbers(B, T, K), -1)
MEMBERS = fovea.focus.top_members(SHARES, 2)
ONE_GROUP = fovea.focus.top_members(SHARES, 1)
TAPS = numbers(H, 6, 11, scale=0.2)
SLOPES = [2.0 ** (-2 * (h + 1)) for h in range(H)]


def focus(gate, shares=None, members=MEMBERS, **settings):
    return fovea.Focus(shares, members.to(DEVICE), gate, WINDOW, SINKS, **settings)


def share_a_group(members):
    return ((members[:, :, None] & members[:, None, :]) != 0)[:, None]


def gated(formula):
    def settings(g, *x):
        agreement = (g @ g.transpose(1, 2))[:, None]
        return {"gate": lambda s: torch.where(LOCAL, s, formula(s, agreement.to(s.dtype), *x))}
    return settings


def straight_through(s, a):
    return s + torch.log(share_a_group(MEMBERS).to(s.dtype) + a - a.detach() + 1e-6)


# name: learned tensors, settings of fovea.attention, settings of attend(); both of the learned tensors.
CASES = {
    "causal": ([], lambda: {}, lambda: {}),
    "bidirectional": ([], lambda: {"causal": False}, lambda: {"causal": False}),
    "softcap": ([], lambda: {"softcap": 2.0, "scale": 0.2}, lambda: {"softcap": 2.0, "scale": 0.2}),
    "window and sinks": ([], lambda: {"window": 19, "sinks": 3}, lambda: {"window": 19, "sinks": 3}),
    "documents": ([], lambda: {"documents": fovea.Documents(LABELS.to(DEVICE))}, lambda: {"documents": LABELS}),
    "documents on the CPU": ([], lambda: {"documents": fovea.Documents(LABELS)}, lambda: {"documents": LABELS}),
    "temperature": ([numbers(B, T).abs() + 0.5], lambda x: {"temperature": x}, lambda x: {"tau": x}),
    "sink logit": ([numbers(H)], lambda x: {"sink_logit": x}, lambda x: {"sink_logit": x}),
    "alibi": ([], lambda: {"bias": fovea.Alibi()},
              lambda: {"bias": lambda n: -torch.tensor(SLOPES).bfloat16()[None, :, None, None] * n}),
    "temperature, sink logit and window": (
        [numbers(B, T).abs() + 0.5, numbers(H)], lambda x, y: {"temperature": x, "sink_logit": y, "window": 33},
        lambda x, y: {"tau": x, "sink_logit": y, "window": 33}),
    "focus log": ([SHARES], lambda g: {"focus": focus("log", g)}, gated(lambda s, a: s + torch.log(a + 1e-6))),
    "focus identity": ([SHARES], lambda g: {"focus": focus("identity", g)},
                       gated(lambda s, a: s + torch.log(K * a + 1e-6))),
    "focus mul": ([SHARES], lambda g: {"focus": focus("mul", g, strength=4.0)},
                  gated(lambda s, a: s * torch.sigmoid(4.0 * a))),
    "focus logsig": ([SHARES], lambda g: {"focus": focus("logsig", g, strength=4.0)},
                     gated(lambda s, a: s + torch.nn.functional.logsigmoid(4.0 * (a - 0.5)))),
    "focus logsig of a learned strength": (
        [SHARES, torch.tensor(3.0)], lambda g, x: {"focus": focus("logsig", g, strength=x, threshold=0.3)},
        gated(lambda s, a, x: s + torch.nn.functional.logsigmoid(x * (a - 0.3)))),
    "focus straight through": ([SHARES], lambda g: {"focus": focus("straight_through", g)}, gated(straight_through)),
    "focus hard": ([], lambda: {"focus": focus("hard", SHARES.to(DEVICE), top_k=2)},
                   lambda: {"visible": share_a_group(MEMBERS) | LOCAL}),
    "focus hard, one group": ([], lambda: {"focus": focus("hard", SHARES.to(DEVICE), ONE_GROUP, top_k=1)},
                              lambda: {"visible": share_a_group(ONE_GROUP) | LOCAL}),
    "focus hard, groups counted": ([], lambda: {"focus": focus("hard")}, lambda: {"visible": share_a_group(MEMBERS) | LOCAL}),
    "convolution before": ([TAPS], lambda x: {"multi_token": fovea.MultiToken(before=x)}, lambda x: {"before": x}),
    "convolution after": ([TAPS], lambda x: {"multi_token": fovea.MultiToken(after=x)}, lambda x: {"after": x}),
    "head mixes": ([numbers(2, 2, 2), numbers(1, 4, 4)], lambda x, y: {"head_mix": fovea.HeadMix(x, y)},
                   lambda x, y: {"mix_before": x, "mix_after": y}),
    "convolutions and mixes of documents": (
        [TAPS, TAPS[:, :3, :5] + 0.1, numbers(2, 2, 2)],
        lambda x, y, z: {"multi_token": fovea.MultiToken(x, y), "head_mix": fovea.HeadMix(after=z),
                         "documents": fovea.Documents(LABELS.to(DEVICE))},
        lambda x, y, z: {"before": x, "after": y, "mix_after": z, "documents": LABELS}),
    "longformer": ([], lambda: {"longformer": fovea.Longformer(30, globals=3)},
                   lambda: {"visible": (distances() <= 30) | (torch.arange(T) < 3)[None]}),
}
# These the kernels lack: plain operations compute them on the GPU. (Slopes and distances are exact in bfloat16.)
LACKING = {
    "distance bias": ([numbers(H, 12)], lambda x: {"bias": fovea.DistanceBias(x)},
                      lambda x: {"bias": lambda n: x[:, n.clamp(0, 11)][None]}),
    "renormalised": ([TAPS.abs()], lambda x: {"multi_token": fovea.MultiToken(after=x, renormalise=True)}, None),
    "focus log with multi-token": (
        [SHARES, TAPS], lambda g, x: {"focus": focus("log", g), "multi_token": fovea.MultiToken(x)},
        lambda g, x: gated(lambda s, a: s + torch.log(a + 1e-6))(g) | {"before": x}),
    "blocks": ([], lambda: {"blocks": fovea.Blocks(64, [(0, 0), (1, 0), (1, 1), (2, 0), (2, 2)])}, None),
    "dropout": ([], lambda: {"dropout": fovea.Dropout(0.2, 5)}, None),
    "strided": ([], lambda: {"sparsity": fovea.Strided(7), "window": 9}, None),
    "a function of one's own": ([], lambda: {"score_mod": lambda s, b, h, i, j: s - (i - j) / 64}, None),
    "dilated longformer": ([], lambda: {"longformer": fovea.Longformer(5, (1, 1, 2, 3), 1, (20, 40))}, None),
    "documents that are no runs": ([], lambda: {"documents": fovea.Documents((torch.arange(T) % 2).to(DEVICE).expand(B, T))},
                                   lambda: {"documents": (torch.arange(T) % 2).expand(B, T)}),
}


def kernels_or_skip(tensors, settings):
    """Settings of which this build has no CUDA kernel (a build of a few forms) are not run."""
    names = {"softcap": "soft_cap"}
    given = dict.fromkeys(("scale", *_call._MECHANISMS)) | {"causal": True, "soft_cap": 0.0, "window": 0, "sinks": 0, "stats": False}
    given |= {names.get(name, name): x for name, x in settings.items() if name != "longformer"}
    why = _call.why_not_kernels(_call.operands(*tensors, given)) or ""
    if "this build" in why or "head sizes" in why or "mix heads of sizes" in why:
        pytest.skip(why)


def with_gradients(compute, tensors, weights=None):
    """Results of compute(*tensors), and gradients of all tensors, in float64 on the CPU."""
    tensors = [x.detach().requires_grad_() for x in tensors]
    got = compute(*tensors)
    seen = [torch.isfinite(x) for x in got]
    loss = sum((x[s].double() * numbers(*x.shape, seed=9).to(x.device)[s]).sum() for x, s in zip(got, seen))
    grads = torch.autograd.grad(loss, tensors)
    return [torch.nan_to_num(x.detach().double(), neginf=0.0).cpu() for x in (*got, *grads)]


def errors(found, truth):
    return [float((x - y).norm() / y.norm().clamp(min=1e-6)) for x, y in zip(found, truth)]


def check_twice_plain(name, cases, tensors, path):
    learned, ours, theirs = cases[name]
    on_device = [x.to(DEVICE) for x in tensors + learned]
    if path == "fused":
        kernels_or_skip(on_device[:3], ours(*on_device[3:]))
    got = with_gradients(lambda *x: fovea.attention(*x[:3], **ours(*x[3:]), return_lse=True, path=path), on_device)
    if theirs is None:  # the reference on the CPU is the truth; test_mechanisms.py compares it with formulas
        def plain(*x):
            return fovea.attention(*x[:3], **on_cpu(ours(*x[3:])), return_lse=True, path="reference")
    else:
        def plain(*x):
            return of_each_document(*x[:3], **theirs(*x[3:]))
    truth = with_gradients(plain, [x.double() for x in tensors + learned])
    measure = errors(with_gradients(plain, [x.bfloat16() for x in tensors + learned]), truth)
    for n, (error, of_plain) in enumerate(zip(errors(got, truth), measure)):
        assert error <= 2 * of_plain + 1e-3, f"result {n}: {error} against {of_plain}"


def of_each_document(q, k, v, documents=None, before=None, **settings):
    """attend(), whose convolutions know no documents."""
    if documents is None or before is None:
        return attend(q, k, v, documents=documents, before=before, **settings)
    outs, lses = [], []
    for b in range(B):
        begin, parts = 0, []
        for length in documents[b].unique_consecutive(return_counts=True)[1].tolist():
            here = (slice(b, b + 1), slice(None), slice(begin, begin + length))
            parts.append(attend(q[here], k[here], v[here], before=before, **settings))
            begin += length
        for all_rows, x in zip((outs, lses), zip(*parts)):
            all_rows.append(torch.cat(x, 2))
    return torch.cat(outs), torch.cat(lses)


def on_cpu(settings):
    def moved(x):
        return x.cpu() if isinstance(x, torch.Tensor) else x
    return {name: x if not hasattr(x, "__dataclass_fields__") else type(x)(**{n: moved(y) for n, y in vars(x).items()})
            for name, x in settings.items()}


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_have_at_most_twice_the_error_of_plain_torch(name):
    check_twice_plain(name, CASES, rows(), "fused")


@pytest.mark.parametrize("name", ["causal", "temperature", "window and sinks"])
def test_heads_of_128_and_queries_that_are_the_last_keys(name):
    learned, ours, theirs = CASES[name]
    learned = [x[:, -50:] for x in learned]
    check_twice_plain("case", {"case": (learned, ours, theirs)}, rows(50, 128), "fused")


def test_differential_attention_is_two_maps_and_two_halves_of_wide_values():
    q, k, v = (numbers(B, heads, T, width, seed=n).bfloat16() for n, (heads, width) in enumerate(((4, D), (2, D), (1, 2 * D))))
    lambdas = numbers(4, D, scale=0.1)

    def plain(q, k, v, lambdas):
        (first, a), (second, b) = (attend(q[:, n::2], k[:, n::2], v) for n in range(2))
        weight = torch.exp((lambdas[0] * lambdas[1]).sum()) - torch.exp((lambdas[2] * lambdas[3]).sum()) + 0.2
        return first - weight * second, torch.stack([a, b], 2).flatten(1, 2)

    def ours(q, k, v, lambdas):
        return fovea.attention(q, k, v, differential=fovea.Differential(lambdas), return_lse=True, path="fused")

    tensors = [q, k, v, lambdas]
    truth = with_gradients(plain, [x.double() for x in tensors])
    measure = errors(with_gradients(plain, [x.bfloat16() for x in tensors]), truth)
    for n, (error, of_plain) in enumerate(zip(errors(with_gradients(ours, [x.to(DEVICE) for x in tensors]), truth), measure)):
        assert error <= 2 * of_plain + 1e-3, f"result {n}: {error} against {of_plain}"


@pytest.mark.parametrize("name", LACKING)
def test_what_the_kernels_lack_is_computed_by_plain_operations_and_refused_where_kernels_are_asked_for(name):
    check_twice_plain(name, LACKING, rows(), "automatic")
    learned, ours, _ = LACKING[name]
    with pytest.raises(NotImplementedError, match="path='fused'"):
        fovea.attention(*(x.to(DEVICE) for x in rows()), **ours(*(x.to(DEVICE) for x in learned)), path="fused")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_other_dtypes_are_computed_by_plain_operations(dtype):
    tensors = [x.to(dtype) for x in rows()]
    got = fovea.attention(*(x.to(DEVICE) for x in tensors), window=19, sinks=3)
    exact = fovea.attention(*(x.double() for x in tensors), window=19, sinks=3)
    tolerance = {torch.float16: 2e-3, torch.float32: 1e-4, torch.float64: 1e-10}[dtype]
    assert got.dtype == dtype and got.is_cuda
    torch.testing.assert_close(got.cpu().double(), exact, rtol=tolerance, atol=tolerance)


def on_device(**settings):
    return [x.to(DEVICE) for x in rows(**settings)]


def test_the_current_stream_is_the_one_that_computes():
    q, k, v = on_device()
    expected = fovea.attention(2.0 * q, k, v, documents=fovea.Documents(LABELS), path="fused")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # work in another stream would read what is not there yet
        doubled = (2.0 * q).requires_grad_()
        got = fovea.attention(doubled, k, v, documents=fovea.Documents(LABELS), path="fused")
        grad, = torch.autograd.grad(got.float().square().sum(), doubled)
    stream.synchronize()
    assert torch.equal(got, expected) and torch.isfinite(grad).all() and grad.abs().max() > 0


def test_a_cuda_graph_replays_the_call():
    q, k, v = on_device()
    for _ in range(2):
        fovea.attention(q, k, v, window=19, path="fused")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fovea.attention(q, k, v, window=19, path="fused")
    q.mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, fovea.attention(q, k, v, window=19, path="fused"))


@pytest.mark.parametrize("backend", ["aot_eager"])
@pytest.mark.parametrize("name", ["window and sinks", "documents", "temperature", "convolution before"])
def test_compiles_without_graph_break(name, backend):
    learned, ours, _ = CASES[name]
    tensors = [x.to(DEVICE).requires_grad_() for x in rows() + learned]
    torch._dynamo.reset()
    function = torch.compile(lambda *x: fovea.attention(*x[:3], **ours(*x[3:]), path="fused").float().square().sum(),
                             fullgraph=True, backend=backend)
    grads = torch.autograd.grad(function(*tensors), tensors)
    plain = torch.autograd.grad(fovea.attention(*tensors[:3], **ours(*tensors[3:]), path="fused").float().square().sum(), tensors)
    for x, y in zip(grads, plain):
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2 * float(y.abs().max()))


@pytest.mark.parametrize("name", ["causal", "temperature", "documents"])
def test_opcheck_passes(name):
    from operator_calls import opcheck

    learned, ours, _ = CASES[name]
    opcheck(on_device(), **ours(*(x.to(DEVICE) for x in learned)), path="fused")


def test_rows_of_any_strides_are_read():
    q, k, v = on_device()
    expected = fovea.attention(q, k, v, path="fused")
    by_token = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    odd = [torch.nn.functional.pad(x, (1, 2))[..., 1:-2] for x in (q, k, v)]  # no row starts at 16 bytes
    wide = [q, *(x.transpose(2, 3).contiguous().transpose(2, 3) for x in (k, v))]
    repeated = [q, *(x[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for x in (k, v))]
    for case in (by_token, odd, wide, repeated):
        assert torch.equal(fovea.attention(*case, path="fused"), expected)
    one = k[:, :1].expand(-1, H, -1, -1)
    assert torch.equal(fovea.attention(q, one, one, path="fused"), fovea.attention(q, one.contiguous(), one.contiguous(), path="fused"))
    leaf = q.detach().requires_grad_()
    grad, = torch.autograd.grad(fovea.attention(leaf, k, v, path="fused").sum(), leaf)  # of strides 0
    assert torch.isfinite(grad).all()


def test_autocast_computes_in_bfloat16():
    q, k, v = (x.float() for x in on_device())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        got = fovea.attention(q, k, v, path="fused")
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, fovea.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), path="fused"))


def test_a_plain_call_has_the_bits_of_one_through_the_dispatcher():
    from operator_calls import operands

    call = operands(on_device(), window=19)
    assert torch.equal(_operator.operator(*(call[n] for n in _operator.NAMES))[0], fovea.attention(*on_device(), window=19))


def test_decoding_from_a_cache_gives_the_rows_of_the_whole_text():
    q, k, v = on_device()
    cache, settings = fovea.Cache(), {"window": 40, "sinks": 2}
    first = fovea.decode(q[:, :, :-3], k[:, :, :-3], v[:, :, :-3], cache, **settings)
    rest = [fovea.decode(*(x[:, :, n : n + 1] for x in (q, k, v)), cache, **settings) for n in range(T - 3, T)]
    torch.testing.assert_close(torch.cat([first, *rest], 2), fovea.attention(q, k, v, **settings), rtol=2e-2, atol=2e-2)


def test_a_padded_batch_of_a_transformers_model_has_the_logits_of_sdpa():
    transformers = pytest.importorskip("transformers")
    import fovea.transformers

    fovea.transformers.register()
    config = transformers.LlamaConfig(vocab_size=99, hidden_size=256, intermediate_size=256, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)
    logits = {}
    tokens = torch.randint(1, 99, (2, 80), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(tokens)
    mask[1, :13] = 0
    for name, dtype in (("fovea", torch.bfloat16), ("sdpa", torch.bfloat16), ("sdpa", torch.float32)):
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=name).to(DEVICE, dtype).eval()
        with torch.no_grad():
            got = model(tokens.to(DEVICE), attention_mask=mask.to(DEVICE)).logits
        logits[name, dtype] = got[mask.bool()].float()
    truth = logits["sdpa", torch.float32]
    ours, theirs = ((logits[name, torch.bfloat16] - truth).norm() for name in ("fovea", "sdpa"))
    assert ours <= 2 * theirs
