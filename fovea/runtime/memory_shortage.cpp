// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/memory_shortage.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "fovea/runtime/memory_limit.h"

namespace fovea {
namespace {

/// Bytes of a unit that begins `text`; 0 where it is none.
double bytes_of_unit(std::string_view text) {
  for (const auto& [unit, bytes] : {std::pair{"bytes", 1.0},
                                    {"KiB", 1024.0},
                                    {"MiB", 1024.0 * 1024.0},
                                    {"GiB", 1024.0 * 1024.0 * 1024.0}}) {
    if (text.starts_with(unit)) return bytes;
  }
  return 0.0;
}

/// torch's sentence, shortened to the size where it tells one: "... tried to allocate 123 bytes" of
/// the CPU, "CUDA out of memory. Tried to allocate 1.50 GiB. ..." of a GPU.
std::string with_size(const std::string& text) {
  constexpr std::string_view kSign = "ried to allocate ";
  const std::string first_line = text.substr(0, text.find('\n'));
  const size_t at = text.find(kSign);
  if (at == std::string::npos) return first_line;
  char* unit = nullptr;
  const double number = std::strtod(text.c_str() + at + kSign.size(), &unit);
  const double bytes = *unit == ' ' ? number * bytes_of_unit(unit + 1) : 0.0;
  if (bytes <= 0.0) return first_line;
  const char* const whose = text.starts_with("CUDA") ? " of the GPU's memory" : "";
  return bytes < 1e9 ? fmt::format("{:.0f} MB{} were asked for", bytes / 1e6, whose)
                     : fmt::format("{:.1f} GB{} were asked for", bytes / 1e9, whose);
}

}  // namespace

std::optional<std::string> memory_shortage() {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return with_size(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    for (const char* sign :
         {"can't allocate memory", "not enough memory", "Storage size calculation overflowed",
          "out of memory", "CUBLAS_STATUS_ALLOC_FAILED"}) {
      if (text.find(sign) != std::string::npos) return with_size(text);
    }
  } catch (const MemoryNeeded& error) {
    return error.what();
  } catch (const std::bad_alloc&) {
    return "an allocation outside torch failed";
  } catch (const std::length_error&) {
    return "an allocation beyond the address space";
  } catch (...) {
  }
  return std::nullopt;
}

}  // namespace fovea
