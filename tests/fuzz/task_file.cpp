// Fuzz target: any bytes as the YAML file of a task give a task, or an error of Fovea.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/task_file.h"
#include "fovea/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    fovea::parse_task_file({reinterpret_cast<const char*>(data), size}, "task.yaml");
  } catch (const fovea::Error&) {
  }
  return 0;
}
