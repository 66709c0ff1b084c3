// libfovea_nccl.so: exchanges between GPUs by c10d's NCCL, the engine of torch.distributed there.
//
// The only source that reads headers of NCCL. It has run with one rank on an H200: sums and
// broadcasts. Gathers and several GPUs have not run.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <nccl.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <vector>

#include "fovea/runtime/device_exchange.h"

namespace fovea {
namespace {

using Group = c10d::ProcessGroupNCCL;

/// c10d's own thread ends what a rank waits for after the time-out, and leaves the process alive:
/// the next exchange says what happened. Its reports for debuggers are off.
void set_up_c10d() {
  constexpr int kKeepWhatIsSet = 0;
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", kKeepWhatIsSet);  // end exchanges only
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", kKeepWhatIsSet);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", kKeepWhatIsSet);
}

c10::intrusive_ptr<Group> make_group(const DeviceExchangePlace& place) {
  set_up_c10d();
  auto options = Group::Options::create();
  options->timeout = place.timeout;
  return c10::make_intrusive<Group>(place.store, static_cast<int>(place.rank),
                                    static_cast<int>(place.size), options);
}

class NcclExchange final : public DeviceExchange {
 public:
  explicit NcclExchange(const DeviceExchangePlace& place)
      : group_(make_group(place)), rank_(place.rank) {}
  ~NcclExchange() override {
    try {
      // Ranks that end together take leave of each other; one that fails does not wait.
      if (!aborted_) std::uncaught_exceptions() == 0 ? group_->shutdown() : group_->abort();
    } catch (const std::exception&) {
      // There was a failure before, which has been told.
    }
  }

  void sum(const at::Tensor& tensor) override {
    std::vector<at::Tensor> whole{tensor};
    begin([&] { return group_->allreduce(whole); });
  }
  void broadcast(const at::Tensor& tensor, int64_t from) override {
    std::vector<at::Tensor> whole{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = from;
    begin([&] { return group_->broadcast(whole, options); });
  }
  void gather(const at::Tensor& rows_rn) override {
    at::Tensor all = rows_rn.view(-1), own = rows_rn.select(0, rank_);
    begin([&] { return group_->_allgather_base(all, own); });
  }
  bool idle() override {
    const std::lock_guard lock(mutex_);
    return !last_ || last_->isCompleted();
  }
  void give_up() override {
    {
      const std::lock_guard lock(mutex_);
      aborted_ = true;
    }
    group_->abort();
  }

 private:
  template <class F>
  void begin(const F& exchange) {
    {
      const std::lock_guard lock(mutex_);
      TORCH_CHECK(!aborted_ && group_->getError() == c10d::ErrorType::SUCCESS,
                  "an exchange between the GPUs failed or took too long");
    }
    c10::intrusive_ptr<c10d::Work> work = exchange();
    work->wait();  // the current stream does, not the host
    const std::lock_guard lock(mutex_);
    last_ = std::move(work);
  }

  c10::intrusive_ptr<Group> group_;
  int64_t rank_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Work> last_;
  bool aborted_ = false;
};

}  // namespace
}  // namespace fovea

extern "C" {

// NOLINTNEXTLINE(*-owning-memory): the caller owns it
fovea::DeviceExchange* fovea_make_nccl_exchange(const fovea::DeviceExchangePlace& place) {
  return new fovea::NcclExchange(place);
}

void fovea_nccl_versions(int& built, int& loaded) {
  built = NCCL_VERSION_CODE;
  loaded = 0;
  ncclGetVersion(&loaded);
}
}
