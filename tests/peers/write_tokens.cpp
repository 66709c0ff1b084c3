// Tokens of files, for programs that compare them (check_tokenizers.py).
//
//   peer_tokens TOKENIZER [--more] FILE...     writes FILE.tokens (int32) and prints "FILE seconds"
//   for each; --more: of texts that go on behind others
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <iostream>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/text/tokenizer.h"

int main(int argc, char** argv) {
  try {
    const auto tokenizer = fovea::open_tokenizer(argv[1]);
    const bool more = argc > 2 && std::string_view(argv[2]) == "--more";
    for (int i = more ? 3 : 2; i < argc; ++i) {
      const std::string text = fovea::read_file(argv[i]);
      const auto start = std::chrono::steady_clock::now();
      std::vector<int32_t> tokens;
      more ? tokenizer->append_more(text, tokens) : tokenizer->append(text, tokens);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      fovea::write_file(std::string(argv[i]) + ".tokens",
                        {reinterpret_cast<const char*>(tokens.data()), 4 * tokens.size()});
      std::cout << argv[i] << ' ' << seconds.count() << '\n';
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
