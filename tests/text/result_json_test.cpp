// JSON of results: what is written is read again; what is missing or wrong is refused by its place.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/result_json.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fovea::result_json_test {

enum class Colour { red, green };
std::span<const std::string_view> enum_names(Colour) {
  static constexpr std::string_view names[] = {"red", "green"};
  return names;
}

struct Run {
  int64_t seed = 0;
  double loss = 0.0;
  std::string note;
  bool operator==(const Run&) const = default;
};

template <class V>
void describe(V& v, Run& r) {
  v("seed", r.seed);
  v("loss", r.loss);
  v.derived("doubled", 2 * r.loss);
  v.optional("note", r.note, !r.note.empty());
}

struct Result {
  Colour colour = Colour::red;
  bool done = false;
  std::optional<int64_t> best;
  std::vector<Run> runs;
  std::map<std::string, double> axes;
  std::vector<std::pair<std::string, double>> scores;
  double rate = 0.0;
  bool operator==(const Result&) const = default;
};

template <class V>
void describe(V& v, Result& r) {
  v("colour", r.colour);
  v("done", r.done);
  v("best", r.best);
  v("runs", r.runs);
  v("axes", r.axes);
  v("scores", r.scores);
  v.group("speed", [&](auto& of) { of("rate", r.rate); });
}

namespace {

Result example() {
  return {.colour = Colour::green,
          .done = true,
          .best = 3,
          .runs = {{.seed = 1, .loss = 0.5, .note = {}}, {.seed = 2, .loss = 1.5, .note = "late"}},
          .axes = {{"depth", 0.5}},
          .scores = {{"z", 1.0}, {"a", 2.0}},
          .rate = 7.0};
}

Result read(const nlohmann::ordered_json& json) {
  Result result;
  read_result<CheckpointError>(json, "state.json", result);
  return result;
}

TEST(ResultJson, WritesKeysInTheirOrder) {
  EXPECT_EQ(result_json(example()).dump(),
            R"({"colour":"green","done":true,"best":3,"runs":[{"seed":1,"loss":0.5,"doubled":1.0},)"
            R"({"seed":2,"loss":1.5,"doubled":3.0,"note":"late"}],"axes":{"depth":0.5},)"
            R"("scores":{"z":1.0,"a":2.0},"speed":{"rate":7.0}})");
}

TEST(ResultJson, ReadsWhatItWrote) {
  EXPECT_EQ(read(result_json(example())), example());
  EXPECT_EQ(read(result_json(Result{})), Result{});
}

TEST(ResultJson, NumbersThatAreNotFiniteAreNull) {
  Result result = example();
  result.rate = std::numeric_limits<double>::infinity();
  const auto json = result_json(result);
  EXPECT_TRUE(json["speed"]["rate"].is_null());
  EXPECT_TRUE(std::isnan(read(json).rate));
}

TEST(ResultJson, BytesThatAreNoTextAreRepaired) {
  EXPECT_EQ(result_json(std::string("a\xFF")).dump(), "\"a\xEF\xBF\xBD\"");
}

TEST(ResultJson, RefusesByPlace) {
  const nlohmann::ordered_json good = result_json(example());
  nlohmann::ordered_json bad = good;
  bad["runs"][1].erase("seed");
  EXPECT_ERROR(CheckpointError, read(bad), "state.json", "runs[1].seed", "missing");
  bad = good;
  bad["runs"][0]["seed"] = "one";
  EXPECT_ERROR(CheckpointError, read(bad), "runs[0].seed", "integer", "string");
  bad = good;
  bad["colour"] = "blue";
  EXPECT_ERROR(CheckpointError, read(bad), "colour", "red, green", "blue");
  bad = good;
  bad["speed"] = 3;
  EXPECT_ERROR(CheckpointError, read(bad), "speed", "an object");
  EXPECT_ERROR(CheckpointError, read(nlohmann::ordered_json::array()), "an object", "array");
}

}  // namespace
}  // namespace fovea::result_json_test
