// The page's files, compiled in from fovea/serve/page/ by fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace fovea::serve {

struct PageFile {
  std::string_view name;  ///< "index.html"
  std::string_view content;
};

std::span<const PageFile> page_files();

/// The media type by the name's ending.
std::string_view media_type(std::string_view name);

/// Only this server's scripts, styles, pictures and answers.
inline constexpr std::string_view kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace fovea::serve
