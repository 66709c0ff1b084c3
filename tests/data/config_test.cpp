// Keys of `data:`, names of sources, placeholders in paths.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/config.h"

#include <cmath>
#include <cstdlib>

#include "fovea/config/reader.h"
#include "fovea/data/source_files.h"
#include "tests/data/data_fixture.h"

namespace fovea::config_test {
namespace {

using ::testing::HasSubstr;

DataConfig from_yaml(const std::string& yaml) {
  DataConfig config;
  read_fields(parse_yaml(yaml, "recipe.yaml"), config);
  return config;
}

std::string refusal(const DataConfig& config) {
  try {
    config.check();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(DataConfig, IsReadFromARecipe) {
  const DataConfig config = from_yaml(
      "sources:\n- path: a.txt\n  weight: 0.3\n- {path: b.jsonl, field: body, name: "
      "bee}\ninvalid_utf8: replace\n");
  ASSERT_EQ(config.sources.size(), 2u);
  EXPECT_EQ(config.sources[0].weight, 0.3);
  EXPECT_EQ(config.sources[1].field, "body");
  EXPECT_EQ(source_name(config.sources[1]), "bee");
  EXPECT_EQ(config.invalid_utf8, InvalidUtf8::replace);
  EXPECT_EQ(config.bad_lines, BadLines::fail);
  EXPECT_NO_THROW(config.check());
}

TEST(DataConfig, RefusesNoSources) {
  EXPECT_THAT(refusal(from_yaml("seed: 1")), HasSubstr("data.sources"));
}

TEST(DataConfig, RefusesWeightsThatAreNotPositive) {
  for (const double weight : {0.0, -1.0, std::nan("")}) {
    DataConfig config = from_yaml("sources: [{path: a}, {path: b}]");
    config.sources[1].weight = weight;
    EXPECT_THAT(refusal(config), HasSubstr("'data.sources.1.weight' must be positive"));
  }
}

TEST(DataConfig, RefusesEqualNamesAndEmptyPaths) {
  EXPECT_THAT(refusal(from_yaml("sources: [{path: x/a.txt}, {path: y/a.txt}]")),
              HasSubstr("name 'a'"));
  EXPECT_THAT(refusal(from_yaml("sources: [{weight: 1}]")), HasSubstr("path is empty"));
}

TEST(DataConfig, RefusesImpossibleFractions) {
  for (const double fraction : {0.0, -0.1, 0.6}) {
    DataConfig config = from_yaml("sources: [{path: a}]");
    config.validation_fraction = fraction;
    EXPECT_THAT(refusal(config), HasSubstr("validation_fraction"));
  }
}

TEST(SourceName, IsTheLastPartOfThePathWithoutItsEnding) {
  const auto name = [](const char* path) {
    return source_name({.path = path, .weight = 1, .name = "", .field = "", .include = {}});
  };
  EXPECT_EQ(name("/data/shakespeare.txt"), "shakespeare");
  EXPECT_EQ(name("c4.jsonl.zst"), "c4");
  EXPECT_EQ(name("books/"), "books");
  EXPECT_EQ(name("torch-python"), "torch-python");
  EXPECT_EQ(name("${TORCH_PYTHON}"), "torch-python");
  EXPECT_EQ(name("."), "text");
}

TEST(SourcePath, TakesPlaceholdersFromTheEnvironment) {
  ::setenv("FOVEA_TEST_ROOT", "/some/where", 1);
  EXPECT_EQ(resolve_source_path("${FOVEA_TEST_ROOT}/a/${FOVEA_TEST_ROOT}"),
            "/some/where/a//some/where");
  ::unsetenv("FOVEA_TEST_ROOT");
  EXPECT_THROW(resolve_source_path("${FOVEA_TEST_ROOT}/a"), ConfigError);
  EXPECT_EQ(resolve_source_path("plain/$x"), "plain/$x");
}

class TorchPython : public DataTest {};

TEST_F(TorchPython, IsEveryPySourceOfTheInstalledTorch) {
  ::unsetenv("TORCH_PYTHON");
  DataSource source;
  source.path = "torch-python";
  const SourceListing listing = list_source_files(source);
  EXPECT_GT(listing.files.size(), 500u);
  for (const SourceFile& file : listing.files) EXPECT_EQ(file.path.extension(), ".py");
}

TEST_F(TorchPython, CanBeMovedByTheEnvironment) {
  write("here.py", "x = 1\n");
  write("not_here.txt", "text");
  ::setenv("TORCH_PYTHON", (folder_ / "text").c_str(), 1);
  for (const char* path : {"torch-python", "${TORCH_PYTHON}"}) {
    DataSource source;
    source.path = path;
    const SourceListing listing = list_source_files(source);
    ASSERT_EQ(listing.files.size(), 1u);
    EXPECT_EQ(listing.files[0].path, text("here.py"));
    EXPECT_EQ(listing.unlisted, 1);
  }
  ::unsetenv("TORCH_PYTHON");
}

}  // namespace
}  // namespace fovea::config_test
