// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_device.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>

namespace fovea::testing {
namespace {

// ---- Memory: a range of addresses that nobody may touch, and the bytes behind it ----------------

class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, fake_device()};
    const size_t size = std::bit_ceil(std::max<size_t>(bytes, kLeast));
    const std::lock_guard lock(mutex_);
    if (used_ + size > limit_) {
      throw c10::OutOfMemoryError(
          {__func__, __FILE__, __LINE__},
          fmt::format("CUDA out of memory. Tried to allocate {:.2f} MiB. GPU 0 has a total "
                      "capacity of {:.2f} MiB of which 0 bytes is free.",
                      static_cast<double>(bytes) / (1 << 20),
                      static_cast<double>(limit_) / (1 << 20)));
    }
    used_ += size;
    std::vector<char*>& free = free_[size];
    char* place = nullptr;
    if (!free.empty()) {
      place = free.back();
      free.pop_back();
    } else {
      TORCH_CHECK(next_ + size <= kMost, "the fake device is full");
      place = shown_ + next_;
      next_ += size;
    }
    sizes_[place] = size;
    return {place, place, [](void* address) { instance().release(address); }, fake_device()};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(bytes_of(to), bytes_of(from), bytes);
  }
  /// The bytes behind an address that tensors show.
  char* bytes_of(const void* address) const {
    return address == nullptr ? nullptr : behind_ + (static_cast<const char*>(address) - shown_);
  }
  void set_limit(size_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
  }
  static Memory& instance() {
    static auto* const memory = new Memory;  // outlives every tensor
    return *memory;
  }

 private:
  static constexpr size_t kLeast = 64, kMost = size_t{8} << 30;

  Memory()
      : shown_(map(PROT_NONE)),
        behind_(map(PROT_READ | PROT_WRITE)) {}  // takes memory where it is written
  static char* map(int rights) {
    void* const range =
        mmap(nullptr, kMost, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(range != MAP_FAILED, "no addresses for the fake device");
    return static_cast<char*>(range);
  }
  void release(void* address) {
    const std::lock_guard lock(mutex_);
    char* const place = static_cast<char*>(address);
    const size_t size = sizes_.at(place);
    used_ -= size;
    free_[size].push_back(place);
  }

  std::mutex mutex_;
  char *shown_, *behind_;
  size_t next_ = 0, used_ = 0, limit_ = kMost;
  std::map<size_t, std::vector<char*>> free_;
  std::map<char*, size_t> sizes_;
};

// ---- Counting ----------------------------------------------------------------------------------

std::mutex pulls_mutex;
std::optional<std::vector<Pull>> pulls;  // while somebody counts

std::string place_of_call() {
  void* frames[96];
  const int count = backtrace(frames, std::size(frames));
  for (int i = 0; i < count; ++i) {
    Dl_info info;
    if (dladdr(frames[i], &info) == 0 || info.dli_sname == nullptr) continue;
    int status = 0;
    char* const readable = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
    std::string name = status == 0 ? readable : "";
    std::free(readable);
    name = name.substr(0, name.find('('));
    if (name.starts_with("fovea::") && !name.starts_with("fovea::testing::")) return name;
  }
  return "an unknown place";
}

void count_pull(const std::string& operation) {
  const std::lock_guard lock(pulls_mutex);
  if (pulls) pulls->push_back({operation, place_of_call()});
}

// Operations whose result has a size that depends on values: CUDA waits for the numbers.
bool waits_for_values(const std::string& name) {
  static const std::set<std::string> names{
      "aten::nonzero",     "aten::masked_select", "aten::_unique2",
      "aten::equal",       "aten::bincount",      "aten::repeat_interleave",
      "aten::_unique",     "aten::unique_dim",    "aten::unique_consecutive",
      "aten::_linalg_svd", "aten::_linalg_eigh"};
  return names.contains(name);
}

// Places by a mask: CUDA looks for them first. (Reading by one asks for aten::nonzero itself.)
bool writes_by_mask(const std::string& name, std::span<const c10::IValue> arguments) {
  if (name != "aten::_index_put_impl_") return false;
  const auto all = arguments[1].toOptionalTensorVector();
  return std::ranges::any_of(all, [](const std::optional<at::Tensor>& x) {
    return x && x->defined() && (x->scalar_type() == at::kBool || x->scalar_type() == at::kByte);
  });
}

// Indices may stay on the host; each is an upload, not a pull.
bool takes_both_sides(const std::string& name) {
  return name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_";
}

// ---- Tensors of both sides over the same bytes
// ---------------------------------------------------

at::Tensor over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor x = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                          c10::DispatchKeySet(key), like.dtype());
  x.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                 like.storage_offset());
  return x;
}

/// The arguments of one operation: tensors of the device and, for torch's CPU kernels, the same
/// bytes as tensors of the CPU.
class Arguments {
 public:
  at::Tensor to_host(const at::Tensor& x) {
    if (!x.defined() || !x.is_privateuseone()) {
      mixed_ |= x.defined() && x.is_cpu() && x.dim() > 0;
      return x;
    }
    for (const Both& both : tensors_)
      if (both.device.is_same(x)) return both.host;
    tensors_.push_back({x, over(host_storage(x.storage()), c10::DispatchKey::CPU, x)});
    return tensors_.back().host;
  }
  /// Takes over what an operation did to the shape and memory of its arguments.
  void follow_changes() {
    for (Both& both : tensors_) {
      const at::Tensor &host = both.host, &device = both.device;
      const c10::Storage& storage = device.storage();
      if (host.storage().data() != Memory::instance().bytes_of(storage.data())) {
        c10::Storage moved = device_storage(host.storage());
        const size_t bytes = moved.nbytes();
        storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
            std::move(moved.unsafeGetStorageImpl()->mutable_data_ptr()));
        storage.unsafeGetStorageImpl()->set_nbytes(bytes);
      }
      if (host.sizes() != device.sizes() || host.strides() != device.strides())
        device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(),
                                                            host.storage_offset());
    }
  }
  /// A result as a tensor of the device: an argument, a view of one, or new.
  at::Tensor to_device(const at::Tensor& host) const {
    if (!host.defined() || !host.is_cpu()) return host;
    for (const Both& both : tensors_)
      if (both.host.is_same(host)) return both.device;
    for (const Both& both : tensors_)
      if (both.host.is_alias_of(host))
        return over(both.device.storage(), c10::DispatchKey::PrivateUse1, host);
    return over(device_storage(host.storage()), c10::DispatchKey::PrivateUse1, host);
  }
  bool mixed() const { return mixed_; }

 private:
  struct Both {
    at::Tensor device, host;
  };

  // Shared by all tensors of one storage, so that kernels see what overlaps.
  c10::Storage host_storage(const c10::Storage& device) const {
    for (const Both& both : tensors_)
      if (both.device.storage().is_alias_of(device)) return both.host.storage();
    auto* const owner = new c10::Storage(device);
    c10::DataPtr bytes(
        Memory::instance().bytes_of(device.data()), owner,
        [](void* kept) { delete static_cast<c10::Storage*>(kept); }, at::kCPU);
    return c10::Storage(c10::Storage::use_byte_size_t(), device.nbytes(), std::move(bytes),
                        c10::GetAllocator(at::kCPU), /*resizable=*/true);
  }
  static c10::Storage device_storage(const c10::Storage& host) {
    Memory& memory = Memory::instance();
    c10::DataPtr data = memory.allocate(host.nbytes());
    if (host.nbytes() > 0) std::memcpy(memory.bytes_of(data.get()), host.data(), host.nbytes());
    return c10::Storage(c10::Storage::use_byte_size_t(), host.nbytes(), std::move(data), &memory,
                        /*resizable=*/true);
  }

  std::vector<Both> tensors_;
  bool mixed_ = false;
};

template <class Change>
c10::IValue changed(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& x : value.toTensorVector()) list.push_back(change(x));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& x : value.toOptionalTensorVector())
      list.push_back(x ? std::optional(change(*x)) : std::nullopt);
    return list;
  }
  return value;
}

// Any operation of torch, by its CPU kernel.
void by_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  const size_t first = stack->size() - op.schema().arguments().size();
  if (waits_for_values(name) || writes_by_mask(name, std::span(*stack).subspan(first)))
    count_pull(name);
  Arguments arguments;
  for (size_t i = first; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    value = value.isDevice()
                ? c10::IValue(c10::Device(at::kCPU))
                : changed(value, [&](const at::Tensor& x) { return arguments.to_host(x); });
  }
  TORCH_CHECK(!arguments.mixed() || takes_both_sides(name),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              fake_device(), " and cpu! (", name, ")");
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  arguments.follow_changes();
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i)
    (*stack)[i] = changed((*stack)[i], [&](const at::Tensor& x) { return arguments.to_device(x); });
}

// ---- What has no CPU kernel to call
// ---------------------------------------------------------------

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &Memory::instance(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &Memory::instance(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  if (from.is_privateuseone() && to.is_cpu() && from.numel() > 0) count_pull("copy to the host");
  const at::AutoDispatchBelowADInplaceOrView below;
  Arguments arguments;
  arguments.to_host(to).copy_(arguments.to_host(from));
  return to;
}

at::Scalar local_scalar(const at::Tensor& x) {
  count_pull("aten::_local_scalar_dense");
  return at::_local_scalar_dense(Arguments().to_host(x));
}

// torch asks a backend of its own for convolutions.
at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  Arguments all;
  return all.to_device(at::convolution(
      all.to_host(x), all.to_host(weight), bias ? std::optional(all.to_host(*bias)) : std::nullopt,
      stride, padding, dilation, transposed, output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  Arguments all;
  const auto [dx, dweight, dbias] = at::convolution_backward(
      all.to_host(grad), all.to_host(x), all.to_host(weight), at::IntArrayRef{weight.size(0)},
      stride, padding, dilation, transposed, output_padding, groups, wanted);
  return {all.to_device(dx), all.to_device(dweight), all.to_device(dbias)};
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  at::DeviceType type() const override { return at::kPrivateUse1; }
  at::Device exchangeDevice(at::Device) const override { return fake_device(); }
  at::Device getDevice() const override { return fake_device(); }
  void setDevice(at::Device) const override {}
  void uncheckedSetDevice(at::Device) const noexcept override {}
  c10::Stream getStream(at::Device) const override { return stream(); }
  c10::Stream getDefaultStream(at::Device) const override { return stream(); }
  c10::Stream getStreamFromGlobalPool(at::Device, bool) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }

 private:
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, fake_device()); }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};

// The name is for messages: "fake:0".
const bool registered = [] {
  c10::register_privateuse1_backend("fake");
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &Memory::instance());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
}

CountedPulls::CountedPulls() {
  const std::lock_guard lock(pulls_mutex);
  pulls.emplace();
}

CountedPulls::~CountedPulls() {
  const std::lock_guard lock(pulls_mutex);
  pulls.reset();
}

int64_t CountedPulls::count() const {
  const std::lock_guard lock(pulls_mutex);
  return std::ssize(*pulls);
}

std::string CountedPulls::text() const {
  const std::lock_guard lock(pulls_mutex);
  std::map<std::string, int64_t> lines;
  for (const Pull& pull : *pulls) ++lines[fmt::format("{} in {}", pull.operation, pull.place)];
  std::string text;
  for (const auto& [line, count] : lines) text += fmt::format("  {} x {}\n", count, line);
  return text;
}

void* bytes_behind(const void* address) { return Memory::instance().bytes_of(address); }

FakeMemoryLimit::FakeMemoryLimit(int64_t bytes) {
  Memory::instance().set_limit(static_cast<size_t>(bytes));
}
FakeMemoryLimit::~FakeMemoryLimit() { Memory::instance().set_limit(size_t{8} << 30); }

}  // namespace fovea::testing
