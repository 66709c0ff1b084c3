// DeviceExchange: exchanges between the devices of several ranks, without the host in between.
//
// On GPUs it is NCCL, in a library of its own (nccl/nccl_exchange.cpp), because it needs torch's
// CUDA half, to which no program is linked.
//
// Each call begins when the work so far on the caller's current stream is done, and that stream
// waits for it. The host does not. Every call is collective, as those of Communicator.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace c10d {
class Store;
}

namespace fovea {

class DeviceExchange {
 public:
  virtual ~DeviceExchange() = default;

  /// A contiguous tensor becomes its sum over the ranks.
  virtual void sum(const at::Tensor& tensor) = 0;
  /// A contiguous tensor becomes that of rank `from`.
  virtual void broadcast(const at::Tensor& tensor, int64_t from) = 0;
  /// rows [ranks, n], contiguous: row r becomes that of rank r.
  virtual void gather(const at::Tensor& rows_rn) = 0;
  /// Whether the device has done all that was begun. From any thread.
  virtual bool idle() = 0;
  /// Ends what the device waits for, with any numbers; later calls throw. From any thread.
  virtual void give_up() = 0;
};

struct DeviceExchangePlace {
  c10::intrusive_ptr<c10d::Store> store;  ///< where the ranks meet
  int64_t rank = 0, size = 1;
  at::Device device = at::kCPU;
  std::chrono::milliseconds timeout{};  ///< of one exchange
};

/// Connects the devices of all ranks; ConfigError where something is missing for it.
using DeviceExchangeMaker =
    std::function<std::unique_ptr<DeviceExchange>(const DeviceExchangePlace&)>;

/// By NCCL. ConfigError where this build has no libfovea_nccl.so, or what it needs.
std::unique_ptr<DeviceExchange> nccl_exchange(const DeviceExchangePlace& place);
/// Why this machine's ranks cannot use NCCL; empty where they can.
const std::string& why_no_nccl();

/// The function of libfovea_nccl.so; null and the reason where NCCL is another one than at the
/// build.
constexpr const char* kMakeNcclExchange = "fovea_make_nccl_exchange";
using MakeNcclExchange = DeviceExchange* (*)(const DeviceExchangePlace& place);
/// Another of its functions: the version of NCCL that it was built for and the one that is loaded,
/// as NCCL counts them.
constexpr const char* kNcclVersions = "fovea_nccl_versions";
using NcclVersions = void (*)(int& built, int& loaded);

}  // namespace fovea
