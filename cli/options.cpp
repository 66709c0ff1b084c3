// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/options.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fovea/base/files.h"
#include "fovea/checkpoint/adapter.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/runtime/machine.h"

namespace fovea::cli {
namespace {

std::string option_name(std::string_view key) {
  std::string name = "--" + std::string(key);
  std::ranges::replace(name, '_', '-');
  return name;
}

constexpr std::string_view kList = "list of texts";

}  // namespace

void add_model_options(CLI::App& verb, ModelOptions& options) {
  verb.add_option("--device", options.device, "auto, cpu or cuda")->capture_default_str();
  verb.add_option("--dtype", options.dtype,
                  "auto (bfloat16 where the processor multiplies it), float32 or bfloat16")
      ->capture_default_str();
  verb.add_option("--threads", options.threads, "0 = all cores")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  verb.add_option("--adapter", options.adapter, "LoRA adapter to put on: a folder of PEFT");
  verb.add_option("--focus", options.focus,
                  "models with Focus: configured, hard (only groups that meet) or off")
      ->capture_default_str();
  verb.add_option("--focus-top-k", options.focus_top_k,
                  "groups of a token under --focus hard; 0 = the model's");
}

LoadedModel load_adapted(const std::string& path, const std::string& adapter, at::Device device) {
  LoadedModel loaded = load_model(resolve_model_folder(path), device);
  if (adapter.empty()) return loaded;
  Transformer model = with_adapter(loaded.model, read_adapter(adapter, loaded.config));
  const ModelConfig config = model.config();
  return {config, std::move(model), loaded.tokenizer};
}

void choose_focus(Transformer& model, const std::string& mode, int64_t top_k,
                  const char* top_k_option) {
  ComputeOptions& compute = model.compute();
  compute.focus = parse_choice<FocusMode>("--focus", mode, enum_names(FocusMode{}));
  const int64_t groups = model.config().attention.focus.groups.groups;
  require<UsageError>(model.has("focus") || (compute.focus == FocusMode::configured && top_k == 0),
                      "--focus", "this model has no Focus; got {}", mode);
  require<UsageError>(top_k >= 0 && top_k <= groups, top_k_option,
                      "expected 1 to the model's {} groups; got {}", groups, top_k);
  compute.focus_change.top_k = top_k;
}

LoadedModel open_model(const std::string& path, const ModelOptions& options) {
  const at::Device device = choose_device(
      parse_choice<DeviceChoice>("--device", options.device, enum_names(DeviceChoice{})));
  const auto dtype = parse_choice<DtypeChoice>("--dtype", options.dtype, enum_names(DtypeChoice{}));
  if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
  LoadedModel loaded = load_adapted(path, options.adapter, device);
  choose_focus(loaded.model, options.focus, options.focus_top_k, "--focus-top-k");
  loaded.model.compute().dtype = choose_dtype(dtype, device);
  if (loaded.model.compute().dtype == at::kBFloat16) loaded.model.hold_matrices_in(at::kBFloat16);
  return loaded;
}

void FieldOptions::add_lines(CLI::App& verb, const std::vector<FieldLine>& lines) {
  for (const FieldLine& line : lines) {
    const bool list = line.type == kList;
    CLI::Option* option = verb.add_option(option_name(line.key), (*values_)[line.key],
                                          list ? line.help + " (may be given several times)"
                                               : fmt::format("{} [{}]", line.help, line.initial));
    option->type_name(line.type)->expected(1);
    option->multi_option_policy(list ? CLI::MultiOptionPolicy::TakeAll
                                     : CLI::MultiOptionPolicy::TakeLast);
  }
}

ConfigNode FieldOptions::given(const std::vector<FieldLine>& lines) const {
  ConfigNode root = ConfigNode::make_map("command line");
  for (const FieldLine& line : lines) {
    const auto found = values_->find(line.key);
    if (found == values_->end() || found->second.empty()) continue;
    const std::string place = option_name(line.key);
    ConfigNode node = ConfigNode::make_scalar(found->second.front(), place);
    if (line.type == kList) {
      node = {.kind = ConfigNode::Kind::list, .place = place};
      for (const std::string& text : found->second)
        node.items.push_back(ConfigNode::make_scalar(text, place));
    }
    root.fields.push_back({line.key, std::move(node)});
  }
  return root;
}

std::string read_input(const std::string& path) {
  if (path != "-") return read_file(path);
  std::string text;
  for (char buffer[1 << 16];;) {
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail<IoError>("stdin", "cannot read: {}", std::strerror(errno));
    if (count == 0) return text;
    text.append(buffer, static_cast<size_t>(count));
  }
}

}  // namespace fovea::cli
