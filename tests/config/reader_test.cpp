// Config structs: reading, refusing, writing back, listing.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/config/reader.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tests/support/expect_error.h"

namespace fovea::reader_test {
namespace {

enum class Shape { round, square };
std::span<const std::string_view> enum_names(Shape) {
  static constexpr std::array<std::string_view, 2> names{"round", "square"};
  return names;
}

struct Ranged {
  int64_t layers = 4;
  double share = 0.5;
  std::vector<int64_t> seeds{1};
  void describe(FieldVisitor& v) {
    v.integer({"layers", "decoder blocks", {1, 1024}}, layers);
    v.real({"share", "of the tokens", ranges::kBelowOne}, share);
    v.integers({"seeds", "one run each", ranges::kSeeds}, seeds);
  }
};

struct Inner {
  std::string path = "none";
  double weight = 1.5;
  void describe(FieldVisitor& v) {
    v.text({"path", "a file"}, path);
    v.real({"weight", "share of the tokens"}, weight);
  }
  bool operator==(const Inner&) const = default;
};

struct Outer {
  bool tied = true;
  int64_t steps = 100;
  double rate = 1e-3;
  std::string name = "demo";
  Shape shape = Shape::round;
  std::vector<int64_t> seeds{1, 2, 3};
  std::vector<double> betas{0.9, 0.95};
  std::vector<std::string> tags;
  Inner best;
  std::vector<Inner> sources;
  void describe(FieldVisitor& v) {
    v.boolean({"tied", "one matrix for both"}, tied);
    v.integer({"steps", "optimizer steps"}, steps);
    v.real({"rate", "learning rate"}, rate);
    v.text({"name", "of the run"}, name);
    v.choice({"shape", "its shape"}, shape);
    v.integers({"seeds", "one run each"}, seeds);
    v.reals({"betas", "of the moments"}, betas);
    v.texts({"tags", "free words"}, tags);
    v.nested({"best", "the best one"}, best);
    v.nested_list({"sources", "texts"}, sources);
  }
  bool operator==(const Outer&) const = default;
};

Outer read(const std::string& yaml) {
  Outer value;
  read_fields(parse_yaml(yaml, "r.yaml"), value);
  return value;
}

Outer sample() {
  return {.tied = false,
          .steps = -123456789012,
          .rate = 0.1 + 0.2,
          .name = "it's: \"odd\" # name\n- \\ \t x",
          .shape = Shape::square,
          .seeds = {},
          .betas = {1e-300, 3, -0.0},
          .tags = {"", "true", "null", "~", "12", "- a", "ünï", " lead", "a, b", "[x]", "{y}"},
          .best = {.path = "*alias", .weight = 1e22},
          .sources = {{.path = "a b/c.txt", .weight = 2}, {.path = "&b", .weight = 1.0 / 3}}};
}

TEST(ReadFields, AbsentKeysKeepTheirDefaults) {
  EXPECT_EQ(read(""), Outer{});
  EXPECT_EQ(read("best:\n"), Outer{});
  EXPECT_EQ(read("steps: 7\n"), (Outer{.steps = 7}));
}

TEST(ReadFields, EveryKindIsRead) {
  const Outer value = read(
      "tied: no\nsteps: 5\nrate: 0.25\nname: x y\nshape: square\nseeds: [4, 5]\nbetas: 0.5\n"
      "tags: [a, 'b c']\nbest: {path: p}\nsources:\n  - {path: q, weight: 3}\n  - path: r\n");
  EXPECT_EQ(value, (Outer{.tied = false,
                          .steps = 5,
                          .rate = 0.25,
                          .name = "x y",
                          .shape = Shape::square,
                          .seeds = {4, 5},
                          .betas = {0.5},
                          .tags = {"a", "b c"},
                          .best = {.path = "p"},
                          .sources = {{.path = "q", .weight = 3}, {.path = "r"}}}));
}

TEST(ReadFields, WholeNumbersMayBeWrittenLargeAndReadably) {
  EXPECT_EQ(read("steps: 1e6").steps, 1000000);
  EXPECT_EQ(read("steps: 1_000_000").steps, 1000000);
  EXPECT_EQ(read("steps: 2.5e3").steps, 2500);
  EXPECT_EQ(read("steps: -3").steps, -3);
  EXPECT_EQ(read("steps: +3").steps, 3);
  EXPECT_EQ(read("steps: 9223372036854775807").steps, INT64_MAX);
  EXPECT_EQ(read("rate: 3e-4").rate, 3e-4);
  EXPECT_EQ(read("rate: 1_0.5").rate, 10.5);
  EXPECT_EQ(read("rate: .5").rate, 0.5);
}

TEST(ReadFields, WhatIsNoWholeNumberIsRefusedWithPlaceKeyAndHelp) {
  for (const char* text : {"eight", "2.5", "1e-3", "1e30", "9223372036854775808", "0x10", "8 9",
                           "inf", "nan", "''", "true", "[1]", "{a: 1}", "1e"}) {
    EXPECT_ERROR(ConfigError, read(fmt::format("name: x\nsteps: {}\n", text)), "r.yaml:2",
                 "'steps'", "whole number", "optimizer steps")
        << text;
  }
}

TEST(ReadFields, WhatIsNoFiniteNumberIsRefused) {
  for (const char* text : {"fast", "inf", ".nan", "1e999", "''", "[1, 2]"}) {
    EXPECT_ERROR(ConfigError, read(fmt::format("rate: {}\n", text)), "r.yaml:1", "'rate'", "number")
        << text;
  }
}

TEST(ReadFields, NumbersOutsideTheirRangeAreRefusedWithPlaceKeyRangeAndHelp) {
  const auto read_ranged = [](const std::string& yaml) {
    Ranged value;
    read_fields(parse_yaml(yaml, "r.yaml"), value, "model");
    return value;
  };
  EXPECT_EQ(read_ranged("layers: 1024").layers, 1024);
  EXPECT_EQ(read_ranged("share: 0").share, 0.0);
  EXPECT_ERROR(ConfigError, read_ranged("\nlayers: 0"), "[r.yaml:2]", "'model.layers'",
               "must be 1 to 1024; got 0", "decoder blocks");
  EXPECT_ERROR(ConfigError, read_ranged("layers: 9223372036854775807"), "'model.layers'");
  EXPECT_ERROR(ConfigError, read_ranged("share: 1"), "must be 0 to below 1; got 1");
  EXPECT_ERROR(ConfigError, read_ranged("seeds: [1, -1]"), "'model.seeds'", "got -1");
}

TEST(CheckFields, FindsTheFirstNumberOutsideItsRange) {
  EXPECT_NO_THROW(check_fields("model", Ranged{}, "model"));
  EXPECT_ERROR(ConfigError, check_fields("model", Ranged{.layers = 0}, "model"), "[model]",
               "'model.layers' must be 1 to 1024; got 0");
  EXPECT_ERROR(ConfigError, check_fields("model", Ranged{.share = std::nan("")}), "'share'", "nan");
  EXPECT_ERROR(ConfigError, check_fields("model", Ranged{.seeds = {1, 2, -3}}), "'seeds'", "-3");
}

TEST(ReadFields, WrongTypesNameWhatStandsThere) {
  EXPECT_ERROR(ConfigError, read("tied: maybe"), "'tied'", "true or false", "'maybe'");
  EXPECT_ERROR(ConfigError, read("name: [a]"), "'name'", "text", "a list");
  EXPECT_ERROR(ConfigError, read("name:\n"), "'name'", "nothing");
  EXPECT_ERROR(ConfigError, read("best: 3"), "'best'", "map of keys");
  EXPECT_ERROR(ConfigError, read("sources: {path: a}"), "'sources'", "a list", "a map");
  EXPECT_ERROR(ConfigError, read("sources: [a.txt]"), "'sources.0'", "map of keys");
  EXPECT_ERROR(ConfigError, read("seeds: [1, two]"), "'seeds'", "'two'");
  EXPECT_ERROR(ConfigError, read("tags: [a, [b]]"), "'tags'", "a list");
  EXPECT_ERROR(ConfigError, read("- 1\n- 2\n"), "the recipe", "map of keys");
}

TEST(ReadFields, UnknownKeyNamesTheLineTheNearestKeyAndAllKeys) {
  EXPECT_ERROR(ConfigError, read("name: x\nstpes: 5\n"), "r.yaml:2", "'stpes'",
               "did you mean 'steps'?", "known here: tied, steps");
  EXPECT_ERROR(ConfigError, read("best:\n  weigth: 2\n"), "r.yaml:2", "'best.weigth'",
               "did you mean 'weight'?");
  EXPECT_ERROR(ConfigError, read("sources:\n  - path: a\n  - paht: b\n"), "r.yaml:3",
               "'sources.1.paht'", "did you mean 'path'?");
}

TEST(ReadFields, UnknownChoiceNamesTheLegalOnesAndTheNearest) {
  EXPECT_ERROR(ConfigError, read("shape: sqare"), "'shape'", "round, square",
               "did you mean 'square'?");
}

TEST(ReadFields, OverridesGoThroughTheSameChecks) {
  ConfigNode root = parse_yaml("sources: [{path: a}]", "r.yaml");
  set_override(root, "sources.0.weight=heavy");
  Outer value;
  EXPECT_ERROR(ConfigError, read_fields(root, value), "override 'sources.0.weight=heavy'",
               "'sources.0.weight'");
}

TEST(FieldsToYaml, ReadsBackAsTheSameValues) {
  for (const bool help : {false, true}) {
    EXPECT_EQ(read(fields_to_yaml(sample(), help)), sample()) << fields_to_yaml(sample(), help);
    EXPECT_EQ(read(fields_to_yaml(Outer{}, help)), Outer{}) << fields_to_yaml(Outer{}, help);
  }
}

TEST(FieldsToYaml, HelpStandsBesideItsKey) {
  const std::string text = fields_to_yaml(Outer{.sources = {Inner{}}}, true);
  EXPECT_NE(text.find("steps: 100  # optimizer steps\n"), std::string::npos) << text;
  EXPECT_NE(text.find("- path: none  # a file\n"), std::string::npos) << text;
}

TEST(FieldsToJson, ReadsBackAsTheSameValuesInOrder) {
  const auto json = fields_to_json(sample());
  EXPECT_EQ(json.begin().key(), "tied");
  Outer value;
  read_fields(parse_json(json.dump(), "c.json"), value);
  EXPECT_EQ(value, sample());
}

TEST(ListFields, ShowsDottedKeysTypesDefaultsAndHelp) {
  const std::vector<FieldLine> lines = list_fields<Outer>();
  std::vector<std::string> keys;
  for (const FieldLine& line : lines) keys.push_back(line.key);
  EXPECT_EQ(keys, (std::vector<std::string>{"tied", "steps", "rate", "name", "shape", "seeds",
                                            "betas", "tags", "best.path", "best.weight", "sources",
                                            "sources.N.path", "sources.N.weight"}));
  EXPECT_EQ(lines[1].type, "integer");
  EXPECT_EQ(list_fields<Ranged>()[0].type, "integer 1 to 1024");
  EXPECT_EQ(lines[1].initial, "100");
  EXPECT_EQ(lines[1].help, "optimizer steps");
  EXPECT_EQ(lines[4].type, "round|square");
  EXPECT_EQ(lines[4].initial, "round");
  EXPECT_EQ(lines[5].initial, "[1, 2, 3]");
}

TEST(EnumName, IsTheNameThatIsRead) { EXPECT_EQ(enum_name(Shape::square), "square"); }

}  // namespace
}  // namespace fovea::reader_test
