// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/backend.h"

#include "fovea/attention/stages.h"

namespace fovea::serve {
namespace {

class EngineBackend final : public Backend {
 public:
  EngineBackend(Engine& engine, std::vector<ModelFacts> facts)
      : engine_(engine), facts_(std::move(facts)) {
    const std::span<const ServedModel> served = engine.models();
    for (size_t i = 0; i < facts_.size(); ++i) {
      facts_[i].name = served[i].name;
      facts_[i].parent = served[i].parent;
      facts_[i].context = served[i].context;
      facts_[i].vocabulary = served[i].vocabulary;
    }
  }

  std::span<const ModelFacts> models() const override { return facts_; }
  const Tokenizer& tokenizer() const override { return engine_.tokenizer(); }
  std::vector<int32_t> encode_chat(std::vector<ChatMessage> messages) const override {
    return engine_.encode_chat(std::move(messages));
  }
  std::string why_no_chat() const override { return engine_.why_no_chat(); }
  int64_t queue() const override { return engine_.options().queue; }
  std::function<void()> submit(EngineRequest request, EngineEvents events) override {
    const RequestHandle handle = engine_.submit(std::move(request), std::move(events));
    return [handle] { handle.cancel(); };
  }
  std::function<void()> attention_rows(AttentionRowsRequest request,
                                       AttentionRowsDone done) override {
    const RequestHandle handle = engine_.attention_rows(std::move(request), std::move(done));
    return [handle] { handle.cancel(); };
  }
  EngineStatistics statistics() const override { return engine_.statistics(); }
  void drain() override { engine_.drain(); }
  void stop() override { engine_.stop(); }

 private:
  Engine& engine_;
  std::vector<ModelFacts> facts_;
};

/// Whether weights of the layer may be negative: one map minus another, and learned mixtures of
/// weights.
bool has_signed_weights(const AttentionSpec& spec) {
  const auto acts = [&](StageId id) { return !stage_of(id).active(spec).empty(); };
  return spec.differential || acts(StageId::convolution_after) || acts(StageId::mix_after);
}

}  // namespace

ModelFacts facts_of(const LoadedModel& loaded) {
  const ModelConfig& config = loaded.model.config();
  ModelFacts facts{.layers = config.layers, .focus = loaded.model.has("focus")};
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const AttentionSpec spec = config.layer_attention(layer);
    facts.heads = std::max(facts.heads, spec.output_heads());
    facts.pipelines.push_back(describe_pipeline(spec));
    facts.signed_weights.push_back(has_signed_weights(spec));
  }
  return facts;
}

std::unique_ptr<Backend> engine_backend(Engine& engine, std::vector<ModelFacts> facts) {
  return std::make_unique<EngineBackend>(engine, std::move(facts));
}

}  // namespace fovea::serve
