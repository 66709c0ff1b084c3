// Parsed config files: places, duplicate keys, overrides, and input that must not crash.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/config/node.h"

#include <gtest/gtest.h>

#include "fovea/base/files.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::node_test {
namespace {

using Kind = ConfigNode::Kind;

const char* const kRecipe =
    "model:\n"
    "  layers: 4\n"
    "  theta: 1e4\n"
    "data:\n"
    "  sources:\n"
    "    - path: a.txt\n"
    "    - path: b.txt\n"
    "      weight: 2\n"
    "empty:\n";

std::string at(const ConfigNode& root, std::initializer_list<const char*> path) {
  const ConfigNode* node = &root;
  for (const char* key : path) {
    node = node->kind == Kind::list ? &node->items.at(static_cast<size_t>(std::stoi(key)))
                                    : node->find(key);
    if (node == nullptr) return "(none)";
  }
  return node->scalar;
}

TEST(ParseYaml, KeepsKindsOrderTextAndPlaces) {
  const ConfigNode root = parse_yaml(kRecipe, "r.yaml");
  ASSERT_EQ(root.kind, Kind::map);
  EXPECT_EQ(root.fields[0].first, "model");
  EXPECT_EQ(root.fields[1].first, "data");
  EXPECT_EQ(at(root, {"model", "theta"}), "1e4");
  EXPECT_EQ(at(root, {"data", "sources", "1", "weight"}), "2");
  EXPECT_EQ(root.find("empty")->kind, Kind::null);
  EXPECT_EQ(root.find("model")->find("theta")->place, "r.yaml:3");
  EXPECT_EQ(root.find("data")->find("sources")->items[1].find("weight")->place, "r.yaml:8");
  EXPECT_EQ(root.find("modle"), nullptr);
}

TEST(ParseYaml, QuotedTextIsTextAndAliasesAreCopies) {
  const ConfigNode root = parse_yaml("a: &x {k: 'null'}\nb: *x\n", "r.yaml");
  EXPECT_EQ(root.find("a")->find("k")->kind, Kind::scalar);
  EXPECT_EQ(at(root, {"b", "k"}), "null");
}

TEST(ParseYaml, EmptyTextIsNull) {
  EXPECT_EQ(parse_yaml("", "r.yaml").kind, Kind::null);
  EXPECT_EQ(parse_yaml("# only a comment\n", "r.yaml").kind, Kind::null);
}

TEST(ParseYaml, DuplicateKeyIsAnErrorThatNamesBothLines) {
  EXPECT_ERROR(ConfigError, parse_yaml("model:\n  layers: 4\n  heads: 2\n  layers: 6\n", "r.yaml"),
               "r.yaml:4", "'layers'", "r.yaml:2");
}

TEST(ParseYaml, SyntaxErrorNamesTheLine) {
  EXPECT_ERROR(ConfigError, parse_yaml("a: 1\nb: [1, 2\n", "r.yaml"), "r.yaml:3");
  EXPECT_ERROR(ConfigError, parse_yaml("a: 1\nb: *missing\n", "r.yaml"), "r.yaml:2");
  EXPECT_ERROR(ConfigError, parse_yaml("a: 1\n? [1, 2]\n: 3\n", "r.yaml"), "plain names");
}

TEST(ParseYaml, SecondDocumentIsRefusedNotIgnored) {
  EXPECT_ERROR(ConfigError, parse_yaml("a: 1\n---\nb: 2\n", "r.yaml"), "r.yaml", "one document");
}

// yaml-cpp reads empty documents there, without end.
TEST(ParseYaml, ACommaOutsideOfBracketsIsAnError) {
  EXPECT_ERROR(ConfigError, parse_yaml(",", "r.yaml"), "r.yaml:1", "outside of brackets");
  EXPECT_ERROR(ConfigError, parse_yaml("# words\n, name: x\n", "r.yaml"), "r.yaml:2");
  EXPECT_ERROR(ConfigError, parse_yaml("[a]\n, b", "r.yaml"), "r.yaml:2");
}

TEST(ParseYaml, HostileNestingIsAnErrorNotACrash) {
  EXPECT_THROW(parse_yaml(std::string(100000, '['), "r.yaml"), ConfigError);
  EXPECT_THROW(parse_yaml(std::string(300, '[') + std::string(300, ']'), "r.yaml"), ConfigError);
  EXPECT_ERROR(ConfigError, parse_yaml("a: &x [*x]\n", "r.yaml"), "r.yaml:1");
  // Nine levels of ten aliases each would be 10^9 nodes.
  std::string bomb = "l0: &l0 [x,x,x,x,x,x,x,x,x,x]\n";
  for (int level = 1; level < 9; ++level) {
    const std::string below = "*l" + std::to_string(level - 1);
    bomb += fmt::format("l{0}: &l{0} [{1}", level, below);
    for (int i = 1; i < 10; ++i) bomb += "," + below;
    bomb += "]\n";
  }
  EXPECT_ERROR(ConfigError, parse_yaml(bomb, "r.yaml"), "aliases");
}

TEST(ParseYaml, BytesThatAreNoUtf8AreRefused) {
  EXPECT_ERROR(ConfigError, parse_yaml("a: 1\nname: \"\xff\xfe\"\n", "r.yaml"), "r.yaml", "UTF-8");
}

// A look at all keys for each new one would take minutes here.
TEST(ParseYaml, AHundredThousandKeysAreReadOneAfterTheOther) {
  std::string yaml, json = "{";
  constexpr int keys = 150'000;
  for (int i = 0; i < keys; ++i) {
    yaml += fmt::format("key{}: {}\n", i, i);
    json += fmt::format("{}\"key{}\": {}", i > 0 ? ", " : "", i, i);
  }
  const ConfigNode a = parse_yaml(yaml, "r.yaml"), b = parse_json(json + "}", "c.json");
  EXPECT_EQ(a.fields.size(), static_cast<size_t>(keys));
  EXPECT_EQ(b.fields.size(), static_cast<size_t>(keys));
  ConfigNode merged = a;
  merge_into(merged, b);
  EXPECT_EQ(merged.fields.size(), static_cast<size_t>(keys));
  EXPECT_ERROR(ConfigError, parse_yaml(yaml + "key3: 1\n", "r.yaml"), "r.yaml:150001", "'key3'",
               "r.yaml:4");
  EXPECT_ERROR(ConfigError, parse_json(json + ", \"key3\": 1}", "c.json"), "'key3'", "twice");
}

TEST(ParseJson, MoreValuesThanAnyConfigHasAreRefused) {
  std::string json = "[0";
  for (int i = 0; i < 1'000'000; ++i) json += ",0";
  EXPECT_ERROR(ConfigError, parse_json(json + "]", "c.json"), "c.json", "1000000 values");
}

TEST(LoadYaml, AFileWithoutAnEndIsRefused) {
  EXPECT_ERROR(InputError, load_yaml("/dev/zero"), "/dev/zero", "16 MB", "a recipe");
}

TEST(LoadYaml, NamesTheFile) {
  testing::TemporaryFolder folder;
  write_file(folder / "bad.yaml", "a: [");
  EXPECT_ERROR(ConfigError, load_yaml(folder / "bad.yaml"), "bad.yaml:1");
  EXPECT_ERROR(InputError, load_yaml(folder / "none.yaml"), "none.yaml", "check the path");
}

TEST(ParseJson, GivesTheSameTreeAsYaml) {
  const ConfigNode root = parse_json(
      R"({"model": {"layers": 4, "theta": 1e4, "tied": true}, "list": [1, null, "x"]})", "c.json");
  EXPECT_EQ(at(root, {"model", "layers"}), "4");
  EXPECT_EQ(at(root, {"model", "theta"}), "1e4");
  EXPECT_EQ(at(root, {"model", "tied"}), "true");
  EXPECT_EQ(root.find("list")->items[1].kind, Kind::null);
  EXPECT_EQ(at(root, {"list", "2"}), "x");
}

TEST(ParseJson, RefusesDuplicateKeysAndBrokenTextWithThePlace) {
  EXPECT_ERROR(ConfigError, parse_json(R"({"a": 1, "a": 2})", "c.json"), "c.json", "'a'", "twice");
  EXPECT_ERROR(ConfigError, parse_json(R"({"a": 1,)", "c.json"), "c.json", "byte 9");
  EXPECT_ERROR(ConfigError, parse_json("", "c.json"), "c.json", "byte");
  EXPECT_ERROR(ConfigError, parse_json("{} {}", "c.json"), "c.json", "byte");
  EXPECT_ERROR(ConfigError, parse_json(R"({"a": 1e999})", "c.json"), "c.json");
  EXPECT_ERROR(ConfigError, parse_json("{\"a\": \"\xff\"}", "c.json"), "c.json");
  EXPECT_ERROR(ConfigError, parse_json(std::string(100000, '['), "c.json"), "deeper");
}

TEST(SetOverride, ReplacesAScalarAndRemembersItsPlace) {
  ConfigNode root = parse_yaml(kRecipe, "r.yaml");
  set_override(root, "model.layers=8");
  EXPECT_EQ(at(root, {"model", "layers"}), "8");
  EXPECT_EQ(at(root, {"model", "theta"}), "1e4");
  EXPECT_EQ(root.find("model")->find("layers")->place, "override 'model.layers=8'");
}

TEST(SetOverride, ReachesIntoListsByIndex) {
  ConfigNode root = parse_yaml(kRecipe, "r.yaml");
  set_override(root, "data.sources.1.path=/my/text=final.txt");
  EXPECT_EQ(at(root, {"data", "sources", "1", "path"}), "/my/text=final.txt");
  EXPECT_EQ(at(root, {"data", "sources", "0", "path"}), "a.txt");
  EXPECT_ERROR(UsageError, set_override(root, "data.sources.2.path=c"), "below 2", "'2'");
  EXPECT_ERROR(UsageError, set_override(root, "data.sources.first.path=c"), "'first'");
  EXPECT_ERROR(UsageError, set_override(root, "data.sources.-1.path=c"), "'-1'");
}

TEST(SetOverride, CreatesMapsOnTheWayAndTakesYamlValues) {
  ConfigNode root;
  set_override(root, "optim.betas=[0.9, 0.95]");
  set_override(root, "optim.schedule={kind: cosine}");
  EXPECT_EQ(at(root, {"optim", "betas", "1"}), "0.95");
  EXPECT_EQ(at(root, {"optim", "schedule", "kind"}), "cosine");
  set_override(root, "optim.note=");
  EXPECT_EQ(root.find("optim")->find("note")->kind, Kind::null);
}

TEST(SetOverride, RefusesWhatIsNoAssignment) {
  ConfigNode root;
  EXPECT_ERROR(UsageError, set_override(root, "model.layers"), "key=value", "model.layers");
  EXPECT_ERROR(UsageError, set_override(root, "=8"), "key=value");
  EXPECT_ERROR(UsageError, set_override(root, "model..layers=8"), "model..layers");
  EXPECT_ERROR(UsageError, set_override(root, "model.=8"), "model.");
  EXPECT_ERROR(ConfigError, set_override(root, "model.layers=[1"), "override", "model.layers");
}

TEST(MergeInto, MapsMergeKeyByKeyEverythingElseReplaces) {
  ConfigNode base = parse_yaml("a: {x: 1, y: 2}\nl: [1, 2, 3]\n", "base");
  merge_into(base, parse_yaml("a: {y: 5, z: 6}\nl: [9]\nn: 1\n", "patch"));
  EXPECT_EQ(at(base, {"a", "x"}), "1");
  EXPECT_EQ(at(base, {"a", "y"}), "5");
  EXPECT_EQ(at(base, {"a", "z"}), "6");
  EXPECT_EQ(base.find("l")->items.size(), 1u);
  EXPECT_EQ(at(base, {"n"}), "1");
  EXPECT_EQ(base.find("a")->find("y")->place, "patch:1");
}

}  // namespace
}  // namespace fovea::node_test
