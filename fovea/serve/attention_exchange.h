// The exchange of /v1/attention: rows from the engine, in the shape of docs/serving.md.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fovea/serve/completion_exchange.h"
#include "fovea/serve/small_requests.h"

namespace fovea::serve {

/// Asks the engine for the rows. Throws Problem for places, layers and heads that do not exist.
std::unique_ptr<Exchange> start_attention(const ExchangeContext& context, AttentionRequest request,
                                          Wake wake);

/// The answer; `rows` are the places that were asked for, from 0.
Json attention_json(const ModelFacts& model, const TokenTexts& texts, const AttentionRows& found,
                    const std::vector<int64_t>& rows);

}  // namespace fovea::serve
