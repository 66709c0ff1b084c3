// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/problem.h"

#include <new>

#include "fovea/base/error.h"
#include "fovea/engine/request.h"

namespace fovea::serve {
namespace {

constexpr int kRetrySoon = 1, kRetryElsewhere = 30;

Problem not_found(const Error& error) {
  Problem problem(404, "not_found_error", without_place(error.what()));
  problem.param = "model";
  problem.code = "model_not_found";
  return problem;
}

Problem too_long(const PromptTooLong& error) {
  Problem problem(400, "invalid_request_error",
                  fmt::format("this model's context has {} tokens; the prompt has {}: shorten it",
                              error.context(), error.tokens()));
  if (error.tokens() <= error.context()) problem.message = without_place(error.what());
  problem.code = "context_length_exceeded";
  return problem;
}

}  // namespace

Problem problem_of(const std::exception& error) {
  if (const auto* problem = dynamic_cast<const Problem*>(&error)) return *problem;
  if (const auto* unknown = dynamic_cast<const UnknownModel*>(&error)) return not_found(*unknown);
  if (const auto* prompt = dynamic_cast<const PromptTooLong*>(&error)) return too_long(*prompt);
  if (const auto* busy = dynamic_cast<const EngineBusy*>(&error))
    return overloaded(without_place(busy->what()), kRetrySoon);
  if (dynamic_cast<const EngineClosed*>(&error) != nullptr)
    return overloaded("the server is shutting down", kRetryElsewhere);
  if (dynamic_cast<const DeadlinePassed*>(&error) != nullptr) return too_late();
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return overloaded("there is not enough memory for this request now", kRetrySoon);
  // More than all caches together: it would never fit.
  if (const auto* memory = dynamic_cast<const MemoryError*>(&error))
    return {400, "invalid_request_error", without_place(memory->what())};
  constexpr int kUsersFault = 2;
  const auto* known = dynamic_cast<const Error*>(&error);
  if (known != nullptr && known->exit_code() == kUsersFault)
    return {400, "invalid_request_error", without_place(known->what())};
  return {500, "server_error", "the server failed on this request; its log says more"};
}

}  // namespace fovea::serve
