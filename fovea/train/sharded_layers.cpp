// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/sharded_layers.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/runtime/ring_gather.h"
#include "fovea/runtime/side_stream.h"

namespace fovea {

/// Exchanges one after the other on a thread of their own, in the order in which they were begun,
/// which is the same on every rank. On a device they have a stream of their own, too.
class ShardedLayers::Exchanges {
 public:
  explicit Exchanges(at::Device device) : side_(device), thread_([this] { work(); }) {}
  ~Exchanges() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// After what the caller's stream has to do.
  void begin(std::function<void()> exchange) {
    const StreamPoint now(side_.device());
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back([now, call = std::move(exchange)] {
        now.wait();
        call();
      });
      ++begun_;
    }
    changed_.notify_all();
  }
  int64_t begun() const { return begun_; }  // by the one thread that begins them

  /// Returns when so many are done; rethrows an error of one of them.
  void wait(int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= count || error_; });
    if (error_) std::rethrow_exception(error_);
    for (; first_ < count - 1; ++first_) points_.pop_front();
    if (first_ < count) points_.front().wait();
  }

 private:
  void work() {
    const at::NoGradGuard no_grad;
    const SideStream::Scope scope(side_);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return over_ || !waiting_.empty(); });
      if (over_) return;
      std::function<void()> exchange = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      std::exception_ptr failed;
      try {
        exchange();
      } catch (...) {
        failed = std::current_exception();
      }
      exchange = nullptr;  // and the tensors that it holds
      const StreamPoint now(side_.device());
      lock.lock();
      points_.push_back(now);
      ++done_;
      if (failed) {
        error_ = failed;
        waiting_.clear();
      }
      changed_.notify_all();
    }
  }

  SideStream side_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  int64_t begun_ = 0, done_ = 0;
  std::deque<StreamPoint> points_;  // after each exchange that is done, but for the first ones
  int64_t first_ = 0;               // so many
  bool over_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

namespace {

/// What mechanisms add stays whole: they read and write it outside of passes.
bool is_cut(const Parameter& parameter, const std::string& prefix) {
  return parameter.origin == Parameter::Origin::base && !parameter.state &&
         parameter.name.starts_with(prefix);
}

/// Gradients of whole parameters come and go with every layer. In pages of their own they leave no
/// gaps: of a model of 24 layers of width 512 on two ranks, gaps were a tenth of the memory.
void give_large_pieces_back() {
#ifdef __GLIBC__
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") == nullptr) mallopt(M_MMAP_THRESHOLD, 2 << 20);
#endif
}

}  // namespace

ShardedLayers::ShardedLayers(Transformer& model, Communicator& ranks)
    : model_(model),
      ranks_(ranks),
      numbers_(
          at::TensorOptions(at::kFloat).device(model.parameters().all().front().value.device())),
      layers_(static_cast<size_t>(model.config().layers)) {
  require<UnsupportedError>(!model.has("longformer"), "train",
                            "'train.shard: all' cuts the weights of layers, from which "
                            "Longformer's projections of global "
                            "rows are copied; set 'train.shard: moments'");
  give_large_pieces_back();
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const std::string prefix = fmt::format("model.layers.{}.", i);
    for (Parameter& parameter : model.parameters().all()) {
      if (!is_cut(parameter, prefix)) continue;
      places_[&parameter] = {.layer = i, .offset = layer.parts.numbers};
      layer.parameters.push_back(&parameter);
      layer.offsets.push_back(layer.parts.numbers);
      layer.parts.numbers += parameter.value.numel();
    }
    layer.parts.ranks = ranks.size();
    layer.own = at::empty({layer.parts.length()}, numbers_);
    go(layer);
  }
  exchanges_ = std::make_unique<Exchanges>(numbers_.device());
}

ShardedLayers::~ShardedLayers() = default;

at::Tensor ShardedLayers::own_part(const at::Tensor& numbers, const Parameter& parameter) const {
  return parts(parameter).part(numbers, offset(parameter), ranks_.rank());
}

void ShardedLayers::set(const Parameter& parameter, const at::Tensor& numbers) {
  const at::NoGradGuard no_grad;
  own_value(parameter).copy_(own_part(numbers.contiguous(), parameter));
}

void ShardedLayers::draw() {
  const ParameterRegistry& registry = model_.parameters();
  for (Parameter& parameter : model_.parameters().all()) {
    if (!has(parameter)) {
      registry.draw(parameter);
      continue;
    }
    at::Tensor numbers = at::empty(parameter.value.sizes(), at::kFloat);
    initialise(numbers, parameter.init, registry.seed(), parameter.name);
    set(parameter, numbers);
  }
}

void ShardedLayers::take(ShardedLayers& before) {
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i].own = std::move(before.layers_[i].own);
}

void ShardedLayers::wait(int64_t exchanges) {
  const auto start = std::chrono::steady_clock::now();
  exchanges_->wait(exchanges);
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

at::Tensor ShardedLayers::whole_like(const Layer& layer) {
  const auto fits = [&](const at::Tensor& x) { return x.size(1) == layer.parts.length(); };
  const auto found = std::ranges::find_if(spare_rn_, fits);
  if (found == spare_rn_.end()) return at::empty({ranks_.size(), layer.parts.length()}, numbers_);
  at::Tensor whole = std::move(*found);
  spare_rn_.erase(found);
  return whole;
}

/// Begins to gather a layer.
void ShardedLayers::come(Layer& layer) {
  if (layer.whole_rn.defined()) return;
  layer.whole_rn = whole_like(layer);
  exchanges_->begin([whole = layer.whole_rn, own = layer.own, &ranks = ranks_] {
    whole.select(0, ranks.rank()).copy_(own);
    ring_gather(whole, ranks);
  });
  layer.arrives = exchanges_->begun();
}

void ShardedLayers::go(Layer& layer) {
  for (Parameter* parameter : layer.parameters)
    parameter->value.set_data(without_memory(parameter->value.sizes(), numbers_));
  if (layer.whole_rn.defined()) spare_rn_.push_back(std::move(layer.whole_rn));
  layer.whole_rn.reset();
  layer.reading = false;
}

void ShardedLayers::gather(int64_t index, int64_t next) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool stays = static_cast<int64_t>(i) == index || static_cast<int64_t>(i) == next;
    if (!stays && layers_[i].whole_rn.defined()) go(layers_[i]);
  }
  Layer& layer = layers_[static_cast<size_t>(index)];
  come(layer);
  if (!layer.reading) {
    wait(layer.arrives);
    const at::Tensor flat = layer.whole_rn.view(-1);
    for (size_t n = 0; n < layer.parameters.size(); ++n) {
      at::Tensor& value = layer.parameters[n]->value;
      value.set_data(flat.narrow(0, layer.offsets[n], value.numel()).view(value.sizes()));
    }
    layer.reading = true;
  }
  if (next >= 0) come(layers_[static_cast<size_t>(next)]);
}

void ShardedLayers::reduce(int64_t index) {
  const at::NoGradGuard no_grad;
  Layer& layer = layers_[static_cast<size_t>(index)];
  bool learns = false;
  for (const Parameter* parameter : layer.parameters) learns = learns || parameter->trainable;
  if (!learns) return;
  wait(last_sum_);  // no more than one sum is on its way
  if (summed_rn_.defined() && summed_rn_.size(1) == layer.parts.length())
    summed_rn_.zero_();
  else
    summed_rn_ = at::zeros({ranks_.size(), layer.parts.length()}, numbers_);
  const at::Tensor flat = summed_rn_.view(-1);
  for (size_t n = 0; n < layer.parameters.size(); ++n) {
    at::Tensor& gradient = layer.parameters[n]->value.mutable_grad();
    if (!gradient.defined()) continue;
    flat.narrow(0, layer.offsets[n], gradient.numel()).copy_(gradient.reshape(-1));
    gradient.reset();
  }
  const bool first = !std::exchange(layer.has_gradient, true);
  if (!layer.own_gradient.defined())
    layer.own_gradient = at::empty({layer.parts.length()}, numbers_);
  exchanges_->begin([sum_rn = summed_rn_, first, own = layer.own_gradient, &ranks = ranks_] {
    ranks.sum(std::span(&sum_rn, 1));
    const at::Tensor part = sum_rn.select(0, ranks.rank());
    first ? own.copy_(part) : own.add_(part);
  });
  last_sum_ = exchanges_->begun();
}

void ShardedLayers::finish() {
  exchanges_->wait(exchanges_->begun());
  for (Layer& layer : layers_)
    if (layer.whole_rn.defined()) go(layer);
}

at::Tensor ShardedLayers::own_value(const Parameter& parameter) const {
  return own_numbers(parameter, layers_[places_.at(&parameter).layer].own);
}

at::Tensor ShardedLayers::own_gradient(const Parameter& parameter) const {
  const Layer& layer = layers_[places_.at(&parameter).layer];
  return layer.has_gradient ? own_numbers(parameter, layer.own_gradient) : at::Tensor();
}

/// The parameter's numbers in this rank's part of its layer.
at::Tensor ShardedLayers::own_numbers(const Parameter& parameter, const at::Tensor& part) const {
  const FlatParts& cut = parts(parameter);
  const auto [begin, end] = cut.range(ranks_.rank());
  const int64_t from = std::clamp(offset(parameter), begin, end);
  const int64_t to = std::clamp(offset(parameter) + parameter.value.numel(), begin, end);
  return part.narrow(0, from - begin, to - from);
}

void ShardedLayers::clear_gradients() {
  for (Layer& layer : layers_) layer.has_gradient = false;
}

const FlatParts& ShardedLayers::parts(const Parameter& parameter) const {
  return layers_[places_.at(&parameter).layer].parts;
}

int64_t ShardedLayers::offset(const Parameter& parameter) const {
  return places_.at(&parameter).offset;
}

void ShardedLayers::add_to(SavedParts& saved) const {
  for (const Parameter& parameter : model_.parameters().all())
    if (has(parameter))
      saved.add(parameter.name, own_value(parameter), parameter.value.sizes(), offset(parameter),
                parts(parameter));
}

}  // namespace fovea
