// The test program of fovea/train. Called with --train-child it trains and dies at a given point
// instead, because a process that has threads cannot be forked safely.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "tests/train/child.h"

int main(int argc, char** argv) {
  // Every checkpoint is synced; on a disk these tests would take a minute of waiting. TMPDIR
  // decides where it is set.
  if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", /*overwrite=*/0);
  if (argc > 1 && std::string_view(argv[1]) == "--train-child") {
    return fovea::testing::train_child({argv + 2, argv + argc});
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
