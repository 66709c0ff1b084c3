// The content of `compare.json`: all results of a comparison, and the only input of its table and
// HTML report.
//
// Units: bits per byte of text, nats per token for losses, seconds, bytes, tokens per second. A
// number that does not exist (a loss that diverged, a summary without finished runs) is NaN here
// and `null` in the file.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fovea/report/statistics.h"

namespace fovea {

/// Version of the file format; a reader refuses any other.
inline constexpr int64_t kCompareSchemaVersion = 1;

inline constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

/// The budget of which every run gets the same amount.
enum class BudgetKind { tokens, time, parameters };
std::span<const std::string_view> enum_names(BudgetKind);

/// A variant against the reference; the rule stands at summarise().
enum class Verdict { reference, better, worse, equivalent, inside_spread, one_seed, incomplete };
std::span<const std::string_view> enum_names(Verdict);
/// For people: "better", "as good", "inside the spread", "one seed: no verdict".
std::string_view verdict_text(Verdict verdict);

/// One point of the training curve of one run.
struct CurvePoint {
  int64_t step = 0;
  int64_t tokens = 0;
  double seconds = 0;
  double train_loss = kNotANumber;                    // nats per token
  double ln_z = kNotANumber, ln_z_rms = kNotANumber;  // mean and root mean square over targets
};

struct ValidationPoint {
  int64_t step = 0;
  int64_t tokens = 0;
  double bits_per_byte = kNotANumber;
};

/// Effective temperature t of each layer at one step, and the share of values that the clip holds
/// at a bound (0..1).
struct TemperaturePoint {
  int64_t step = 0;
  std::vector<double> per_layer = {};
  double clipped_share = 0;
};

/// The score of a run on a task (compare.tasks), by the task's headline metric.
struct TaskPoint {
  std::string task = "", metric = "";
  int64_t step = 0;  // of the checkpoint
  double value = kNotANumber;
  double error = kNotANumber;  // standard error over the questions
  int64_t items = 0;
};

/// One seed of one variant.
struct CompareRun {
  int64_t seed = 0;
  double validation_bits_per_byte = kNotANumber;
  double validation_perplexity = kNotANumber;  // per token
  double validation_loss = kNotANumber;        // nats per token
  int64_t tokens = 0;
  double seconds = 0;
  double tokens_per_second = kNotANumber;
  int64_t peak_memory_bytes = 0;
  std::string attention_path = "";  // the path taken, as the telemetry names it
  std::string failure = "";         // why the run has no result; empty when it finished
  std::vector<CurvePoint> curve = {};
  std::vector<ValidationPoint> validation_curve = {};
  std::vector<TemperaturePoint> temperature = {};  // empty where no layer has a temperature
  std::vector<TaskPoint> tasks = {};               // by task, by step

  bool finished() const { return failure.empty() && std::isfinite(validation_bits_per_byte); }
};

/// Over the finished runs of a variant. The standard deviation is the sample one (n - 1), NaN for
/// one run.
struct Spread {
  double mean = kNotANumber;
  double min = kNotANumber;
  double max = kNotANumber;
  double standard_deviation = kNotANumber;
};

struct VariantSummary {
  int64_t finished_runs = 0;
  Spread bits_per_byte = {};
  Spread perplexity = {};
  double tokens_per_second = kNotANumber;  // median
  int64_t peak_memory_bytes = 0;           // largest
  Verdict verdict = Verdict::incomplete;
  int64_t pairs = 0;                // seeds that this variant and the reference share
  double difference = kNotANumber;  // mean paired difference in bits per byte, negative is better
  double difference_error = kNotANumber;  // its standard error
  Interval difference_interval = {};      // 95 %, of this variant alone
  double p = kNotANumber;                 // of the paired t-test
  double corrected_p = kNotANumber;       // by Holm, over the variants of the comparison
  double equivalence_p = kNotANumber;     // of the equivalence test, by Holm; NaN without a margin
  std::optional<int64_t> pairs_needed = {};  // seeds that would show such a difference
};

struct TextSample {
  std::string prompt = "";
  std::string text = "";
};

/// The weights of one head on one text: rows[i] holds the i + 1 weights of query i on keys 0..i.
struct AttentionMap {
  int64_t layer = 0;
  int64_t head = 0;
  std::vector<std::string> tokens = {};  // one printable piece per position
  std::vector<std::vector<double>> rows = {};
};

struct CompareVariant {
  std::string name = "";  // unique
  std::string description = "";
  std::string family = "";  // of a scaling curve (scaling.h); "" = of none
  int64_t parameters = 0;
  // Dotted key, value: what sets this variant apart.
  std::vector<std::pair<std::string, std::string>> config = {};
  std::vector<CompareRun> runs = {};  // seeds unique
  VariantSummary summary = {};
  TextSample sample = {};
  std::vector<AttentionMap> attention_maps = {};
};

/// A model that is not trained by us: a byte bigram, say.
struct CompareBaseline {
  std::string name = "";
  double bits_per_byte = kNotANumber;
  int64_t text_bytes = 0;  // that it was fitted on; 0: not known
};

/// One trial of compare.tuning.
struct TuningPoint {
  std::string variant = "", value = "";
  double bits_per_byte = kNotANumber;
  bool chosen = false;
};

/// How the speeds of a comparison were measured whose runs trained side by side.
struct SpeedsAlone {
  double seconds = 0;  // of training, of each variant, after all runs; 0 = while the runs trained
  int64_t threads = 0;
};

struct MachineInfo {
  std::string cpu = "";
  int64_t cores = 0;
  std::string isa = "";     // as `fovea info` names it
  std::string device = "";  // "cpu" or the name of the GPU
  int64_t memory_bytes = 0;
};

struct DataInfo {
  std::vector<std::string> sources = {};
  int64_t bytes = 0;
  int64_t documents = 0;
  int64_t validation_bytes = 0;
  std::string fingerprint = "";
};

/// Runs that another machine, or another call, has made (`compare.earlier`).
struct RunOrigin {
  MachineInfo machine = {};
  std::string code_version = "", created = "";
  std::vector<int64_t> seeds = {};
  std::vector<std::string> variants = {};  // of which it has made them
};

struct CompareResult {
  std::string title = "";
  BudgetKind budget = BudgetKind::tokens;
  double budget_amount = 0;  // tokens, seconds or parameters
  std::string created = "";  // ISO 8601 with zone: "2026-01-31T12:00:00Z"
  std::string command = "";  // the command line that made it
  std::string dtype = "";    // compute type of the runs
  MachineInfo machine = {};
  std::string code_version = "";
  std::string torch_version = "";
  DataInfo data = {};
  std::string reference = "";     // name of the variant that the others are judged against
  double equivalence_margin = 0;  // bits per byte; 0 = equality is not tested
  std::string tuned_key = "";     // compare.tuning; empty where nothing was tuned
  int64_t tuning_seed = 0;        // which does not count
  std::vector<TuningPoint> tuning = {};
  std::vector<RunOrigin> origins = {};  // of the runs that were taken from elsewhere
  int64_t workers = 1;                  // runs that trained at a time
  SpeedsAlone speeds_alone = {};
  std::vector<CompareBaseline> baselines = {};
  std::vector<CompareVariant> variants = {};

  /// The variant called `reference`; null while there is none.
  const CompareVariant* reference_variant() const;
};

/// Fills every `summary` from the runs.
///
/// The verdict compares seed by seed (the same seed means the same data order and initialisation).
/// The differences in bits per byte to the reference over n >= 2 common seeds give a paired t-test
/// (statistics.h). Its p is corrected by Holm's method over all variants that have one. Below
/// kSignificance the verdict is `better` or `worse` by the sign of the mean. Else it is
/// `equivalent` where `equivalence_margin` is given and the equivalence test (equivalence.h) has a
/// corrected p below kSignificance, and `inside_spread` otherwise. Where nothing differs, at most 5
/// % of the comparisons hold a false difference. One common seed gives `one_seed`, none
/// `incomplete`. `pairs_needed` asks for the chance kPower at the strictest level of the
/// correction, kSignificance over the number of tests. Spec E-7.
void summarise(CompareResult& result);

/// A variant on a task at the end of the training, over its seeds.
struct TaskRow {
  std::string task = "", metric = "", variant = "";
  int64_t items = 0;  // questions a seed
  Spread score = {};
  PairedTest difference = {};        // to the reference, seed by seed
  double corrected_p = kNotANumber;  // by Holm, over the variants on this task
};
/// Task by task, the variants in their order.
std::vector<TaskRow> task_rows(const CompareResult& result);

/// The contents of `compare.json`, with the scaling studies (scaling.h) that follow from them.
/// Attention weights are rounded to 1e-5, and invalid UTF-8 becomes U+FFFD.
nlohmann::ordered_json to_json(const CompareResult& result);

/// InputError names the place in the document ("variants[1].runs[0].seed"). Its causes: another
/// schema version, missing keys, wrong types, names or seeds that occur twice, an unknown
/// reference, attention rows that are no lower triangle. Unknown keys are ignored, so that version
/// 1 can grow. Speeds, memory, clocks and losses in nats may be absent, as in kept results.
/// Summaries are computed anew from the runs: a file of an older rule gets the verdicts of this
/// one.
CompareResult compare_result_from_json(const nlohmann::ordered_json& document);

/// The same through a file; the write is atomic.
void save_compare_result(const CompareResult& result, const std::filesystem::path& path);
CompareResult load_compare_result(const std::filesystem::path& path);

}  // namespace fovea
