// The functions of fmt that the kernels call, from its headers: the library needs no libfmt.so.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#undef FMT_SHARED
#define FMT_HEADER_ONLY
#include <fmt/format.h>

// An address makes the compiler emit the function, and all that it calls.
[[gnu::used]] static std::string (*const kFormat)(fmt::string_view,
                                                  fmt::format_args) = fmt::vformat;
