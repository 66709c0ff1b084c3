// Text from a model: streaming, sampling, and a session whose cache stays between turns.
//
//   example_generation [MODEL]     a run folder's checkpoint or a Hugging Face folder; without it a
//                                  tiny model with random weights is saved and loaded first
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <iostream>

#include "fovea/checkpoint/model_folder.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/infer/generate.h"

int main(int argc, char** argv) {
  const auto folder = std::filesystem::temp_directory_path() / "fovea-example-model";
  if (argc < 2) {
    const fovea::ModelConfig config{.layers = 2, .width = 64, .heads = 4, .context = 128};
    fovea::save_model(folder, fovea::Transformer(config.resolved(259), 0),
                      *fovea::byte_tokenizer());
  }
  const fovea::LoadedModel loaded =
      fovea::load_model(fovea::resolve_model_folder(argc < 2 ? folder.string() : argv[1]));
  std::cout << loaded.model.parameters().count() << " parameters, tokenizer "
            << loaded.tokenizer->kind() << '\n';

  fovea::TextSession session(loaded.model, *loaded.tokenizer);
  session.append("Once upon a time");
  const fovea::GenerateOptions options{
      .sampling = {.temperature = 0.8, .top_p = 0.95}, .max_tokens = 20, .seed = 1};
  // The stream receives whole characters as they come.
  const auto print = [](std::string_view text) { std::cout << text << std::flush; };
  const fovea::GenerateResult first = session.generate(options, print);
  std::cout << "\n[" << first.tokens << " tokens, "
            << fovea::enum_names(first.reason)[static_cast<size_t>(first.reason)] << ", cache "
            << session.cache_bytes() << " bytes]\n";

  // A second turn reads only what is new.
  session.append(" And then");
  const fovea::GenerateResult second = session.generate(options, print);
  std::cout << "\n[" << second.prompt_tokens << " tokens read, " << second.tokens << " written]\n";

  // The same seed gives the same text.
  fovea::TextSession again(loaded.model, *loaded.tokenizer);
  again.append("Once upon a time");
  const bool same = again.generate(options).text == first.text;
  std::filesystem::remove_all(folder);
  return same && first.tokens > 0 && second.prompt_tokens < first.tokens + 20 ? 0 : 1;
}
