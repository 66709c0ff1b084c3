// The kernels of one instruction set: a table of function pointers, which drivers call.
//
// No inline functions and no containers here: sources compiled with wide instructions include it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/isa_level.h"

namespace fovea::kernels {

/// A unit of its own defines each, compiled for that instruction set. The header FAMILY_rows.h
/// has the kernels and their table_of<isa>() or table_of<isa, T>(). fovea/kernels/kernels.cmake
/// lists the families; cmake/FoveaKernels.cmake makes the units. Everything in such a header has
/// internal linkage: a function compiled for wide instructions must never serve a narrow caller.
template <class Table, Isa isa>
const Table& kernel_table();

}  // namespace fovea::kernels
