// How long OpenMP threads spin while they wait.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea::cli {

/// libgomp spins for milliseconds by default. On a machine that others use too, one descheduled
/// thread then makes all others burn their time: a training step of the demo model took 8 times as
/// long beside a busy compiler. A short spin costs nothing measurable on a quiet machine. libgomp
/// reads its environment when it is loaded, so a program that calls this starts itself again, once,
/// with GOMP_SPINCOUNT set, unless the user has chosen GOMP_SPINCOUNT or OMP_WAIT_POLICY. It does
/// so before any library is initialised, which takes 3 ms; initialising them twice takes 0.2 s.
void limit_spinning();

}  // namespace fovea::cli
