// fovea attention: one attention from a case file, on any path (docs/attention-case.md).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/verbs.h"

namespace fovea::cli {

Verb add_attention_verb(CLI::App& app, Globals& globals) {
  CLI::App* verb = app.add_subcommand("attention", "run one attention from a case file");
  add_global_options(*verb, globals);
  return {verb, [] {}};
}

}  // namespace fovea::cli
