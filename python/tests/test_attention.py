# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from eager import attend
from operator_calls import opcheck, operands

import fovea
from fovea import _operator

B, H, G, T, D = 2, 4, 2, 37, 16
SLOPES = [2.0 ** (-2 * (h + 1)) for h in range(H)]


def numbers(*shape, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).requires_grad_()


def rows(dtype=torch.float32):
    return [numbers(B, heads, T, D, seed=n).detach().to(dtype).requires_grad_() for n, heads in enumerate((H, G, G))]


def tables(distance, table, first):
    return table[:, (distance - first).clamp(0, table.shape[1] - 1)][None]


DOCUMENTS = torch.tensor([[0] * 10 + [1] * 27, [0] * 20 + [3] * 17])
TEMPERATURE = (numbers(B, T).detach().abs() + 0.5).requires_grad_()
# name: learned tensors, settings of fovea.attention, settings of attend(), both of the learned tensors
CASES = {
    "causal": ([], lambda: {}, lambda: {}),
    "bidirectional": ([], lambda: {"causal": False}, lambda: {"causal": False}),
    "softcap": ([], lambda: {"softcap": 2.0, "scale": 0.5}, lambda: {"softcap": 2.0, "scale": 0.5}),
    "window and sinks": ([], lambda: {"window": 9, "sinks": 3}, lambda: {"window": 9, "sinks": 3}),
    "documents": ([], lambda: {"documents": fovea.Documents(DOCUMENTS)}, lambda: {"documents": DOCUMENTS}),
    "temperature": ([TEMPERATURE], lambda x: {"temperature": x}, lambda x: {"tau": x}),
    "sink logit": ([numbers(H)], lambda x: {"sink_logit": x}, lambda x: {"sink_logit": x}),
    "alibi": ([], lambda: {"bias": fovea.Alibi()},
              lambda: {"bias": lambda n: -torch.tensor(SLOPES).double()[None, :, None, None] * n}),
    "distance bias": ([numbers(H, 12)], lambda x: {"bias": fovea.DistanceBias(x)},
                      lambda x: {"bias": lambda n: tables(n, x, 0)}),
    "multi-token": ([numbers(H, 3, 5, scale=0.3), numbers(H, 2, 3, scale=0.3)],
                    lambda x, y: {"multi_token": fovea.MultiToken(before=x, after=y)},
                    lambda x, y: {"before": x, "after": y}),
    "head mix": ([numbers(2, 2, 2), numbers(1, 4, 4)],
                 lambda x, y: {"head_mix": fovea.HeadMix(before=x, after=y)},
                 lambda x, y: {"mix_before": x, "mix_after": y}),
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_all_gradients_are_those_of_plain_torch(name):
    learned, ours, theirs = CASES[name]
    tensors = rows() + learned
    doubles = [x.detach().double().requires_grad_() for x in tensors]
    got = fovea.attention(*tensors[:3], **ours(*learned), return_lse=True)
    expected = attend(*doubles[:3], **theirs(*doubles[3:]))
    weights = [numbers(*x.shape, seed=9).detach() for x in got]
    for x, y in zip(got, expected):
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-4)
    grads = torch.autograd.grad(sum((x * w).sum() for x, w in zip(got, weights)), tensors)
    truth = torch.autograd.grad(sum((x * w).sum() for x, w in zip(expected, weights)), doubles)
    for x, y in zip(grads, truth):
        torch.testing.assert_close(x.double(), y, rtol=1e-3, atol=1e-3 * max(1.0, float(y.abs().max())))


def test_queries_are_the_last_tokens():
    q, k, v = rows()
    torch.testing.assert_close(fovea.attention(q[:, :, -5:], k, v), fovea.attention(q, k, v)[:, :, -5:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_agree_with_float32(dtype):
    got, exact = fovea.attention(*rows(dtype)), fovea.attention(*rows())
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), exact, rtol=3e-2, atol=3e-2)


def test_autocast_computes_in_bfloat16():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fovea.attention(*rows()).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["causal", "temperature", "multi-token", "documents"])
def test_opcheck_passes(name):
    learned, ours, _ = CASES[name]
    opcheck(rows(), **ours(*learned))


@pytest.mark.parametrize("name", ["causal", "temperature", "multi-token"])
def test_a_plain_call_has_the_bits_of_one_through_the_dispatcher(name):
    learned, ours, _ = CASES[name]
    tensors = rows() + learned
    call = operands(tensors[:3], **ours(*learned))
    through = _operator.operator(*(call[n] for n in _operator.NAMES))[0]
    at_once = fovea.attention(*tensors[:3], **ours(*learned))
    assert torch.equal(at_once, through) and "Attention" in at_once.grad_fn.name() != through.grad_fn.name()
    for x, y in zip(*(torch.autograd.grad(out.square().sum(), tensors) for out in (at_once, through))):
        assert torch.equal(x, y)
    with torch.no_grad():
        assert torch.equal(fovea.attention(*tensors[:3], **ours(*learned)), through)


def test_a_profiler_and_the_meta_device_see_the_operator():
    with torch.profiler.profile() as profile:
        fovea.attention(*rows(), window=9)
    assert "fovea_kernels::attention" in {event.key for event in profile.key_averages()}
    out, lse = fovea.attention(*(x.to("meta") for x in rows()), window=9, return_lse=True)
    assert out.is_meta and out.shape == (B, H, T, D) and lse.shape == (B, H, T)


def test_compiles_without_graph_break():
    function = torch.compile(lambda q, k, v: fovea.attention(q, k, v, window=8).sum(), fullgraph=True, backend="aot_eager")
    q, k, v = rows()
    grads = torch.autograd.grad(function(q, k, v), (q, k, v))
    expected = torch.autograd.grad(fovea.attention(q, k, v, window=8).sum(), (q, k, v))
    for x, y in zip(grads, expected):
        torch.testing.assert_close(x, y)


def test_exports_and_the_exported_program_computes_the_same():
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return fovea.attention(q, k, v, window=8, softcap=5.0)

    with torch.no_grad():
        exported = torch.export.export(Layer(), tuple(rows()))
        torch.testing.assert_close(exported.module()(*rows()), Layer()(*rows()))


def test_activation_checkpointing_has_the_same_gradients():
    q, k, v = rows()
    function = lambda *x: fovea.attention(*x, sinks=2, window=9).square().sum()  # noqa: E731
    got = torch.autograd.grad(torch.utils.checkpoint.checkpoint(function, q, k, v, use_reentrant=False), (q, k, v))
    for x, y in zip(got, torch.autograd.grad(function(q, k, v), (q, k, v))):
        assert torch.equal(x, y)


class InWorker(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, n):
        torch.manual_seed(n)
        x = torch.randn(1, 2, 70, 16)
        return fovea.attention(x, x, x)


def test_forked_workers_compute_after_the_parent_has_used_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    fovea.attention(*rows())
    loader = torch.utils.data.DataLoader(InWorker(), batch_size=None, num_workers=1, multiprocessing_context="fork",
                                         timeout=60)
    for n, got in enumerate(loader):
        torch.testing.assert_close(got, InWorker()[n])
    torch.set_num_threads(before)


def test_one_thread_and_two_give_the_same_bits():
    before, results = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(fovea.attention(*rows(), window=9))
    torch.set_num_threads(before)
    assert torch.equal(*results)


def test_what_no_kernel_computes_is_refused_by_name():
    q, k, v = rows()
    with pytest.raises(NotImplementedError, match="vmap"):
        torch.vmap(lambda x: fovea.attention(x, k, v))(q[None])
    grad, = torch.autograd.grad(fovea.attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="double backward"):
        grad.sum().backward()
    with pytest.raises(ValueError, match="multiple"):
        fovea.attention(q[:, :3], k, v)
    with pytest.raises(ValueError, match="multi_token.before"):
        fovea.attention(q, k, v, multi_token=fovea.MultiToken(before=torch.ones(H + 1, 3, 3)))


def test_a_fresh_multi_token_module_is_plain_attention_and_its_kernel_learns():
    module = fovea.nn.MultiTokenAttention(32, 4, kv_heads=2)
    plain = fovea.nn.Attention(32, 4, kv_heads=2)
    plain.load_state_dict({n: x for n, x in module.state_dict().items() if n != "kernel"})
    x = numbers(2, 19, 32)
    torch.testing.assert_close(module(x), plain(x), rtol=1e-4, atol=1e-5)
    module(x).square().sum().backward()
    assert module.kernel.grad.abs().max() > 0
