// Expects an error of one type whose message names what a person needs: EXPECT_ERROR(ConfigError,
// f(), "a.yaml:3", "heads").
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fovea/base/error.h"

namespace fovea::testing {

/// Runs `f`; a failure unless it throws exactly E with every part in its message.
template <class E, class F>
::testing::AssertionResult throws_naming(F&& f, const std::vector<std::string>& parts) {
  try {
    f();
  } catch (const E& error) {
    const std::string message = error.what();
    for (const std::string& part : parts) {
      if (message.find(part) == std::string::npos) {
        return ::testing::AssertionFailure()
               << "the message names no \"" << part << "\": " << message;
      }
    }
    return ::testing::AssertionSuccess();
  } catch (const Error& error) {
    return ::testing::AssertionFailure()
           << "threw " << error.kind() << " instead: " << error.what();
  } catch (const std::exception& error) {
    return ::testing::AssertionFailure() << "threw a foreign exception: " << error.what();
  }
  return ::testing::AssertionFailure() << "threw nothing";
}

}  // namespace fovea::testing

#define EXPECT_ERROR(Type, expression, ...) \
  EXPECT_TRUE(::fovea::testing::throws_naming<Type>([&] { (void)(expression); }, {__VA_ARGS__}))
