// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/operator_profile.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "fovea/base/error.h"

namespace fovea {
namespace {

using Kind = std::optional<OperatorKind>;

std::atomic<OperatorProfile*> listening{nullptr};

/// Products and norms of torch; further forms of a name ("_backward", in place) belong to it.
constexpr std::array<std::string_view, 7> kProducts{"aten::mm",
                                                    "aten::addmm",
                                                    "aten::bmm",
                                                    "aten::baddbmm",
                                                    "aten::matmul",
                                                    "aten::linear",
                                                    "mkldnn::_linear_pointwise"};
constexpr std::array<std::string_view, 5> kNorms{"aten::layer_norm", "aten::native_layer_norm",
                                                 "aten::rms_norm", "aten::_fused_rms_norm",
                                                 "aten::group_norm"};
/// One FLOP a number.
constexpr std::array<std::string_view, 24> kArithmetic{
    "aten::add",       "aten::sub",     "aten::mul",   "aten::div",     "aten::neg",
    "aten::abs",       "aten::exp",     "aten::log",   "aten::sqrt",    "aten::rsqrt",
    "aten::pow",       "aten::square",  "aten::tanh",  "aten::sigmoid", "aten::silu",
    "aten::gelu",      "aten::relu",    "aten::elu",   "aten::sum",     "aten::where",
    "aten::threshold", "aten::maximum", "aten::clamp", "aten::mean"};
constexpr std::array<std::string_view, 9> kCopies{
    "aten::copy_", "aten::cat",   "aten::clone", "aten::to",      "aten::contiguous",
    "aten::fill_", "aten::zero_", "aten::stack", "aten::_to_copy"};

/// "aten::silu_backward" and "aten::add_" are forms of "aten::silu" and "aten::add".
std::string_view plain_name(std::string_view name) {
  for (const std::string_view end : {"_backward", "_"})
    if (name.ends_with(end) && name.size() > end.size())
      return name.substr(0, name.size() - end.size());
  return name;
}

template <size_t n>
bool has(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

Kind kind_of(std::string_view name) {
  const std::string_view plain = plain_name(name);
  if (has(kProducts, plain)) return OperatorKind::product;
  if (has(kNorms, plain)) return OperatorKind::norm;
  if (has(kArithmetic, plain) || has(kCopies, name)) return OperatorKind::elementwise;
  return std::nullopt;
}

const at::Tensor* tensor_at(c10::ArrayRef<const c10::IValue> inputs, size_t place) {
  return place < inputs.size() && inputs[place].isTensor() ? &inputs[place].toTensor() : nullptr;
}

/// Of an operation that computes itself; 0 for one that calls others.
double flops_of(std::string_view form, c10::ArrayRef<const c10::IValue> inputs) {
  const std::string_view name = plain_name(form);
  const bool adds = name == "aten::addmm" || name == "aten::baddbmm";
  const at::Tensor *a = tensor_at(inputs, adds ? 1 : 0), *b = tensor_at(inputs, adds ? 2 : 1);
  if (has(kArithmetic, name)) {
    const double first = a != nullptr ? static_cast<double>(a->numel()) : 0.0;
    return std::max(first, b != nullptr ? static_cast<double>(b->numel()) : 0.0);
  }
  if (a == nullptr || b == nullptr || !a->defined() || !b->defined()) return 0.0;
  const double numbers = 2.0 * static_cast<double>(a->numel());
  if (name == "mkldnn::_linear_pointwise") return numbers * static_cast<double>(b->size(0));
  if (name == "aten::mm" || name == "aten::bmm" || adds)
    return numbers * static_cast<double>(b->size(-1));
  return 0.0;
}

/// An operation under way in this thread.
struct Frame {
  std::chrono::steady_clock::time_point start;
  double inner_seconds = 0;
  Kind kind = {};  // of what is around it, where that has one
  bool backward = false;
  // Of an outermost scope.
  bool makes_nodes = false;
  uint64_t first_node = 0;
  double backward_flops = 0;
};
thread_local std::vector<Frame> frames;

}  // namespace

std::span<const std::string_view> enum_names(OperatorKind) {
  static constexpr std::array<std::string_view, kOperatorKinds> names{
      "matrix products",      "attention", "norms", "rotation, element-wise",
      "loss over vocabulary", "optimizer", "other"};
  return names;
}

double OperatorCosts::seconds() const {
  double sum = 0;
  for (const auto* pass : {&forward, &backward})
    for (const OperatorCost& cost : *pass) sum += cost.seconds;
  return sum;
}

struct OperatorProfile::Impl {
  /// The backward nodes that a scope's forward pass made.
  struct Nodes {
    uint64_t begin = 0, end = 0;
    OperatorKind kind = OperatorKind::other;
    double flops = 0;  // counted at the first of them that runs
  };

  at::Device device;
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  std::mutex mutex;
  OperatorCosts costs;
  std::map<uint64_t, std::vector<Nodes>> nodes;  // by the thread of the forward pass, in order

  void wait() const {
    if (device.is_cpu()) return;
    c10::impl::getDeviceGuardImpl(device.type())->synchronizeDevice(device.index());
  }

  OperatorCost& cost(const Frame& frame) {
    return (frame.backward
                ? costs.backward
                : costs.forward)[static_cast<size_t>(frame.kind.value_or(OperatorKind::other))];
  }

  /// `flops` count where the operation's kind is its own.
  Frame& begin(Kind own, bool backward, double flops) {
    wait();
    Frame frame;
    const Frame* const around = frames.empty() ? nullptr : &frames.back();
    const bool product_of_loss =
        around != nullptr && around->kind == OperatorKind::loss && own == OperatorKind::product;
    const bool inherits = around != nullptr && around->kind && !product_of_loss;
    frame.kind = inherits ? around->kind : own;
    frame.backward = backward || (around != nullptr && around->backward);
    const bool counts = !inherits || (own == frame.kind && own == OperatorKind::product);
    if (counts && flops > 0) {
      const std::scoped_lock lock(mutex);
      cost(frame).flops += flops;
    }
    frame.start = std::chrono::steady_clock::now();
    frames.push_back(frame);
    return frames.back();
  }

  void end(bool waits) {
    if (waits) wait();
    const Frame frame = frames.back();
    frames.pop_back();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - frame.start).count();
    if (!frames.empty()) frames.back().inner_seconds += seconds;
    const std::scoped_lock lock(mutex);
    cost(frame).seconds += seconds - frame.inner_seconds;
    const uint64_t last = frame.makes_nodes ? at::sequence_number::peek() : 0;
    if (last > frame.first_node) {
      nodes[at::RecordFunction::currentThreadId()].push_back({.begin = frame.first_node,
                                                              .end = last,
                                                              .kind = *frame.kind,
                                                              .flops = frame.backward_flops});
    }
  }

  /// The scope that made a backward node, and its FLOPs unless they are counted.
  std::pair<Kind, double> scope_of(const at::RecordFunction& node) {
    const std::scoped_lock lock(mutex);
    const auto found = nodes.find(node.forwardThreadId());
    if (found == nodes.end() || node.seqNr() < 0) return {};
    const auto sequence = static_cast<uint64_t>(node.seqNr());
    const auto behind = std::ranges::upper_bound(found->second, sequence, {}, &Nodes::begin);
    if (behind == found->second.begin()) return {};
    Nodes& scope = *std::prev(behind);
    if (sequence >= scope.end) return {};
    return {scope.kind, std::exchange(scope.flops, 0.0)};
  }

  static std::unique_ptr<at::ObserverContext> heard(const at::RecordFunction& operation) {
    Impl& profile = *active()->impl_;
    if (operation.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      const auto [kind, flops] = profile.scope_of(operation);
      profile.begin(kind, true, flops);
    } else {
      const std::string_view name = operation.name();
      const Kind kind = kind_of(name);
      profile.begin(kind, false, kind ? flops_of(name, operation.inputs()) : 0.0);
    }
    return nullptr;
  }
  static void over(const at::RecordFunction& /*operation*/, at::ObserverContext* /*context*/) {
    active()->impl_->end(true);
  }
};

OperatorProfile::OperatorProfile(at::Device device) : impl_(new Impl{.device = device}) {
  OperatorProfile* none = nullptr;
  require<ConfigError>(listening.compare_exchange_strong(none, this), "profile",
                       "expected one profile at a time; another one is listening");
  impl_->handle = at::addGlobalCallback(
      at::RecordFunctionCallback(Impl::heard, Impl::over)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

OperatorProfile::~OperatorProfile() {
  at::removeCallback(impl_->handle);
  listening = nullptr;
}

OperatorProfile* OperatorProfile::active() { return listening.load(std::memory_order_relaxed); }

OperatorCosts OperatorProfile::take() {
  const std::scoped_lock lock(impl_->mutex);
  impl_->nodes.clear();
  return std::exchange(impl_->costs, {});
}

void OperatorProfile::begin_scope(OperatorKind kind, double flops, double backward) {
  const bool outermost = frames.empty() || !frames.back().kind;
  Frame& frame = impl_->begin(kind, false, flops);
  if (!outermost) return;
  frame.makes_nodes = true;
  frame.first_node = at::sequence_number::peek();
  frame.backward_flops = flops * backward;
}

void OperatorProfile::end_scope(bool waits) { impl_->end(waits); }

}  // namespace fovea
