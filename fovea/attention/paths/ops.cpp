// Registration of the operators: schemas, kernels for every device, Meta, autograd. Kernels are
// boxed: one list of operands gives the schema and both ways between stack and struct.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/ops.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/paths/mixing.h"
#include "fovea/attention/pipeline.h"
#include "fovea/attention/places.h"
#include "fovea/attention/positions/bias.h"
#include "fovea/base/error.h"
#include "fovea/config/reader.h"

namespace fovea {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;

// The arguments of both operators: q, k and v, then the operands by name.
struct OperatorCall {
  at::Tensor q, k, v;
  AttentionOperands x;
};

// The arguments of the backward operator.
struct BackwardCall {
  OptionalTensor grad_out, grad_lse;
  at::Tensor out, lse;
  OperatorCall forward;
};

// Visits the operands by name, in the order of the schema.
template <class Operands, class Visit>
void visit_operands(Operands& x, const Visit& visit) {
  visit("spec", x.spec);
  visit("tau", x.tau);
  visit("bias_table", x.bias_table);
  visit("sink_logit", x.sink_logit);
  visit("groups", x.groups);
  visit("strength", x.strength);
  visit("kernel_before", x.kernel_before);
  visit("kernel_after", x.kernel_after);
  visit("mix_before", x.mix_before);
  visit("mix_after", x.mix_after);
  visit("members", x.members);
  visit("query_positions", x.query_positions);
  visit("key_positions", x.key_positions);
  visit("query_documents", x.query_documents);
  visit("key_documents", x.key_documents);
  visit("key_lengths", x.key_lengths);
  visit("document_offsets", x.document_offsets);
  visit("dropout_seed", x.dropout_seed);
  visit("layer", x.layer);
}

// An operand and the tensor of a call that it is.
struct OperandTensor {
  OptionalTensor AttentionOperands::*operand;
  at::Tensor AttentionTensors::*tensor;
};
// Those with a gradient, in the order of the results of the backward operator.
constexpr OperandTensor kLearned[] = {
    {&AttentionOperands::tau, &AttentionTensors::tau_bt},
    {&AttentionOperands::bias_table, &AttentionTensors::bias_table},
    {&AttentionOperands::sink_logit, &AttentionTensors::sink_logit_h},
    {&AttentionOperands::groups, &AttentionTensors::groups_bsk},
    {&AttentionOperands::strength, &AttentionTensors::focus_strength},
    {&AttentionOperands::kernel_before, &AttentionTensors::kernel_before_hqk},
    {&AttentionOperands::kernel_after, &AttentionTensors::kernel_after_hqk},
    {&AttentionOperands::mix_before, &AttentionTensors::mix_before_noi},
    {&AttentionOperands::mix_after, &AttentionTensors::mix_after_nio},
};

// What the schema says of an operand of each type.
std::string declared(std::string_view name, const std::string&) {
  return fmt::format("str {}=\"\", *", name);
}
std::string declared(std::string_view name, const OptionalTensor&) {
  return fmt::format("Tensor? {}=None", name);
}
std::string declared(std::string_view name, const std::optional<int64_t>&) {
  return fmt::format("int? {}=None", name);
}
std::string declared(std::string_view name, int64_t value) {
  return fmt::format("int {}={}", name, value);
}

std::string schema_of_arguments() {
  std::string all = "Tensor q, Tensor k, Tensor v";
  const AttentionOperands x;
  visit_operands(
      x, [&](std::string_view name, const auto& value) { all += ", " + declared(name, value); });
  return all;
}

void push(Stack& stack, const OperatorCall& call) {
  for (const at::Tensor* x : {&call.q, &call.k, &call.v}) stack.emplace_back(*x);
  visit_operands(call.x, [&](std::string_view, const auto& value) { stack.emplace_back(value); });
}

// The values of a stack from `next` on, one by one.
struct Values {
  const Stack& stack;
  size_t next = 0;

  const c10::IValue& next_value() { return stack[next++]; }
  void read(at::Tensor& x) { x = next_value().toTensor(); }
  void read(std::string& x) { x = next_value().toStringRef(); }
  void read(int64_t& x) { x = next_value().toInt(); }
  template <class T>
  void read(std::optional<T>& x) {
    const c10::IValue& value = next_value();
    x = value.isNone() ? std::nullopt : std::optional<T>(value.to<T>());
  }
  void read(OperatorCall& call) {
    for (at::Tensor* x : {&call.q, &call.k, &call.v}) read(*x);
    visit_operands(call.x, [&](std::string_view, auto& value) { read(value); });
  }
  void read(BackwardCall& call) {
    read(call.grad_out);
    read(call.grad_lse);
    read(call.out);
    read(call.lse);
    read(call.forward);
  }
};

constexpr const char* kForward = "fovea::attention";
constexpr const char* kBackward = "fovea::attention_backward";

// What a boxed operator gives for the arguments on the stack.
variable_list dispatch(const char* name, Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  variable_list results;
  for (const c10::IValue& value : stack) results.push_back(value.toTensor());
  return results;
}

variable_list dispatch_forward(const OperatorCall& call) {
  Stack stack;
  push(stack, call);
  return dispatch(kForward, std::move(stack));
}

variable_list dispatch_backward(const BackwardCall& call) {
  Stack stack{call.grad_out, call.grad_lse, call.out, call.lse};
  push(stack, call.forward);
  return dispatch(kBackward, std::move(stack));
}

// The boxed kernel of a function: its arguments are the last of the stack, which its results
// replace.
template <class Arguments, variable_list (*compute)(const Arguments&)>
void boxed(const c10::OperatorHandle& op, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  Arguments arguments;
  Values{*stack, stack->size() - count}.read(arguments);
  torch::jit::drop(*stack, count);
  for (at::Tensor& x : compute(arguments)) stack->emplace_back(std::move(x));
}

template <class Arguments, variable_list (*compute)(const Arguments&)>
torch::CppFunction kernel() {
  return torch::CppFunction::makeFromBoxedFunction<&boxed<Arguments, compute>>();
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

void check_operand(const at::Tensor& x, std::string_view name) {
  require<ShapeError>(x.dim() == 4, "attention",
                      "{} must have 4 dimensions [b, heads, tokens, width]; got [{}]", name,
                      fmt::join(x.sizes(), ", "));
  require<ShapeError>(x.stride(3) == 1 || x.size(3) <= 1, "attention",
                      "{} must be contiguous along its last axis; got strides [{}]; call "
                      "{}.contiguous()",
                      name, fmt::join(x.strides(), ", "), name);
}

bool is_operand(at::Tensor AttentionTensors::*member) {
  return member == &AttentionTensors::members_bs ||
         std::ranges::find(kLearned, member, &OperandTensor::tensor) != std::end(kLearned);
}

void check_has_operands(const AttentionSpec& spec) {
  const auto refuse = [](std::string_view setting) {
    fail<UnsupportedError>(
        "attention operator",
        "torch.ops.fovea.attention takes temperature, soft_cap, bias, mask, sink_logit, dropout, "
        "focus, multi_token and head_mix; {} needs attention() of the C++ library",
        setting);
  };
  if (spec.differential) refuse("differential");
  if (spec.head_output.active()) refuse("head_output");
  for (const Mechanism* mechanism : mechanisms()) {
    for (const TensorSlot& slot : mechanism->tensors) {
      if (slot.sizes(spec, {}) && !is_operand(slot.member)) refuse(slot.setting(spec));
    }
  }
}

AttentionSpec spec_of(const OperatorCall& given) {
  AttentionSpec spec;
  if (!given.x.spec.empty()) read_fields(parse_json(given.x.spec, kSpecPlace), spec);
  check_operand(given.q, "q");
  check_operand(given.k, "k");
  check_operand(given.v, "v");
  spec.heads = given.q.size(1);
  spec.kv_heads = given.k.size(1);
  spec.head_dim = given.q.size(3);
  spec.value_dim = given.v.size(3);
  if (given.x.tau) spec.temperature.kind = TemperatureSpec::Kind::learned;
  if (given.x.sink_logit) spec.sink_logit = true;
  check_has_operands(spec);
  return spec;
}

AttentionContext context_of(const OperatorCall& given) {
  const AttentionOperands& x = given.x;
  AttentionContext c;
  c.query_positions_bt = or_none(x.query_positions);
  c.key_positions_bs = or_none(x.key_positions);
  c.query_documents_bt = or_none(x.query_documents);
  c.key_documents_bs = or_none(x.key_documents);
  c.key_lengths_b = or_none(x.key_lengths);
  if (x.document_offsets) {
    const int64_t queries = given.q.size(2), keys = given.k.size(2);
    require<ShapeError>(!x.query_documents && !x.key_documents && queries == keys, "attention",
                        "document_offsets need a query for every key and no other documents; got "
                        "{} queries and {} keys",
                        queries, keys);
    c.key_documents_bs = c.query_documents_bt = documents_of_offsets(*x.document_offsets, keys);
  }
  c.training = x.dropout_seed.has_value();
  c.dropout_seed = static_cast<uint64_t>(x.dropout_seed.value_or(0));
  c.layer = x.layer;
  c.want_lse = true;
  return c;
}

// The call of attention() that an operator's arguments ask for, not checked as a whole yet.
AttentionCall call_of(const OperatorCall& given) {
  AttentionCall call{.spec = spec_of(given), .q = given.q, .k = given.k, .v = given.v};
  for (const OperandTensor& x : kLearned) call.tensors.*x.tensor = or_none(given.x.*x.operand);
  call.tensors.members_bs = or_none(given.x.members);
  call.context = context_of(given);
  return call;
}

// Memory order [b, t, h, e], as the Meta kernels promise.
at::Tensor by_token(const at::Tensor& x) {
  const at::Tensor to = empty_by_token(x.sizes().vec(), x.options());
  return x.strides() == to.strides() ? x : to.copy_(x);
}

variable_list attention_forward(const OperatorCall& given) {
  return translated([&]() -> variable_list {
    const AttentionCall call = call_of(given);
    const AttentionResult result =
        attention(call.spec, call.q, call.k, call.v, call.tensors, call.context);
    return {by_token(result.out_bhte), result.lse_bht.contiguous()};
  });
}

bool is_fused(const AttentionCall& call) {
  return call.q.scalar_type() != at::kHalf && call.key_rule() == KeyRule::mask &&
         !call.spec.focus.reads_strength() && !why_not_pointwise(call);
}

// In the order of kLearned; of a strength that is given, not learned.
variable_list learned_gradients(const AttentionCall& call, const FusedOperands& g,
                                const MixingOperands& mixing) {
  return {g.q,
          g.k,
          g.v,
          g.tau_bt,
          g.bias_hn.defined() ? bias_table_gradient(call.spec, g.bias_hn) : g.bias_hn,
          g.sink_h,
          g.gate_bsk.defined() ? groups_gradient(call.spec, g.gate_btk, g.gate_bsk) : g.gate_bsk,
          {},
          mixing.kernel_before_hqk,
          mixing.kernel_after_hqk,
          mixing.mix_before_noi,
          mixing.mix_after_nio};
}

variable_list fused_gradients(const AttentionCall& call, const at::Tensor& out,
                              const at::Tensor& lse, const at::Tensor& grad_out,
                              const at::Tensor& grad_lse) {
  const auto fused = fused_call(call);
  fused->visits = visits_of(call);
  return learned_gradients(
      call, fused_backward(*fused, fused_operands(call), out, lse, grad_out, grad_lse), {});
}

variable_list mixed_gradients(const AttentionCall& call, const at::Tensor& out,
                              const at::Tensor& lse, const at::Tensor& grad_out,
                              const at::Tensor& grad_lse) {
  const MixedOperands g = mixing_backward(call, out, lse, grad_out, grad_lse);
  return learned_gradients(call, g.fused, g.mixing);
}

// Through the path that gave the result, once more.
variable_list gradients_by_autograd(AttentionCall call, const at::Tensor& grad_out,
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
  const at::Tensor lq = leaf(call.q), lk = leaf(call.k), lv = leaf(call.v);
  for (const OperandTensor& x : kLearned) call.tensors.*x.tensor = leaf(call.tensors.*x.tensor);
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
  variable_list all(3 + std::size(kLearned));
  size_t next = 0;
  for (size_t n = 0; n < all.size(); ++n) {
    if (n < 3 || (call.tensors.*kLearned[n - 3].tensor).defined()) all[n] = found[next++];
  }
  return all;
}

variable_list attention_backward(const BackwardCall& given) {
  return translated([&]() -> variable_list {
    const OperatorCall& forward = given.forward;
    const AttentionCall asked = call_of(forward);
    const AttentionCall call =
        checked_call(asked.spec, asked.q, asked.k, asked.v, asked.tensors, asked.context);
    const at::Tensor of_out = or_none(given.grad_out), of_lse = or_none(given.grad_lse);
    variable_list g = is_fused(call) ? fused_gradients(call, given.out, given.lse, of_out, of_lse)
                      : has_mixing_backward(call)
                          ? mixed_gradients(call, given.out, given.lse, of_out, of_lse)
                          : gradients_by_autograd(call, of_out, of_lse);
    const auto rows = [](const at::Tensor& x, const at::Tensor& like) {
      return by_token(x.defined() ? x : at::zeros_like(like));
    };
    const auto like = [&](const at::Tensor& x, const OptionalTensor& operand) {
      if (!operand) return at::empty({0}, call.q.options());
      return x.defined() ? x.to(operand->scalar_type()).contiguous()
                         : at::zeros(operand->sizes(), operand->options());
    };
    g.resize(3 + std::size(kLearned));
    variable_list all{rows(g[0], call.q), rows(g[1], call.k), rows(g[2], call.v)};
    for (size_t n = 0; n < std::size(kLearned); ++n)
      all.push_back(like(g[3 + n], forward.x.*kLearned[n].operand));
    return all;
  });
}

// --- shapes alone

at::Tensor meta_by_token(const at::Tensor& x, const c10::SymInt& width) {
  return at::empty_symint({x.sym_size(0), x.sym_size(2), x.sym_size(1), width}, x.options())
      .transpose(1, 2);
}

variable_list attention_meta(const OperatorCall& call) {
  return translated([&]() -> variable_list {
    const at::Tensor& q = call.q;
    require<ShapeError>(q.dim() == 4 && call.k.dim() == 4 && call.v.dim() == 4, "attention",
                        "q, k and v must have 4 dimensions; got {}, {} and {}", q.dim(),
                        call.k.dim(), call.v.dim());
    return {meta_by_token(q, call.v.sym_size(3)),
            at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2)},
                             q.options().dtype(accumulate_type(q.scalar_type())))};
  });
}

variable_list attention_backward_meta(const BackwardCall& given) {
  const auto& [q, k, v, x] = given.forward;
  const auto like = [&q = q](const OptionalTensor& operand) {
    return operand ? at::empty_symint(operand->sym_sizes(), operand->options())
                   : at::empty({0}, q.options());
  };
  variable_list all{meta_by_token(q, q.sym_size(3)), meta_by_token(k, k.sym_size(3)),
                    meta_by_token(v, v.sym_size(3))};
  for (const OperandTensor& learned : kLearned) all.push_back(like(x.*learned.operand));
  return all;
}

// --- autograd

// The tensors among the operands come and go by autograd, the rest as a capsule.
struct KeptOperands : torch::CustomClassHolder {
  AttentionOperands x;
};

// The tensors with a gradient are arguments; `call` has them too, and everything else.
class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const OptionalTensor& /*tau*/,
                               const OptionalTensor& /*bias_table*/,
                               const OptionalTensor& /*sink_logit*/,
                               const OptionalTensor& /*groups*/, const OptionalTensor& /*strength*/,
                               const OptionalTensor& /*kernel_before*/,
                               const OptionalTensor& /*kernel_after*/,
                               const OptionalTensor& /*mix_before*/,
                               const OptionalTensor& /*mix_after*/, const OperatorCall& call) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const variable_list results = dispatch_forward(call);
    variable_list saved{q, k, v, results[0], results[1]};
    auto kept = c10::make_intrusive<KeptOperands>();
    kept->x = call.x;
    visit_operands(kept->x, [&](std::string_view, auto& value) {
      if constexpr (std::is_same_v<decltype(value), OptionalTensor&>)
        saved.push_back(or_none(std::exchange(value, std::nullopt)));
    });
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["operands"] = c10::IValue::make_capsule(std::move(kept));
    ctx->set_materialize_grads(false);
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list s = ctx->get_saved_variables();
    const auto given = [](const at::Tensor& x) {
      return x.defined() ? OptionalTensor(x) : std::nullopt;
    };
    const auto kept =
        c10::static_intrusive_pointer_cast<KeptOperands>(ctx->saved_data["operands"].toCapsule());
    BackwardCall call{.grad_out = given(grads[0]),
                      .grad_lse = given(grads[1]),
                      .out = s[3],
                      .lse = s[4],
                      .forward = {.q = s[0], .k = s[1], .v = s[2], .x = kept->x}};
    size_t next = 5;
    visit_operands(call.forward.x, [&](std::string_view, auto& value) {
      if constexpr (std::is_same_v<decltype(value), OptionalTensor&>) value = given(s[next++]);
    });
    variable_list all = dispatch_backward(call);
    const AttentionOperands& x = call.forward.x;
    for (size_t n = 0; n < std::size(kLearned); ++n)
      if (!(x.*kLearned[n].operand).has_value()) all[3 + n] = at::Tensor();
    all.emplace_back();  // of the call
    return all;
  }
};

variable_list attention_autograd(const OperatorCall& call) {
  const AttentionOperands& x = call.x;
  return AttentionFunction::apply(call.q, call.k, call.v, x.tau, x.bias_table, x.sink_logit,
                                  x.groups, x.strength, x.kernel_before, x.kernel_after,
                                  x.mix_before, x.mix_after, call);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> call_attention_operator(const at::Tensor& q, const at::Tensor& k,
                                                           const at::Tensor& v,
                                                           const AttentionOperands& x) {
  const variable_list both = dispatch_forward({.q = q, .k = k, .v = v, .x = x});
  return {both[0], both[1]};
}

TORCH_LIBRARY(fovea, m) {
  const std::string arguments = schema_of_arguments();
  m.def(fmt::format("attention({}) -> (Tensor out, Tensor lse)", arguments).c_str());
  const std::vector<std::string_view> results(3 + std::size(kLearned), "Tensor");
  m.def(
      fmt::format("attention_backward(Tensor? grad_out, Tensor? grad_lse, Tensor out, Tensor lse, "
                  "{}) -> ({})",
                  arguments, fmt::join(results, ", "))
          .c_str());
}

TORCH_LIBRARY_IMPL(fovea, CompositeExplicitAutograd, m) {
  m.impl("attention", kernel<OperatorCall, attention_forward>());
  m.impl("attention_backward", kernel<BackwardCall, attention_backward>());
}

TORCH_LIBRARY_IMPL(fovea, Meta, m) {
  m.impl("attention", kernel<OperatorCall, attention_meta>());
  m.impl("attention_backward", kernel<BackwardCall, attention_backward_meta>());
}

TORCH_LIBRARY_IMPL(fovea, Autograd, m) {
  m.impl("attention", kernel<OperatorCall, attention_autograd>());
}

}  // namespace fovea
