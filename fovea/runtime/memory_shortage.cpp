// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/memory_shortage.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string_view>

#include "fovea/runtime/memory_limit.h"

namespace fovea {
namespace {

/// torch's sentence, shortened to the size where it tells one ("... tried to allocate 123 bytes").
std::string with_size(const std::string& text) {
  constexpr std::string_view kSign = "tried to allocate ";
  const size_t at = text.find(kSign);
  if (at == std::string::npos) return text.substr(0, text.find('\n'));
  const double bytes = std::strtod(text.c_str() + at + kSign.size(), nullptr);
  if (text.find(" bytes", at) == std::string::npos) return text.substr(0, text.find('\n'));
  return bytes < 1e9 ? fmt::format("{:.0f} MB were asked for", bytes / 1e6)
                     : fmt::format("{:.1f} GB were asked for", bytes / 1e9);
}

}  // namespace

std::optional<std::string> memory_shortage() {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return with_size(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    for (const char* sign : {"can't allocate memory", "not enough memory",
                             "Storage size calculation overflowed", "out of memory"}) {
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
