// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/layer_gather.h"

#include <utility>

namespace fovea {
namespace {

thread_local LayerGather* in_force = nullptr;

}  // namespace

LayerGather* LayerGather::current() { return in_force; }

LayerGather::Scope::Scope(LayerGather* gather) : before_(std::exchange(in_force, gather)) {}
LayerGather::Scope::~Scope() { in_force = before_; }

}  // namespace fovea
