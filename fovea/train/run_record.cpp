// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/run_record.h"

#include <chrono>
#include <nlohmann/json.hpp>

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

std::filesystem::path cut(const std::filesystem::path& metrics, int64_t step) {
  truncate_metrics(metrics, step);
  return metrics;
}

/// 0 for a run whose first files these are; else TensorBoard drops what earlier files say after
/// `step`.
int64_t first_step(const std::filesystem::path& tensorboard, int64_t step) {
  make_folders(tensorboard);
  return std::filesystem::is_empty(tensorboard) ? 0 : step + 1;
}

/// Scalars under their key; a list under key/0, key/1, ...
void add_to(TensorBoardWriter& writer, const std::string& key, int64_t step, double now,
            const Json& value) {
  if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      add_to(writer, key + "/" + std::to_string(i), step, now, value[i]);
    }
  } else if (value.is_number()) {
    writer.add_scalar(key, step, now, value.get<double>());
  }
}

/// One list a number, an entry a layer.
void add_focus(Json& json, const std::vector<FocusStatistics>& layers) {
  for (const auto& [key, member] : {std::pair{"centroid_cosine", &FocusStatistics::centroid_cosine},
                                    {"hidden_cosine", &FocusStatistics::hidden_cosine},
                                    {"effective_rank", &FocusStatistics::effective_rank},
                                    {"largest_soft", &FocusStatistics::largest_soft},
                                    {"largest_hard", &FocusStatistics::largest_hard},
                                    {"hard_entropy", &FocusStatistics::hard_entropy},
                                    {"confidence", &FocusStatistics::confidence}}) {
    Json values = Json::array();
    for (const FocusStatistics& layer : layers) values.push_back(layer.*member);
    json[std::string("focus/") + key] = std::move(values);
  }
}

}  // namespace

Json StepRecord::to_json() const {
  Json json = {{"global_step", step},
               {"loss/out", loss},
               {"optim/lr", learning_rate},
               {"optim/lr_x_decay", decay_step},
               {"optim/grad_norm", gradient_norm},
               {"optim/total_tokens", tokens},
               {"speed/tokens_per_second", tokens_per_second},
               {"speed/curr_iter_time", step_seconds},
               {"speed/data_load_time", load_seconds},
               {"speed/FLOPS", flops},
               {"speed/total_seconds", seconds},
               {"memory/peak_bytes", peak_memory_bytes},
               {"attention/path", attention_path}};
  if (ln_z) {
    json["logits/ln_z"] = ln_z->mean;
    json["logits/ln_z_rms"] = ln_z->root_mean_square;
  }
  if (sum_seconds > 0) {
    json["speed/gradient_sum_time"] = sum_seconds;
    json["speed/gradient_sum_wait_time"] = sum_wait_seconds;
  }
  if (!stage.empty()) json["stage"] = stage;
  if (!temperature.empty()) {
    json["focal/temperature"] = temperature;
    json["focal/clipped_share"] = clipped_share;
  }
  if (!focus.empty()) add_focus(json, focus);
  if (evaluation && evaluation->hard) {
    const HardEvaluation& hard = *evaluation->hard;
    const EvaluationResult pruned{.sources = hard.sources, .hard = std::nullopt};
    json["focus/hard/perplexity"] = pruned.total().perplexity();
    json["focus/hard/pairs_kept"] = hard.pairs_kept;
    json["focus/hard/distant_kept"] = hard.distant_kept;
    json["focus/hard/largest_group"] = hard.largest_group;
    json["focus/hard/tiles_visited"] = hard.tiles_visited;
    json["focus/hard/plans"] = hard.plans;
  }
  if (evaluation) {
    for (const SourceEvaluation& source : evaluation->sources) {
      json["loss/val/" + source.source] = source.loss();
      json["perplexity/val/" + source.source] = source.perplexity();
      json["bits_per_byte/val/" + source.source] = source.bits_per_byte();
      if (source.answers > 0)
        json["wrong/val/" + source.source] =
            static_cast<double>(source.wrong) / static_cast<double>(source.answers);
    }
    json["bits_per_byte/val"] = evaluation->total().bits_per_byte();
    json["perplexity/val_mean"] = evaluation->mean_perplexity();
  }
  return json;
}

RunRecord::RunRecord(const RunPaths& paths, int64_t step)
    : metrics_(cut(paths.metrics(), step)),
      tensorboard_(paths.tensorboard(), first_step(paths.tensorboard(), step)) {}

void RunRecord::write(const StepRecord& record) {
  const Json json = record.to_json();
  metrics_.write(json);
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (const auto& [key, value] : json.items()) {
    if (key != "global_step") add_to(tensorboard_, key, record.step, now, value);
  }
  tensorboard_.flush();
}

void RunRecord::sync() {
  metrics_.sync();
  tensorboard_.flush();
}

}  // namespace fovea
