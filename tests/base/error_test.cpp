// Errors: the type is API, the message is "[where] what".
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/error.h"

#include <gtest/gtest.h>

namespace fovea::error_test {
namespace {

TEST(Error, MessageBeginsWithThePlaceInBrackets) {
  try {
    fail<ShapeError>("attention", "q must have {} heads; got {}", 8, 6);
    FAIL() << "threw nothing";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[attention] q must have 8 heads; got 6");
    EXPECT_EQ(error.kind(), "ShapeError");
  }
}

TEST(Error, RequireThrowsOnlyWhenTheConditionIsFalse) {
  EXPECT_NO_THROW(require<ConfigError>(true, "model", "never shown"));
  EXPECT_THROW(require<ConfigError>(false, "model", "shown"), ConfigError);
}

template <class E>
int code() {
  return E("").exit_code();
}

TEST(Error, ExitCodesTellBadInputFromFailureFromInterruption) {
  EXPECT_EQ(
      (std::array{code<UsageError>(), code<ConfigError>(), code<InputError>(), code<ShapeError>(),
                  code<UnsupportedError>(), code<CheckpointError>(), code<LockedError>()}),
      (std::array{2, 2, 2, 2, 2, 2, 2}));
  EXPECT_EQ((std::array{code<IoError>(), code<NumericalError>(), code<MemoryError>()}),
            (std::array{1, 1, 1}));
  EXPECT_EQ(code<Interrupted>(), 130);
}

TEST(Error, BracesInArgumentsAreNotFormats) {
  try {
    fail<ConfigError>("{}", "key '{}'", "a{b}");
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "[{}] key 'a{b}'");
  }
}

}  // namespace
}  // namespace fovea::error_test
