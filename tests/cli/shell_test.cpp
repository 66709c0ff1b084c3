// What a shell and a terminal see: completion, colours, and `fovea info`.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace fovea::testing::shell_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kBinary = FOVEA_BINARY_DIR "/bin/fovea";

class Shell : public ::testing::Test {
 protected:
  Finished run(const std::string& binary, const std::vector<std::string>& arguments) {
    return Program(folder_.path(), binary, arguments).finish();
  }
  /// What bash offers for a command line that ends at the cursor.
  std::string offers(const std::string& line) {
    spill(folder_ / "try.sh", "compopt() { :; }\nsource <(" + kBinary +
                                  " completion bash)\nCOMP_WORDS=(" + line +
                                  ")\nCOMP_CWORD=$((${#COMP_WORDS[@]}-1))\n_fovea\n" +
                                  "printf '%s\\n' \"${COMPREPLY[@]}\"\n");
    return run("/bin/bash", {"try.sh"}).out;
  }
  /// stderr of a wrong command, on a terminal.
  std::string error_on_terminal(const std::vector<std::pair<const char*, const char*>>& variables) {
    const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) return "no terminal";
    const std::string name = ::ptsname(terminal);
    const pid_t child = ::fork();
    if (child == 0) {
      const int device = ::open(name.c_str(), O_RDWR | O_NOCTTY);
      ::dup2(device, STDERR_FILENO);
      for (const auto& [key, value] : variables) ::setenv(key, value, 1);
      ::execl(kBinary.c_str(), "fovea", "eval", "nowhere", "--text", "none", nullptr);
      ::_exit(127);
    }
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(terminal, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    ::waitpid(child, nullptr, 0);
    ::close(terminal);
    return text;
  }
  TemporaryFolder folder_;
};

TEST_F(Shell, BashCompletesVerbsOptionsAndRecipeKeys) {
  EXPECT_THAT(offers("fovea \"\""), HasSubstr("generate\n"));
  EXPECT_EQ(offers("fovea comp"), "compare\ncompletion\n");
  EXPECT_THAT(offers("fovea generate --top-"), HasSubstr("--top-p\n"));
  EXPECT_THAT(offers("fovea data pre"), HasSubstr("prepare\n"));
  EXPECT_THAT(offers("fovea data prepare --"), HasSubstr("--tokenizer\n"));
  EXPECT_THAT(offers("fovea data prepare --"), Not(HasSubstr("--vocab")));
  EXPECT_EQ(offers("fovea train x.yaml model.lay"), "model.layers=\n");
}

TEST_F(Shell, ZshTableHoldsTheSameVerbs) {
  const Finished zsh = run(kBinary, {"completion", "zsh"});
  EXPECT_THAT(zsh.out, HasSubstr("#compdef fovea\n"));
  EXPECT_THAT(zsh.out, HasSubstr("'train:train one model"));
  EXPECT_THAT(zsh.out, HasSubstr("'--top-p:"));
  EXPECT_EQ(run(kBinary, {"completion", "fish"}).code, 2);
}

TEST_F(Shell, ErrorsAreRedOnATerminalOnlyAndNeverWithNoColor) {
  const char* red = "\033[1;31mfovea:";
  EXPECT_THAT(error_on_terminal({{"TERM", "xterm"}, {"NO_COLOR", ""}}), HasSubstr(red));
  EXPECT_THAT(error_on_terminal({{"TERM", "xterm"}, {"NO_COLOR", "1"}}), Not(HasSubstr("\033")));
  EXPECT_THAT(error_on_terminal({{"TERM", "dumb"}, {"NO_COLOR", ""}}), Not(HasSubstr("\033")));
  EXPECT_THAT(run(kBinary, {"eval", "nowhere", "--text", "x"}).err, Not(HasSubstr("\033")));
}

TEST_F(Shell, InfoTellsVersionCommitTorchMemoryAndPaths) {
  const auto info = nlohmann::json::parse(run(kBinary, {"info", "--json"}).out);
  for (const char* key : {"version", "commit", "torch", "isa_found", "isa_chosen", "threads",
                          "device", "gpus", "memory_bytes", "memory_available_bytes"})
    EXPECT_TRUE(info.contains(key)) << key;
  EXPECT_TRUE(std::filesystem::equivalent(info["paths"]["program"].get<std::string>(), kBinary));
  EXPECT_THAT(info["paths"]["torch"].get<std::string>(), HasSubstr("libtorch_cpu"));
  EXPECT_THAT(run(kBinary, {"info"}).out, HasSubstr("paths.program"));
}

}  // namespace
}  // namespace fovea::testing::shell_test
