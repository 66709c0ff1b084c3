// fovea export: a model folder in the layout of Hugging Face, or a GGUF file.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/options.h"
#include "cli/verbs.h"
#include "fovea/base/files.h"
#include "fovea/base/paths.h"
#include "fovea/checkpoint/adapter.h"
#include "fovea/checkpoint/families.h"
#include "fovea/checkpoint/fold.h"
#include "fovea/checkpoint/gguf_model.h"
#include "fovea/checkpoint/run_folder.h"

namespace fovea::cli {
namespace {

struct ExportVerbOptions {
  std::string model, out, gguf, dtype = "stored";
  bool fold = false, merge = false;
  double shard_gigabytes = 5;
  ModelChange change;
};

constexpr std::array<std::string_view, 4> kDtypes{"float32", "bfloat16", "float16", "stored"};

/// Nothing = as each weight is stored.
std::optional<at::ScalarType> parse_weight_dtype(const std::string& text) {
  constexpr std::array types{at::kFloat, at::kBFloat16, at::kHalf};
  const auto choice = static_cast<size_t>(parse_choice<int>("--dtype", text, kDtypes));
  return choice < types.size() ? std::optional(types[choice]) : std::nullopt;
}

GgufFormat gguf_format(const ExportVerbOptions& options) {
  return parse_choice<GgufFormat>("--gguf", options.gguf, enum_names(GgufFormat{}));
}

void check_gguf_options(const ExportVerbOptions& options) {
  const bool named = std::filesystem::path(options.out).extension() == ".gguf";
  require<UsageError>(
      named == !options.gguf.empty(), "--gguf",
      "a GGUF needs a name that ends in .gguf and a number format (--gguf f16); got "
      "'{}' and --gguf '{}'",
      options.out, options.gguf);
  require<UsageError>(
      options.gguf.empty() || options.dtype == "stored", "--dtype",
      "acts on model folders; the number format of a GGUF is that of --gguf; got {}",
      options.dtype);
}

/// Writes the file and says what it holds.
void write_gguf_file(const ExportVerbOptions& options, const Globals& globals,
                     const std::filesystem::path& from, const LoadedModel& loaded,
                     const Transformer& model) {
  const std::filesystem::path out = options.out;
  save_gguf(out, model, *loaded.tokenizer,
            {.format = gguf_format(options),
             .name = out.stem().string(),
             .chat_template = loaded.chat_template});
  const auto bytes = std::filesystem::file_size(out);
  if (globals.json) {
    print(nlohmann::ordered_json{{"from", from.string()},
                                 {"file", out.string()},
                                 {"parameters", model.parameters().count()},
                                 {"gguf", options.gguf},
                                 {"bytes", bytes},
                                 {"chat_template", !loaded.chat_template.empty()}}
              .dump(2) +
          "\n");
    return;
  }
  print(fmt::format("{}: {:.2f}M parameters, {}, {:.1f} MB{}\n", out.string(),
                    static_cast<double>(model.parameters().count()) / 1e6, options.gguf,
                    static_cast<double>(bytes) / 1e6,
                    loaded.chat_template.empty() ? "" : ", with a chat template"));
}

void run(const ExportVerbOptions& options, const Globals& globals) {
  check_gguf_options(options);
  const SaveOptions how{.dtype = parse_weight_dtype(options.dtype),
                        .shard_bytes = static_cast<int64_t>(options.shard_gigabytes * 1e9)};
  const std::filesystem::path from = find_model(options.model), out = options.out;
  require<InputError>(!path_exists(out), options.out,
                      "expected a {} that is not there yet; remove it, or give another name",
                      options.gguf.empty() ? "folder" : "file");
  const LoadedModel loaded = open_changed(from, options.change);
  std::optional<Transformer> merged, folded;
  if (options.merge) merged.emplace(merge_adapter(loaded.model));
  const Transformer& whole = merged ? *merged : loaded.model;
  if (options.fold) folded.emplace(fold_constants(whole));
  const Transformer& model = folded ? *folded : whole;
  if (!options.gguf.empty()) return write_gguf_file(options, globals, from, loaded, model);
  const at::ScalarType dtype = how.dtype.value_or(stored_dtype(model));
  const int64_t bytes = model.parameters().count() * static_cast<int64_t>(at::elementSize(dtype));
  SaveOptions save = how;
  save.chat_template = loaded.chat_template;
  if (bytes <= how.shard_bytes) save.shard_bytes = 0;
  write_folder(out,
               [&](const auto& folder) { save_model(folder, model, *loaded.tokenizer, save); });
  const std::vector<std::string> missing = not_in_hugging_face(model.config());
  const nlohmann::ordered_json config = model_config_json(model.config(), *loaded.tokenizer, dtype);
  const auto dtype_name = config["torch_dtype"].get<std::string>();
  if (globals.json) {
    print(nlohmann::ordered_json{{"from", from.string()},
                                 {"folder", out.string()},
                                 {"model_type", config["model_type"]},
                                 {"parameters", model.parameters().count()},
                                 {"dtype", dtype_name},
                                 {"not_in_hugging_face", missing}}
              .dump(2) +
          "\n");
    return;
  }
  print(fmt::format("{}: {:.2f}M parameters, {}\n", out.string(),
                    static_cast<double>(model.parameters().count()) / 1e6, dtype_name));
  if (missing.empty()) {
    print(fmt::format("loads anywhere as {}\n", config["architectures"][0].get<std::string>()));
    return;
  }
  const auto folds = [](const std::string& key) {
    return key.find("temperature") != key.npos || key.find("norm_depth_scale") != key.npos;
  };
  const bool constants =
      std::ranges::all_of(missing, folds) &&
      model.config().attention.spec.temperature.kind == TemperatureSpec::Kind::constant;
  print(
      fmt::format("loads in Fovea only (model_type fovea): Hugging Face's config cannot say {}\n{}",
                  fmt::join(missing, ", "),
                  constants                      ? "--fold puts it into the weights\n"
                  : model.config().lora.rank > 0 ? "--merge puts the adapter into the weights; "
                                                   "`fovea adapter export` writes it apart\n"
                                                 : ""));
}

}  // namespace

Verb add_export_verb(Command& app, Globals& globals) {
  auto options = std::make_shared<ExportVerbOptions>();
  Command* verb =
      app.add_subcommand("export", "write a model folder or a GGUF file that other engines load");
  verb->add_option("model", options->model, "run folder, checkpoint, model folder or .gguf file")
      ->required();
  verb->add_option("out", options->out, "the folder or .gguf file to write; must not exist")
      ->required();
  verb->add_option("--gguf", options->gguf,
                   "write a GGUF file with its matrices in f32, f16, bf16 or q8_0");
  verb->add_flag("--fold", options->fold,
                 "put a constant temperature and norm_depth_scale into the weights: same numbers");
  verb->add_flag("--merge", options->merge, "put the LoRA adapter into the weights (spec 5.1)");
  add_change_options(*verb, options->change);
  verb->add_option(
          "--dtype", options->dtype,
          "of the weights: float32, bfloat16, float16, or stored: as the model's own files "
          "have them")
      ->capture_default_str();
  verb->add_option("--shard", options->shard_gigabytes, "gigabytes of one weight file at most")
      ->capture_default_str()
      ->check(in_range({1e-9, 1e6}));
  add_global_options(*verb, globals);
  return {verb, [options, &globals] { run(*options, globals); }};
}

}  // namespace fovea::cli
