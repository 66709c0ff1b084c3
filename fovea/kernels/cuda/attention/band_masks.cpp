// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/attention/band_masks.h"

#include <algorithm>

namespace fovea::kernels::cuda {
namespace {

// A model has few masks a batch, and few batches are in flight.
constexpr size_t kMostMasks = 16;

bool same_plans(std::span<const Visits> a, std::span<const Visits> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Visits& x, const Visits& y) {
    return x.memory.bytes().data() == y.memory.bytes().data();
  });
}

}  // namespace

std::shared_ptr<BandMasks::Entry> BandMasks::find(std::span<const Visits> visits,
                                                  const Stream* stream) {
  const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const auto& entry) {
    const bool readable = stream == nullptr || !entry->memory || entry->stream == *stream;
    return readable && same_plans(entry->visits, visits);
  });
  if (found != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, found);
    return recent_.front();
  }
  auto entry = std::make_shared<Entry>();
  entry->visits.assign(visits.begin(), visits.end());
  entry->mask = band_mask_of(visits);
  recent_.push_front(entry);
  if (recent_.size() > kMostMasks) recent_.pop_back();
  return entry;
}

std::shared_ptr<BandMasks::Entry> BandMasks::of(std::span<const Visits> visits) {
  const std::lock_guard lock(mutex_);
  return find(visits, nullptr);
}

std::shared_ptr<BandMasks::Entry> BandMasks::on_device(std::span<const Visits> visits,
                                                       Stream stream) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Entry> entry = find(visits, &stream);
  const std::vector<int32_t>& starts = entry->mask.doc_start;
  if (starts.empty() || entry->doc_start != nullptr) return entry;
  const int64_t count = std::ssize(starts);
  entry->memory = std::make_unique<Scratch>(Scratch::room<int32_t>(count));
  auto* const to = entry->memory->take<int32_t>(count);
  copy_to_device(to, starts.data(), count * static_cast<int64_t>(sizeof(int32_t)), stream);
  entry->doc_start = to;
  entry->stream = stream;
  return entry;
}

BandMasks& band_masks() {
  static auto* const masks = new BandMasks;  // outlives the program's allocator of the device
  return *masks;
}

}  // namespace fovea::kernels::cuda
