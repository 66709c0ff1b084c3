// How long OpenMP threads spin while they wait.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea::cli {

/// libgomp spins for milliseconds by default. On a machine that others use too, one descheduled
/// thread then makes all others burn their time. Beside a busy compiler, a training step of the
/// demo model took 8 times as long. A short spin costs nothing measurable on a quiet machine.
///
/// libgomp reads GOMP_SPINCOUNT when it is loaded. So this sets it and starts the program again,
/// once, unless the user has chosen GOMP_SPINCOUNT or OMP_WAIT_POLICY. The restart comes before any
/// library is initialised and takes 3 ms; initialising them twice takes 0.2 s.
void limit_spinning();

}  // namespace fovea::cli
