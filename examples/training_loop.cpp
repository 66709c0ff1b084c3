// A training loop of one's own: a corpus, batches, the model's loss, AdamW. (`Trainer` does all of
// this, with checkpoints and resumption; this shows the parts.)
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "fovea/data/loader.h"
#include "fovea/train/evaluation.h"
#include "fovea/train/optimizer.h"

int main() {
  // Text: any file or folder will do. This one is written here.
  const auto folder = std::filesystem::temp_directory_path() / "fovea-example-training";
  std::filesystem::create_directories(folder);
  {
    std::ofstream text(folder / "text.txt");
    for (int i = 0; i < 3000; ++i) text << "the square of " << i << " is " << i * i << ".\n";
  }
  fovea::DataConfig data;
  data.sources.push_back({.path = (folder / "text.txt").string()});
  data.cache = (folder / "cache").string();
  const auto corpus = fovea::prepare_corpus(data, fovea::byte_tokenizer());
  fovea::Loader loader(std::make_unique<fovea::BatchStream>(
      corpus, fovea::BatchStreamOptions{.sequence_length = 64, .batch_rows = 8}));

  fovea::ModelConfig config{.layers = 2, .width = 64, .heads = 4, .context = 64};
  config.attention.spec.temperature.value = 0.4;  // Focal Attention
  fovea::Transformer model(config.resolved(corpus->tokenizer().vocab_size()), /*seed=*/0);
  fovea::AdamW optimizer(model.parameters(), {.learning_rate = 3e-3});

  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    const fovea::Batch batch = loader.next();
    const at::Tensor loss = model
                                .loss(fovea::model_input(batch, model.device()),
                                      fovea::target_tensor(batch, model.device()))
                                .loss;
    loss.backward();
    optimizer.clip_gradients();
    optimizer.step(3e-3);
    optimizer.clear_gradients();
    last = loss.item<double>();
    if (step == 0) first = last;
    if (step % 20 == 0) std::cout << "step " << step << ": " << last << " nats per byte\n";
  }
  const auto validation = fovea::validation_batches(*corpus, 0, 64, 8, 4096);
  const fovea::EvaluationResult result = fovea::evaluate(model, {validation});
  std::cout << "validation: " << result.total().bits_per_byte() << " bits per byte\n";
  std::filesystem::remove_all(folder);
  return last < first - 1 ? 0 : 1;
}
