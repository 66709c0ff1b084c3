// Who may ask: API keys, origins of web pages, CORS.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>

#include "fovea/serve/page.h"
#include "fovea/serve/routes.h"

namespace fovea::serve {
namespace {

/// "host:8000" without its port; "[::1]:8000" is "[::1]".
std::string_view host_name(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.rfind(':'));
}

/// Whether no name service was asked for this host: localhost, or an address in numbers.
bool is_literal_host(std::string_view host) {
  const std::string_view name = host_name(host);
  const auto numeric = [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; };
  return name == "localhost" || name.starts_with('[') ||
         (!name.empty() && std::ranges::all_of(name, numeric));
}

bool equal_words(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

}  // namespace

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char expected = secret.empty() ? '\0' : secret[i % secret.size()];
    difference |= static_cast<unsigned>(static_cast<unsigned char>(given[i] ^ expected));
  }
  return difference == 0;
}

bool Routes::is_allowed_origin(std::string_view origin) const {
  return std::ranges::any_of(options_.origins, [&](const std::string& allowed) {
    return allowed == "*" || allowed == origin;
  });
}

void Routes::check_origin(const HttpRequest& request) const {
  if (request.origin.empty() || is_allowed_origin(request.origin)) return;
  const size_t scheme = request.origin.find("://");
  const bool own = scheme != request.origin.npos &&
                   equal_words(std::string_view(request.origin).substr(scheme + 3), request.host);
  if (own && (!options_.local || is_literal_host(request.host))) return;
  constexpr size_t kShownOrigin = 100;
  throw Problem(403, "permission_error",
                fmt::format("web pages of {} may not ask this server; --allow-origin lets them",
                            request.origin.substr(0, kShownOrigin)));
}

void Routes::check_key(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return;
  constexpr std::string_view kScheme = "Bearer ";
  std::string_view given = request.authorization;
  const bool bearer =
      given.size() > kScheme.size() && equal_words(given.substr(0, kScheme.size()), kScheme);
  given = bearer ? given.substr(kScheme.size()) : std::string_view();
  bool known = false;
  for (const std::string& key : options_.api_keys)
    known = equal_in_constant_time(given, key) || known;  // all keys, whichever is right
  if (known && bearer) return;
  Problem problem(401, "authentication_error",
                  bearer ? "the API key is wrong"
                         : "an API key is needed: the header Authorization: Bearer KEY");
  problem.code = "invalid_api_key";
  throw problem;
}

std::vector<std::pair<std::string, std::string>> Routes::headers_for(
    const HttpRequest& request) const {
  std::vector<std::pair<std::string, std::string>> headers{
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"},
      {"Content-Security-Policy", std::string(kContentSecurityPolicy)},
      {"Cache-Control", "no-cache"}};
  if (!options_.origins.empty()) headers.emplace_back("Vary", "Origin");
  if (request.origin.empty() || !is_allowed_origin(request.origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", request.origin);
  if (request.method != "OPTIONS") return headers;
  headers.emplace_back("Access-Control-Allow-Methods", "GET, POST");
  headers.emplace_back("Access-Control-Allow-Headers", "Authorization, Content-Type, *");
  headers.emplace_back("Access-Control-Max-Age", "600");
  return headers;
}

}  // namespace fovea::serve
