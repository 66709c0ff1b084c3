// A libcuda.so.1 that has two GPUs and can do nothing else: what list_gpus() reads of a driver.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstring>

extern "C" {

int cuInit(unsigned /*flags*/) { return 0; }
int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}
int cuDeviceGetName(char* name, int length, int device) {
  std::strncpy(name, device == 0 ? "first" : "second", static_cast<size_t>(length));
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  *bytes = (static_cast<size_t>(device) + 1) << 30;
  return 0;
}
int cuDeviceGetUuid_v2(char* id, int device) {
  std::fill_n(id, 16, static_cast<char>(device));
  return 0;
}
}
