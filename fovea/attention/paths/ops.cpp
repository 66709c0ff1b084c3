// Registration of the operators: schemas, kernels for every device, Meta, autograd.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/ops.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/pipeline.h"
#include "fovea/attention/places.h"
#include "fovea/base/error.h"
#include "fovea/config/reader.h"

namespace fovea {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Two = std::tuple<at::Tensor, at::Tensor>;
using Seven =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The arguments that both operators share, as parameters and as a call's arguments.
#define FOVEA_SHARED_PARAMETERS                                                         \
  const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, c10::string_view spec, \
      const OptionalTensor &tau, const OptionalTensor &bias_table,                      \
      const OptionalTensor &sink_logit, const OptionalTensor &groups,                   \
      const OptionalTensor &query_positions, const OptionalTensor &key_positions,       \
      const OptionalTensor &query_documents, const OptionalTensor &key_documents,       \
      const OptionalTensor &key_lengths, const OptionalTensor &document_offsets,        \
      std::optional<int64_t> dropout_seed, int64_t layer
#define FOVEA_SHARED_ARGUMENTS                                                        \
  q, k, v, spec, tau, bias_table, sink_logit, groups, query_positions, key_positions, \
      query_documents, key_documents, key_lengths, document_offsets, dropout_seed, layer
constexpr const char* kSharedSchema =
    "Tensor q, Tensor k, Tensor v, str spec=\"\", *, Tensor? tau=None, Tensor? bias_table=None, "
    "Tensor? sink_logit=None, Tensor? groups=None, Tensor? query_positions=None, "
    "Tensor? key_positions=None, "
    "Tensor? query_documents=None, Tensor? key_documents=None, Tensor? key_lengths=None, "
    "Tensor? document_offsets=None, int? dropout_seed=None, int layer=0";

using ForwardSignature = Two(FOVEA_SHARED_PARAMETERS);
using BackwardSignature = Seven(const OptionalTensor& grad_out, const OptionalTensor& grad_lse,
                                const at::Tensor& out, const at::Tensor& lse,
                                FOVEA_SHARED_PARAMETERS);

const c10::TypedOperatorHandle<ForwardSignature>& forward_operator() {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("fovea::attention", "")
                                 .typed<ForwardSignature>();
  return handle;
}

const c10::TypedOperatorHandle<BackwardSignature>& backward_operator() {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("fovea::attention_backward", "")
                                 .typed<BackwardSignature>();
  return handle;
}

// Our errors as those that torch turns into Python's.
template <class F>
auto translated(F&& body) {
  const auto text = [](const Error& e) { return fmt::format("{}: {}", e.kind(), e.what()); };
  try {
    return body();
  } catch (const UnsupportedError& e) {
    C10_THROW_ERROR(NotImplementedError, text(e));
  } catch (const Error& e) {
    C10_THROW_ERROR(ValueError, text(e));
  }
}

at::Tensor or_none(const OptionalTensor& x) { return x.value_or(at::Tensor()); }

// One call of attention() from an operator's arguments.
struct Call {
  AttentionSpec spec;
  AttentionTensors tensors;
  AttentionContext context;
};

Call call_of(FOVEA_SHARED_PARAMETERS) {
  Call call;
  if (!spec.empty())
    read_fields(parse_json({spec.data(), spec.size()}, "attention spec"), call.spec);
  require<UnsupportedError>(
      !call.spec.differential && !call.spec.focus.reads_members() &&
          !call.spec.focus.reads_strength() && !call.spec.head_output.active() &&
          !call.spec.multi_token.before.active() && !call.spec.multi_token.after.active() &&
          call.spec.head_mix == HeadMixSpec{},
      "attention operator",
      "torch.ops.fovea.attention takes settings of one head: temperature, soft_cap, bias, mask, "
      "sink_logit, dropout, soft gates of focus; differential, focus hard or with a learned "
      "strength, head_output, multi_token and head_mix need attention() of the C++ library");
  for (const auto& [x, name] : {std::pair{&q, "q"}, {&k, "k"}, {&v, "v"}}) {
    require<ShapeError>(x->dim() == 4, "attention",
                        "{} must have 4 dimensions [b, heads, tokens, width]; got [{}]", name,
                        fmt::join(x->sizes(), ", "));
    require<ShapeError>(x->stride(3) == 1 || x->size(3) <= 1, "attention",
                        "{} must be contiguous along its last axis; got strides [{}]; call "
                        "{}.contiguous()",
                        name, fmt::join(x->strides(), ", "), name);
  }
  call.spec.heads = q.size(1);
  call.spec.kv_heads = k.size(1);
  call.spec.head_dim = q.size(3);
  call.spec.value_dim = v.size(3);
  if (tau) call.spec.temperature.kind = TemperatureSpec::Kind::learned;
  if (sink_logit) call.spec.sink_logit = true;
  call.tensors = {.tau_bt = or_none(tau),
                  .bias_table = or_none(bias_table),
                  .sink_logit_h = or_none(sink_logit),
                  .groups_bsk = or_none(groups)};
  AttentionContext& c = call.context;
  c.query_positions_bt = or_none(query_positions);
  c.key_positions_bs = or_none(key_positions);
  c.query_documents_bt = or_none(query_documents);
  c.key_documents_bs = or_none(key_documents);
  c.key_lengths_b = or_none(key_lengths);
  if (document_offsets) {
    require<ShapeError>(!query_documents && !key_documents && q.size(2) == k.size(2), "attention",
                        "document_offsets need a query for every key and no other documents; got "
                        "{} queries and {} keys",
                        q.size(2), k.size(2));
    c.key_documents_bs = c.query_documents_bt = documents_of_offsets(*document_offsets, k.size(2));
  }
  c.training = dropout_seed.has_value();
  c.dropout_seed = static_cast<uint64_t>(dropout_seed.value_or(0));
  c.layer = layer;
  c.want_lse = true;
  return call;
}

// Memory order [b, t, h, e], as the Meta kernels promise.
at::Tensor by_token(const at::Tensor& x) {
  const at::Tensor to = empty_by_token(x.sizes().vec(), x.options());
  return x.strides() == to.strides() ? x : to.copy_(x);
}

Two attention_forward(FOVEA_SHARED_PARAMETERS) {
  return translated([&]() -> Two {
    const Call call = call_of(FOVEA_SHARED_ARGUMENTS);
    const AttentionResult result =
        attention(call.spec, q, k, v, call.tensors, call.context, Path::automatic);
    return {by_token(result.out_bhte), result.lse_bht.contiguous()};
  });
}

bool is_fused(const Call& call, const at::Tensor& q) {
  return q.scalar_type() != at::kHalf && beyond_fused(call.spec, q).empty();
}

variable_list fused_gradients(const Call& call, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                              const at::Tensor& grad_out, const at::Tensor& grad_lse) {
  const CallShape shape{q.size(0), q.size(2), k.size(2), q.scalar_type(), q.device()};
  const auto fused =
      fused_call(call.spec, make_visit_plan(call.spec, call.context, shape), call.context);
  const FusedOperands x = fused_operands(call.spec, q, k, v, call.tensors);
  const FusedOperands g = fused_backward(*fused, x, out, lse, grad_out, grad_lse);
  return {g.q,
          g.k,
          g.v,
          g.tau_bt,
          g.bias_hn.defined() ? bias_table_gradient(call.spec, g.bias_hn) : g.bias_hn,
          g.sink_h,
          g.gate_bsk.defined() ? groups_gradient(call.spec, g.gate_btk, g.gate_bsk) : g.gate_bsk};
}

// Through the composition that gave the result, once more.
variable_list gradients_by_autograd(Call call, const at::Tensor& q, const at::Tensor& k,
                                    const at::Tensor& v, const at::Tensor& grad_out,
                                    const at::Tensor& grad_lse) {
  // The operator runs below autograd; here it must run above it.
  const c10::impl::ForceDispatchKeyGuard keys(c10::default_included_set, c10::default_excluded_set);
  const at::AutoGradMode enable(true);
  variable_list leaves;
  const auto leaf = [&leaves](const at::Tensor& x) {
    if (!x.defined()) return x;
    leaves.push_back(x.detach().set_requires_grad(true));
    return leaves.back();
  };
  const at::Tensor lq = leaf(q), lk = leaf(k), lv = leaf(v);
  std::vector<at::Tensor*> added{&call.tensors.tau_bt, &call.tensors.bias_table,
                                 &call.tensors.sink_logit_h, &call.tensors.groups_bsk};
  for (at::Tensor* x : added) *x = leaf(*x);
  const AttentionResult result = attention(call.spec, lq, lk, lv, call.tensors, call.context);
  variable_list outputs, given;
  for (const auto& [y, g] :
       {std::pair{&result.out_bhte, &grad_out}, {&result.lse_bht, &grad_lse}}) {
    if (!g->defined()) continue;
    outputs.push_back(*y);
    given.push_back(g->to(y->scalar_type()));
  }
  variable_list found(leaves.size());
  if (!outputs.empty())
    found = torch::autograd::grad(outputs, leaves, given, false, false, /*allow_unused=*/true);
  variable_list all(7);
  size_t next = 0;
  for (size_t n = 0; n < all.size(); ++n) {
    if (n < 3 || added[n - 3]->defined()) all[n] = found[next++];
  }
  return all;
}

Seven attention_backward(const OptionalTensor& grad_out, const OptionalTensor& grad_lse,
                         const at::Tensor& out, const at::Tensor& lse, FOVEA_SHARED_PARAMETERS) {
  return translated([&]() -> Seven {
    const Call call = call_of(FOVEA_SHARED_ARGUMENTS);
    check_inputs(call.spec, q, k, v, call.tensors, call.context);
    const at::Tensor of_out = or_none(grad_out), of_lse = or_none(grad_lse);
    const variable_list g = is_fused(call, q)
                                ? fused_gradients(call, q, k, v, out, lse, of_out, of_lse)
                                : gradients_by_autograd(call, q, k, v, of_out, of_lse);
    const auto rows = [](const at::Tensor& x, const at::Tensor& like) {
      return by_token(x.defined() ? x : at::zeros_like(like));
    };
    const auto like = [&q](const at::Tensor& x, const OptionalTensor& given) {
      if (!given) return at::empty({0}, q.options());
      return x.defined() ? x.to(given->scalar_type()).contiguous()
                         : at::zeros(given->sizes(), given->options());
    };
    return {rows(g[0], q),          rows(g[1], k),          rows(g[2], v),     like(g[3], tau),
            like(g[4], bias_table), like(g[5], sink_logit), like(g[6], groups)};
  });
}

// --- shapes alone

at::Tensor meta_by_token(const at::Tensor& x, const c10::SymInt& width) {
  return at::empty_symint({x.sym_size(0), x.sym_size(2), x.sym_size(1), width}, x.options())
      .transpose(1, 2);
}

Two attention_meta(FOVEA_SHARED_PARAMETERS) {
  static_cast<void>(std::tie(FOVEA_SHARED_ARGUMENTS));
  return translated([&]() -> Two {
    require<ShapeError>(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, "attention",
                        "q, k and v must have 4 dimensions; got {}, {} and {}", q.dim(), k.dim(),
                        v.dim());
    return {meta_by_token(q, v.sym_size(3)),
            at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2)},
                             q.options().dtype(accumulate_type(q.scalar_type())))};
  });
}

Seven attention_backward_meta(const OptionalTensor& grad_out, const OptionalTensor& grad_lse,
                              const at::Tensor& out, const at::Tensor& lse,
                              FOVEA_SHARED_PARAMETERS) {
  static_cast<void>(std::tie(grad_out, grad_lse, out, lse));
  static_cast<void>(std::tie(FOVEA_SHARED_ARGUMENTS));
  const auto like = [&q](const OptionalTensor& given) {
    return given ? at::empty_symint(given->sym_sizes(), given->options())
                 : at::empty({0}, q.options());
  };
  return {meta_by_token(q, q.sym_size(3)),
          meta_by_token(k, k.sym_size(3)),
          meta_by_token(v, v.sym_size(3)),
          like(tau),
          like(bias_table),
          like(sink_logit),
          like(groups)};
}

// --- autograd

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, FOVEA_SHARED_PARAMETERS) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [out, lse] = forward_operator().call(FOVEA_SHARED_ARGUMENTS);
    ctx->save_for_backward(
        {q, k, v, out, lse, or_none(tau), or_none(bias_table), or_none(sink_logit), or_none(groups),
         or_none(query_positions), or_none(key_positions), or_none(query_documents),
         or_none(key_documents), or_none(key_lengths), or_none(document_offsets)});
    ctx->saved_data["spec"] = std::string(spec.data(), spec.size());
    ctx->saved_data["dropout_seed"] = dropout_seed;
    ctx->saved_data["layer"] = layer;
    ctx->set_materialize_grads(false);
    return {out, lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list s = ctx->get_saved_variables();
    const auto given = [](const at::Tensor& x) {
      return x.defined() ? OptionalTensor(x) : std::nullopt;
    };
    const std::string spec = ctx->saved_data["spec"].toStringRef();
    const auto [dq, dk, dv, dtau, dbias, dsink, dgroups] = backward_operator().call(
        given(grads[0]), given(grads[1]), s[3], s[4], s[0], s[1], s[2], spec, given(s[5]),
        given(s[6]), given(s[7]), given(s[8]), given(s[9]), given(s[10]), given(s[11]),
        given(s[12]), given(s[13]), given(s[14]),
        ctx->saved_data["dropout_seed"].toOptional<int64_t>(), ctx->saved_data["layer"].toInt());
    const auto kept = [](const at::Tensor& x, const at::Tensor& of) {
      return of.defined() ? x : at::Tensor();
    };
    variable_list all(16);  // one for every argument
    all[0] = dq;
    all[1] = dk;
    all[2] = dv;
    all[4] = kept(dtau, s[5]);
    all[5] = kept(dbias, s[6]);
    all[6] = kept(dsink, s[7]);
    all[7] = kept(dgroups, s[8]);
    return all;
  }
};

Two attention_autograd(FOVEA_SHARED_PARAMETERS) {
  const variable_list both = AttentionFunction::apply(FOVEA_SHARED_ARGUMENTS);
  return {both[0], both[1]};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> call_attention_operator(const at::Tensor& q, const at::Tensor& k,
                                                           const at::Tensor& v,
                                                           const AttentionOperands& x) {
  return forward_operator().call(q, k, v, x.spec, x.tau, x.bias_table, x.sink_logit, x.groups,
                                 x.query_positions, x.key_positions, x.query_documents,
                                 x.key_documents, x.key_lengths, x.document_offsets, x.dropout_seed,
                                 x.layer);
}

TORCH_LIBRARY(fovea, m) {
  const std::string shared = kSharedSchema;
  m.def(fmt::format("attention({}) -> (Tensor out, Tensor lse)", shared).c_str());
  m.def(
      fmt::format("attention_backward(Tensor? grad_out, Tensor? grad_lse, Tensor out, Tensor lse, "
                  "{}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
                  shared)
          .c_str());
}

TORCH_LIBRARY_IMPL(fovea, CompositeExplicitAutograd, m) {
  m.impl("attention", attention_forward);
  m.impl("attention_backward", attention_backward);
}

TORCH_LIBRARY_IMPL(fovea, Meta, m) {
  m.impl("attention", attention_meta);
  m.impl("attention_backward", attention_backward_meta);
}

TORCH_LIBRARY_IMPL(fovea, Autograd, m) { m.impl("attention", attention_autograd); }

}  // namespace fovea
