// The masks of recent calls on the device: layers of a model share one, and so do its two passes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "fovea/kernels/cuda/attention/band_mask.h"
#include "fovea/kernels/cuda/machine.h"

namespace fovea::kernels::cuda {

/// Thread-safe.
class BandMasks {
 public:
  struct Entry {
    std::vector<Visits>
        visits;  ///< copies share the plans' memory, so that its address stays theirs
    BandMask mask;
    std::unique_ptr<Scratch> memory;     ///< of doc_start
    Stream stream = nullptr;             ///< that filled it; another one fills its own
    const int32_t* doc_start = nullptr;  ///< on the device, once a call ran; null: one document
  };

  /// The mask of these visits. The entry lives as long as the pointer to it.
  std::shared_ptr<Entry> of(std::span<const Visits> visits);
  /// The same, with its documents on the device.
  std::shared_ptr<Entry> on_device(std::span<const Visits> visits, Stream stream);

 private:
  /// `stream`: where its documents are read; null: nowhere.
  std::shared_ptr<Entry> find(std::span<const Visits> visits, const Stream* stream);

  std::mutex mutex_;
  std::list<std::shared_ptr<Entry>> recent_;
};

BandMasks& band_masks();

}  // namespace fovea::kernels::cuda
