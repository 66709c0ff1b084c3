// Options that several verbs share: the model to run and how, and described structs as options.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_line.h"
#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/checkpoint/changed_model.h"
#include "fovea/config/reader.h"

namespace fovea::cli {

/// The enum value named `text`; UsageError with the nearest name.
template <class E>
E parse_choice(const char* option, const std::string& text,
               std::span<const std::string_view> names) {
  const std::vector<std::string> known(names.begin(), names.end());
  for (size_t i = 0; i < known.size(); ++i) {
    if (known[i] == text) return static_cast<E>(i);
  }
  fail<UsageError>(option, "expected one of {}; got '{}'{}", fmt::join(known, ", "), text,
                   did_you_mean(text, known));
}

/// For `->check(...)`: a number inside `range`, which the help shows. NaN and words are refused.
ValueCheck in_range(const Range& range);

/// `--adapter`, `--attention` and `--rope`.
void add_change_options(Command& verb, ModelChange& change);

/// Where and in which number format a model runs, and what is changed about it.
struct ModelOptions {
  std::string device = "auto", dtype = "auto", weights = "stored", activations = "auto",
              focus = "configured";
  ModelChange change;
  int64_t threads = 0, focus_top_k = 0;
};
void add_model_options(Command& verb, ModelOptions& options);
/// Loads a run folder (its newest whole checkpoint), checkpoint or model folder.
LoadedModel open_model(const std::string& path, const ModelOptions& options);
/// `--device`; auto is a GPU where there is one, or always the CPU. UsageError, ConfigError.
at::Device choose_device(const std::string& device, bool automatic_is_cpu);

/// The model folder that a user means (resolve_model_folder); warnings go to stderr.
std::filesystem::path find_model(const std::string& path);
/// load_changed(), with a warning about parameters that the change adds and no file holds.
LoadedModel open_changed(const std::filesystem::path& folder, const ModelChange& change,
                         at::Device device = at::kCPU, const MatrixStorage& matrices = {});
/// `--weights` and `--activations` of verbs that read a model for inference.
void add_weights_options(Command& verb, std::string& weights, std::string& activations);
/// Storage of the matrices by `--weights`, in a model that computes in `dtype`. UsageError.
MatrixStorage matrix_storage(const std::string& weights, at::ScalarType dtype, at::Device device);
/// Sets how products read their activations, in the dtype that is set already. UsageError for int8
/// or int16 without packed weights.
void choose_activations(Transformer& model, const std::string& activations);
/// Sets how Focus acts. UsageError for a model without Focus and for more groups than it has.
void choose_focus(Transformer& model, const std::string& mode, int64_t top_k,
                  const char* top_k_option);

/// The keys of a described struct as options of a verb: `max_tokens` is `--max-tokens`. Names,
/// types, defaults and help come from describe().
class FieldOptions {
 public:
  template <Described T>
  void add(Command& verb) {
    add_lines(verb, list_fields<T>());
  }
  /// Sets what the user gave; the rest of `value` stays. ConfigError as for a recipe.
  template <Described T>
  void apply(T& value) const {
    read_fields(given(list_fields<T>()), value);
  }

 private:
  void add_lines(Command& verb, const std::vector<FieldLine>& lines);
  ConfigNode given(const std::vector<FieldLine>& lines) const;

  // CLI11 writes into these while it parses.
  std::shared_ptr<std::map<std::string, std::vector<std::string>>> values_ =
      std::make_shared<std::map<std::string, std::vector<std::string>>>();
};

/// The bytes of a file, or of stdin for "-". InputError where it cannot be read or has more than a
/// prompt may have.
std::string read_input(const std::string& path);

}  // namespace fovea::cli
