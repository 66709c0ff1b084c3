// Every option that takes a number shows and checks its range.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "cli/options.h"
#include "cli/verbs.h"

namespace fovea::cli::number_options_test {
namespace {

int64_t check_options(const CLI::App& verb) {
  int64_t numbers = 0;
  for (const CLI::Option* option : verb.get_options()) {
    const std::string type = option->get_type_name();
    const bool number = type.starts_with("INT") || type.starts_with("FLOAT") ||
                        type.starts_with("UINT") || type.starts_with("integer") ||
                        type.starts_with("number");
    if (!number) continue;
    ++numbers;
    EXPECT_NE(type.find(" to "), std::string::npos)
        << verb.get_name() << " " << option->get_name() << " is " << type;
  }
  for (const CLI::App* sub : verb.get_subcommands({})) numbers += check_options(*sub);
  return numbers;
}

TEST(NumberOptions, StateTheirRange) {
  CLI::App app;
  Command root(app);
  Globals globals;
  for (auto* add :
       {add_train_verb, add_compare_verb, add_eval_verb, add_generate_verb, add_chat_verb,
        add_export_verb, add_adapter_verb, add_data_verb, add_checkpoint_verb, add_attention_verb,
        add_inspect_verb, add_plan_verb, add_info_verb, add_completion_verb, add_retrofit_verb,
        add_reproduce_verb, add_serve_verb})
    add(root, globals);
  EXPECT_GT(check_options(app), 25);
}

TEST(NumberOptions, RefuseWhatIsOutsideAndSayTheRange) {
  const auto steps = in_range({1, 1e6}).find_error, share = in_range(ranges::kShare).find_error;
  for (std::string text : {"1", "1000000", "5e5"}) EXPECT_EQ(steps(text), "");
  for (std::string text :
       {"0", "-1", "1000001", "nan", "inf", "1e999", "9223372036854775808", "x", "", "1x"}) {
    const std::string said = steps(text);
    EXPECT_NE(said.find("1 to 1000000"), std::string::npos) << text << ": " << said;
  }
  std::string half = "0.5", more = "1.5";
  EXPECT_EQ(share(half), "");
  EXPECT_NE(share(more), "");
}

}  // namespace
}  // namespace fovea::cli::number_options_test
