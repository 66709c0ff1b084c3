// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/side_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace fovea {

StreamPoint::StreamPoint(at::Device device) : device_(device) {
  if (device.is_cpu()) return;
  event_ = std::make_shared<c10::Event>(device.type());
  event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

void StreamPoint::wait() const {
  if (event_) event_->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

SideStream::SideStream(at::Device device) : device_(device) {
  if (!device.is_cpu())
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

SideStream::Scope::Scope(const SideStream& side) {
  if (side.stream_) guard_.emplace(*side.stream_);
}

}  // namespace fovea
