// The exchange of a completion or a chat: requests to the engine, their events, the answer's JSON.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include "fovea/serve/backend.h"
#include "fovea/serve/completion_request.h"
#include "fovea/serve/exchange.h"
#include "fovea/serve/token_texts.h"

namespace fovea::serve {

/// Things that all exchanges of a server share; they outlive every exchange.
struct ExchangeContext {
  Backend& backend;
  const TokenTexts& texts;
  /// A request ends after so long; 0 = never.
  std::chrono::milliseconds deadline{0};
};

/// The model that a request names. Problem 404 where there is none.
const ModelFacts& model_named(const Backend& backend, const std::string& name);

/// Submits the request's prompts to the engine: all or none. Throws Problem, and what
/// Engine::submit() throws.
std::unique_ptr<Exchange> start_completion(const ExchangeContext& context,
                                           CompletionRequest request, Wake wake);

}  // namespace fovea::serve
