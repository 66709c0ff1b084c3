// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/options.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "cli/verbs.h"
#include "fovea/base/files.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/nn/matrix.h"
#include "fovea/runtime/machine.h"

namespace fovea::cli {
namespace {

std::string option_name(std::string_view key) {
  std::string name = "--" + std::string(key);
  std::ranges::replace(name, '_', '-');
  return name;
}

constexpr std::string_view kList = "list of texts";
constexpr ReadLimit kLargestInput{"a prompt or a batch of them", 256 << 20};

}  // namespace

ValueCheck in_range(const Range& range) {
  const auto find_error = [range](const std::string& text) {
    const char* const end = text.data() + text.size();
    int64_t whole = 0;
    double real = 0.0;
    const auto parsed = [&](auto& value) {
      const auto [stop, error] = std::from_chars(text.data(), end, value);
      return error == std::errc{} && stop == end;
    };
    const bool inside =
        parsed(whole) ? range.contains(whole) : parsed(real) && range.contains(real);
    return inside ? std::string()
                  : fmt::format("must be a number from {}; got {}", range.text(), text);
  };
  return {.find_error = find_error, .description = range.text(), .name = "RANGE"};
}

void add_model_options(Command& verb, ModelOptions& options) {
  verb.add_option("--device", options.device,
                  "auto (the CPU), cpu or cuda, which writes bfloat16 models by kernels of ours")
      ->capture_default_str();
  verb.add_option("--dtype", options.dtype,
                  "auto (bfloat16 where the processor multiplies it), float32 or bfloat16")
      ->capture_default_str();
  add_weights_options(verb, options.weights, options.activations);
  verb.add_option("--threads", options.threads, "0 = all cores")
      ->capture_default_str()
      ->check(in_range(ranges::kThreads));
  add_change_options(verb, options.change);
  verb.add_option("--focus", options.focus,
                  "models with Focus: configured, hard (only groups that meet) or off")
      ->capture_default_str();
  verb.add_option("--focus-top-k", options.focus_top_k,
                  "groups of a token under --focus hard; 0 = the model's")
      ->check(in_range({0, 64}));
}

void add_weights_options(Command& verb, std::string& weights, std::string& activations) {
  verb.add_option(
          "--weights", weights,
          "how matrices are held: stored (blocks of a GGUF as they are, all else in --dtype), "
          "f32, bf16, q8_0, q4_1 or q4_0; the last three read fewer bytes a token and are "
          "quantised while loading")
      ->capture_default_str();
  verb.add_option(
          "--activations", activations,
          "how q8_0, q4_1 and q4_0 weights are multiplied: exact, int16 or int8 (activations "
          "rounded to 16 or 8 bits in blocks of 32, llama.cpp rounds to 8), or auto: int16")
      ->capture_default_str();
}

void choose_activations(Transformer& model, const std::string& activations) {
  using kernels::Activations;
  const auto names = enum_names(Activations{});
  std::vector<std::string_view> words{"auto"};
  words.insert(words.end(), names.begin(), names.end());
  const auto choice = parse_choice<size_t>("--activations", activations, words);
  const bool packed = std::ranges::any_of(model.parameters().all(),
                                          [](const Parameter& p) { return is_packed(p.value); });
  if (choice == 0) {
    model.compute().activations = packed ? Activations::int16 : Activations::exact;
    return;
  }
  const auto chosen = static_cast<Activations>(choice - 1);
  require<UsageError>(chosen == Activations::exact || packed, "--activations",
                      "{} is for packed weights, of which this model has none: add --weights "
                      "q8_0, q4_1 or q4_0",
                      activations);
  model.compute().activations = chosen;
}

MatrixStorage matrix_storage(const std::string& weights, at::ScalarType dtype, at::Device device) {
  if (weights == "stored") return {.plain = dtype, .as_stored = device.is_cpu()};
  using kernels::WeightFormat;
  const auto names = enum_names(WeightFormat{});
  std::vector<std::string_view> words{"stored"};
  words.insert(words.end(), names.begin(), names.end());
  const auto choice = parse_choice<size_t>("--weights", weights, words);
  const auto format = static_cast<WeightFormat>(choice - 1);
  if (kernels::is_packed(format)) return {.plain = dtype, .packed = format};
  return {.plain = format == WeightFormat::bfloat16 ? at::kBFloat16 : at::kFloat};
}

std::filesystem::path find_model(const std::string& path) {
  return resolve_model_folder(path, warn);
}

void add_change_options(Command& verb, ModelChange& change) {
  verb.add_option("--adapter", change.adapters,
                  "adapter to put on: a folder of PEFT or of `fovea retrofit` (may be given "
                  "several times)")
      ->take_all();
  verb.add_option("--attention", change.attention,
                  "another attention for the same weights: a key of model.attention, "
                  "mask.window=512 (may be given several times; `fovea train --help` lists them)")
      ->take_all();
  verb.add_option(
          "--rope", change.rope,
          "other rotary positions for the same weights: a key of model.rope, theta=500000, or "
          "a scaling rule: --rope scaling.kind=linear --rope scaling.factor=4")
      ->take_all();
}

LoadedModel open_changed(const std::filesystem::path& folder, const ModelChange& change,
                         at::Device device, const MatrixStorage& matrices) {
  LoadedModel loaded = load_changed(folder, change, device, matrices);
  if (!loaded.drawn.empty())
    warn(fmt::format("--attention adds {} parameters that the model was not trained with: {}{}",
                     loaded.drawn.size(), loaded.drawn.front(),
                     loaded.drawn.size() > 1 ? ", ..." : ""));
  return loaded;
}

void choose_focus(Transformer& model, const std::string& mode, int64_t top_k,
                  const char* top_k_option) {
  ComputeOptions& compute = model.compute();
  compute.focus = parse_choice<FocusMode>("--focus", mode, enum_names(FocusMode{}));
  const int64_t groups = model.config().attention.spec.focus.groups;
  require<UsageError>(model.has("focus") || compute.focus == FocusMode::configured, "--focus",
                      "this model has no Focus; got {}", mode);
  require<UsageError>(model.has("focus") || top_k == 0, top_k_option,
                      "this model has no Focus, so its tokens have no groups; got {}", top_k);
  require<UsageError>(top_k >= 0 && top_k <= groups, top_k_option,
                      "expected 1 to the model's {} groups; got {}", groups, top_k);
  const bool hard = has_hard_groups(compute.focus) ||
                    (compute.focus == FocusMode::configured &&
                     model.config().attention.spec.focus.gate == FocusSpec::Gate::hard);
  require<UsageError>(top_k == 0 || hard, top_k_option,
                      "acts with --focus hard, where a token has so many groups; got {} with "
                      "--focus {}",
                      top_k, mode);
  compute.focus_change.top_k = top_k;
}

at::Device choose_device(const std::string& device, bool automatic_is_cpu) {
  const auto choice = parse_choice<DeviceChoice>("--device", device, enum_names(DeviceChoice{}));
  require<UsageError>(choice != DeviceChoice::cuda || why_no_gpu().empty(), "--device",
                      "expected auto or cpu, because {}; got cuda", why_no_gpu());
  return choice == DeviceChoice::automatic && automatic_is_cpu ? at::kCPU : choose_device(choice);
}

LoadedModel open_model(const std::string& path, const ModelOptions& options) {
  const at::Device device = choose_device(options.device, /*automatic_is_cpu=*/true);
  const auto dtype = parse_choice<DtypeChoice>("--dtype", options.dtype, enum_names(DtypeChoice{}));
  if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
  const at::ScalarType number = choose_dtype(dtype, device);
  LoadedModel loaded = open_changed(find_model(path), options.change, device,
                                    matrix_storage(options.weights, number, device));
  choose_focus(loaded.model, options.focus, options.focus_top_k, "--focus-top-k");
  loaded.model.compute().dtype = number;
  choose_activations(loaded.model, options.activations);
  return loaded;
}

void FieldOptions::add_lines(Command& verb, const std::vector<FieldLine>& lines) {
  for (const FieldLine& line : lines) {
    const bool list = line.type == kList;
    Option* option = verb.add_option(option_name(line.key), (*values_)[line.key],
                                     list ? line.help + " (may be given several times)"
                                          : fmt::format("{} [{}]", line.help, line.initial));
    option->type_name(line.type);
    list ? option->take_all() : option->take_last();
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
  return path == "-" ? read_descriptor(STDIN_FILENO, "stdin", kLargestInput)
                     : read_file(path, kLargestInput);
}

}  // namespace fovea::cli
