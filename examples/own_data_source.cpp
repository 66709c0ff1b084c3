// Batches of one's own: a task that is made, not read. Each row is a random word and, behind a bar,
// its mirror image; only the mirror image is scored, so attention has to find the letter.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <iostream>

#include "fovea/base/rng.h"
#include "fovea/data/loader.h"
#include "fovea/train/evaluation.h"
#include "fovea/train/optimizer.h"

namespace {

constexpr int32_t kLetters = 8, kBar = kLetters, kVocabulary = kLetters + 1;
constexpr int64_t kWord = 6, kLength = 2 * kWord, kRows = 32;

/// Everything a source needs: batches, and a state from which they go on.
class MirrorTask : public fovea::BatchSource {
 public:
  fovea::Batch next() override {
    fovea::Batch batch{.rows = kRows, .length = kLength};
    fovea::Rng rng(static_cast<uint64_t>(state_.batches++));  // a batch is a function of its number
    for (int64_t row = 0; row < kRows; ++row) {
      std::vector<int32_t> text;
      for (int64_t i = 0; i < kWord; ++i) text.push_back(static_cast<int32_t>(rng.below(kLetters)));
      text.push_back(kBar);
      for (int64_t i = kWord; i-- > 0;) text.push_back(text[static_cast<size_t>(i)]);
      for (int64_t i = 0; i < kLength; ++i) {
        batch.tokens.push_back(text[static_cast<size_t>(i)]);
        batch.targets.push_back(i >= kWord ? text[static_cast<size_t>(i + 1)] : -1);  // -1: no loss
        batch.documents.push_back(0);
        batch.positions.push_back(static_cast<int32_t>(i));
      }
      batch.sources.push_back(0);
    }
    return batch;
  }
  fovea::LoaderState state() const override { return state_; }
  void restore(const fovea::LoaderState& state) override { state_ = state; }

 private:
  fovea::LoaderState state_;
};

}  // namespace

int main() {
  fovea::Loader loader(std::make_unique<MirrorTask>());  // prepared ahead, on a thread
  const fovea::ModelConfig config{.layers = 2, .width = 64, .heads = 4, .context = kLength};
  fovea::Transformer model(config.resolved(kVocabulary), /*seed=*/0);
  fovea::AdamW optimizer(model.parameters(), {});
  double loss = 0;
  for (int step = 0; step < 250; ++step) {
    const fovea::Batch batch = loader.next();
    const fovea::LossResult result =
        model.loss(fovea::model_input(batch, at::kCPU), fovea::target_tensor(batch, at::kCPU));
    result.loss.backward();
    optimizer.clip_gradients();
    optimizer.step(5e-3);
    optimizer.clear_gradients();
    loss = result.loss.item<double>();
    if (step % 50 == 0) std::cout << "step " << step << ": " << loss << " nats per letter\n";
  }
  std::cout << "guessing costs " << std::log(kLetters) << ", the model now " << loss << '\n';
  return loss < 0.5 * std::log(kLetters) ? 0 : 1;
}
