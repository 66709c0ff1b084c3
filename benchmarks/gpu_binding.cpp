// C functions around the CUDA kernels for benchmarks/gpu.py: calls by the contract's structs on
// memory of torch.
//
// Tensors are contiguous [batch, heads, tokens, head size]. Every function gives null, or the text
// of an error, which lives until the next call. One thread.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <map>
#include <string>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/kernels/device_services.h"

extern "C" const fovea::kernels::Backend* fovea_make_backend(
    const fovea::kernels::DeviceServices& services, size_t kernels_size, std::string& why_not);

namespace {

using namespace fovea;  // NOLINT: a program's file

// Memory that is given back serves the next request of its size: as torch's allocator does.
struct Pool {
  std::multimap<size_t, void*> free;
  std::map<void*, size_t> sizes;
};
Pool& pool() {
  static Pool all;
  return all;
}

void* allocate(size_t bytes) {
  if (const auto found = pool().free.find(bytes); found != pool().free.end()) {
    void* const memory = found->second;
    pool().free.erase(found);
    return memory;
  }
  void* memory = nullptr;
  if (cudaMalloc(&memory, bytes) != cudaSuccess)
    fail<MemoryError>("gpu", "expected {} bytes of GPU memory", bytes);
  pool().sizes[memory] = bytes;
  return memory;
}

void release(void* memory) { pool().free.emplace(pool().sizes.at(memory), memory); }

void* current_stream = nullptr;

const kernels::Backend& backend() {
  static const kernels::Backend* const made = [] {
    std::string why;
    const kernels::Backend* const result =
        fovea_make_backend({.allocate = allocate,
                            .release = release,
                            .stream = []() -> void* { return current_stream; }},
                           sizeof(kernels::Kernels), why);
    require<UnsupportedError>(result != nullptr, "gpu", "{}", why);
    return result;
  }();
  return *made;
}

std::string last_error;

template <class F>
const char* guarded(const F& f) {
  try {
    f();
    return nullptr;
  } catch (const std::exception& error) {
    last_error = error.what();
    return last_error.c_str();
  }
}

}  // namespace

extern "C" {

/// Null pointers and zeros are neutral.
struct GpuCall {
  int64_t batch, heads, kv_heads, queries, keys, head_dim;
  const void *q, *k, *v;
  void* out;
  float* lse;
  float scale, soft_cap;
  const float *tau, *alibi, *sink_logit;
  const void* dout;
  const float* dlse;
  void *dq, *dk, *dv;
  float *dtau, *dsink;
  void* rest;               ///< as out: the part that rounding took
  const uint64_t* members;  ///< hard Focus where it is given, [batch][keys]; no plan is read then
  int64_t groups, most_groups, focus_window, focus_sinks;
  /// A soft gate of Focus (kernels/common/pair_gate.h), its form by number; factors [batch][tokens]
  /// [groups], gradients [batch][heads of the side][tokens][groups].
  int64_t gate_form;
  float gate_offset;
  const float *gate_query, *gate_key;
  float *dgate_query, *dgate_key;
};

/// A mask of neighbouring tokens: queries are the last of the keys. documents: [batch][keys]
/// labels, or null.
const char* fovea_gpu_plan(int64_t batch, int64_t queries, int64_t keys, int64_t causal,
                           int64_t window, int64_t sinks, const int64_t* documents,
                           std::vector<Visits>** plan) {
  return guarded([&] {
    auto visits = std::make_unique<std::vector<Visits>>();
    for (int64_t b = 0; b < (documents != nullptr ? batch : 1); ++b) {
      std::vector<TokenPlace> places;
      for (int64_t n = 0; n < keys; ++n) {
        const int64_t document = documents != nullptr ? documents[b * keys + n] : 0;
        const bool goes_on = n > 0 && places.back().document == document;
        places.push_back({document, goes_on ? places.back().position + 1 : 0});
      }
      const std::vector<TokenPlace> last(places.end() - queries, places.end());
      visits->push_back(make_visits({.causal = causal != 0, .window = window, .sinks = sinks}, last,
                                    places, backend().tile_sizes()));
    }
    *plan = visits.release();
  });
}

void fovea_gpu_drop_plan(std::vector<Visits>* plan) { delete plan; }

const char* fovea_gpu_isa(void) {
  static std::string name;
  const char* const error =
      guarded([] { name = backend().isa<kernels::AttentionForward<BFloat16>>(); });
  return error != nullptr ? error : name.c_str();
}
}

namespace {

template <class T>
kernels::HeadRows<T> rows(const void* data, int64_t heads, int64_t tokens, int64_t width) {
  return {static_cast<T*>(const_cast<void*>(data)), heads * tokens * width, tokens * width, width};
}

template <class Problem>
Problem problem_of(const GpuCall& c, const std::vector<Visits>* plan) {
  Problem p;
  p.sizes = {c.batch, c.heads, c.kv_heads, c.queries, c.keys, c.head_dim, c.head_dim};
  p.rule.scale = c.scale;
  p.rule.tau = c.tau;
  p.rule.soft_cap = c.soft_cap;
  p.rule.alibi = c.alibi;
  p.rule.sink_logit = c.sink_logit;
  if (c.gate_form != 0)
    p.rule.gate = {.form = static_cast<kernels::PairGate::Form>(c.gate_form),
                   .offset = c.gate_offset,
                   .window = c.focus_window,
                   .sinks = c.focus_sinks,
                   .columns = c.groups,
                   .query = c.gate_query,
                   .key = c.gate_key,
                   .query_batch = c.queries * c.groups,
                   .key_batch = c.keys * c.groups};
  if constexpr (requires { p.visits; })
    p.visits = *plan;
  else
    p.groups = {.rule = {.groups = c.groups, .window = c.focus_window, .sinks = c.focus_sinks},
                .members = c.members,
                .most_groups = c.most_groups};
  p.q = rows<const BFloat16>(c.q, c.heads, c.queries, c.head_dim);
  p.k = rows<const BFloat16>(c.k, c.kv_heads, c.keys, c.head_dim);
  p.v = rows<const BFloat16>(c.v, c.kv_heads, c.keys, c.head_dim);
  p.lse = c.lse;
  return p;
}

template <class Problem>
void run_forward(const GpuCall& c, const std::vector<Visits>* plan) {
  auto p = problem_of<Problem>(c, plan);
  p.out = rows<BFloat16>(c.out, c.heads, c.queries, c.head_dim);
  if (c.rest != nullptr) p.out_rest = rows<BFloat16>(c.rest, c.heads, c.queries, c.head_dim);
  backend().run(p);
}

template <class Problem>
void run_backward(const GpuCall& c, const std::vector<Visits>* plan) {
  auto p = problem_of<Problem>(c, plan);
  p.out = rows<const BFloat16>(c.out, c.heads, c.queries, c.head_dim);
  if (c.rest != nullptr) p.out_rest = rows<const BFloat16>(c.rest, c.heads, c.queries, c.head_dim);
  p.dout = rows<const BFloat16>(c.dout, c.heads, c.queries, c.head_dim);
  p.dlse = c.dlse;
  p.dq = rows<BFloat16>(c.dq, c.heads, c.queries, c.head_dim);
  p.dk = rows<BFloat16>(c.dk, c.kv_heads, c.keys, c.head_dim);
  p.dv = rows<BFloat16>(c.dv, c.kv_heads, c.keys, c.head_dim);
  if constexpr (requires { p.dtau; }) {
    p.dtau = c.dtau;
    p.dsink = c.dsink;
  }
  if constexpr (requires { p.dgate_query; }) {
    p.dgate_query = c.dgate_query;
    p.dgate_key = c.dgate_key;
  }
  backend().run(p);
}

}  // namespace

extern "C" {

const char* fovea_gpu_forward(const GpuCall* c, const std::vector<Visits>* plan, void* stream) {
  return guarded([&] {
    current_stream = stream;
    c->members != nullptr ? run_forward<kernels::FocusForward<BFloat16>>(*c, plan)
                          : run_forward<kernels::AttentionForward<BFloat16>>(*c, plan);
  });
}

const char* fovea_gpu_backward(const GpuCall* c, const std::vector<Visits>* plan, void* stream) {
  return guarded([&] {
    current_stream = stream;
    c->members != nullptr ? run_backward<kernels::FocusBackward<BFloat16>>(*c, plan)
                          : run_backward<kernels::AttentionBackward<BFloat16>>(*c, plan);
  });
}

/// Convolutions and mixes of heads; null pointers and zeros are neutral. Queries are the keys.
struct GpuMixing {
  int64_t batch, heads, kv_heads, tokens, head_dim;
  const void *q, *k, *v;
  void* out;
  float* lse;
  float scale;
  const float* kernel_before;  ///< [heads][rows][columns]
  int64_t before_rows, before_columns;
  const float* kernel_after;
  int64_t after_rows, after_columns;
  const float* mix_before;  ///< [heads / width][out][in]
  int64_t before_width;
  const float* mix_after;  ///< [heads / width][in][out]
  int64_t after_width;
  const void* dout;
  const float* dlse;
  void *dq, *dk, *dv;
  float *dkernel_before, *dkernel_after, *dmix_before, *dmix_after;
};
}

namespace {

template <class Problem>
Problem mixing_problem(const GpuMixing& c, const std::vector<Visits>* plan) {
  Problem p;
  p.sizes = {c.batch, c.heads, c.kv_heads, c.tokens, c.tokens, c.head_dim, c.head_dim};
  p.rule.scale = c.scale;
  p.mixing = {.kernel_before = {c.kernel_before, c.before_rows, c.before_columns},
              .kernel_after = {c.kernel_after, c.after_rows, c.after_columns},
              .mix_before = {c.mix_before, c.before_width},
              .mix_after = {c.mix_after, c.after_width}};
  p.visits = *plan;
  p.q = rows<const BFloat16>(c.q, c.heads, c.tokens, c.head_dim);
  p.k = rows<const BFloat16>(c.k, c.kv_heads, c.tokens, c.head_dim);
  p.v = rows<const BFloat16>(c.v, c.kv_heads, c.tokens, c.head_dim);
  p.lse = c.lse;
  return p;
}

}  // namespace

extern "C" {

const char* fovea_gpu_mixing_forward(const GpuMixing* c, const std::vector<Visits>* plan,
                                     void* stream) {
  return guarded([&] {
    current_stream = stream;
    auto p = mixing_problem<kernels::MixingForward<BFloat16>>(*c, plan);
    p.out = rows<BFloat16>(c->out, c->heads, c->tokens, c->head_dim);
    backend().run(p);
  });
}

const char* fovea_gpu_mixing_backward(const GpuMixing* c, const std::vector<Visits>* plan,
                                      void* stream) {
  return guarded([&] {
    current_stream = stream;
    auto p = mixing_problem<kernels::MixingBackward<BFloat16>>(*c, plan);
    p.dout = rows<const BFloat16>(c->dout, c->heads, c->tokens, c->head_dim);
    p.dlse = c->dlse;
    p.dq = rows<BFloat16>(c->dq, c->heads, c->tokens, c->head_dim);
    p.dk = rows<BFloat16>(c->dk, c->kv_heads, c->tokens, c->head_dim);
    p.dv = rows<BFloat16>(c->dv, c->kv_heads, c->tokens, c->head_dim);
    p.dkernel_before = c->dkernel_before;
    p.dkernel_after = c->dkernel_after;
    p.dmix_before = c->dmix_before;
    p.dmix_after = c->dmix_after;
    backend().run(p);
  });
}
}
