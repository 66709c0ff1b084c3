// Every number of a recipe, a comparison, a request and an attention spec has a range: its ends are
// read, and one beyond, NaN and infinity are refused with the key.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/compare/config.h"
#include "fovea/config/reader.h"
#include "fovea/infer/generate.h"
#include "fovea/train/recipe.h"
#include "tests/support/expect_error.h"

namespace fovea::key_ranges_test {
namespace {

bool is_number(const FieldLine& line) {
  return line.type.starts_with("integer") || line.type.starts_with("number") ||
         line.type.starts_with("list of integers") || line.type.starts_with("list of numbers");
}
bool is_whole(const FieldLine& line) { return line.type.find("integer") != std::string::npos; }

/// {"a", "N", "b"} = text: a map with a list of one map.
ConfigNode node_with(std::string_view key, const std::string& text) {
  if (key.empty()) return ConfigNode::make_scalar(text, "here");
  const size_t dot = key.find('.');
  const std::string first(key.substr(0, dot));
  ConfigNode inner =
      node_with(dot == std::string_view::npos ? std::string_view() : key.substr(dot + 1), text);
  ConfigNode node = ConfigNode::make_map("here");
  if (first == "N") {
    node.kind = ConfigNode::Kind::list;
    node.items.push_back(std::move(inner));
  } else {
    node.fields.push_back({first, std::move(inner)});
  }
  return node;
}

/// "train.stages.N.steps" as messages say it.
std::string first_element(std::string key) {
  for (size_t at = key.find(".N."); at != std::string::npos; at = key.find(".N."))
    key.replace(at, 3, ".0.");
  return key;
}

std::string written(const FieldLine& line, double value) {
  return is_whole(line) ? std::to_string(static_cast<int64_t>(value)) : fmt::format("{}", value);
}

std::vector<std::string> beyond(const FieldLine& line) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Range& r = line.range;
  std::vector<std::string> out{"nan", ".nan", "inf", "-inf", ".inf", "1e999", "-1e999", "1e300"};
  if (is_whole(line)) {
    out.push_back(written(line, r.least - 1));
    out.push_back(std::to_string(static_cast<int64_t>(r.most) + 1));
    out.push_back(std::to_string(std::numeric_limits<int64_t>::max()));
    out.push_back(std::to_string(std::numeric_limits<int64_t>::min()));
    out.emplace_back("9223372036854775808");
    out.emplace_back("0.5");
  } else {
    out.push_back(fmt::format("{}", std::nextafter(r.least, -infinity)));
    out.push_back(fmt::format("{}", std::nextafter(r.most, infinity)));
    if (r.end == Range::End::open) out.push_back(fmt::format("{}", r.most));
  }
  return out;
}

template <Described T>
void walk(const char* name) {
  int64_t numbers = 0;
  for (const FieldLine& line : list_fields<T>()) {
    if (!is_number(line)) continue;
    ++numbers;
    ASSERT_TRUE(line.range.stated()) << name << ": '" << line.key << "' has no range";
    const auto read = [&](const std::string& text) {
      T value;
      read_fields(node_with(line.key, text), value);
    };
    const double last =
        line.range.end == Range::End::open ? std::nextafter(line.range.most, 0.0) : line.range.most;
    for (const double end : {line.range.least, last})
      EXPECT_NO_THROW(read(written(line, end))) << name << ": " << line.key << "=" << end;
    for (const std::string& text : beyond(line))
      EXPECT_ERROR(ConfigError, read(text), "'" + first_element(line.key) + "'")
          << name << ": " << line.key << "=" << text;
  }
  EXPECT_GT(numbers, 0) << name;
}

TEST(KeyRanges, EveryNumberOfARecipeRefusesWhatIsBeyond) { walk<Recipe>("recipe"); }
TEST(KeyRanges, EveryNumberOfAComparisonDoes) { walk<CompareConfig>("compare"); }
TEST(KeyRanges, EveryNumberOfARequestDoes) {
  walk<GenerateOptions>("generate");
  walk<ContextOptions>("context");
}
TEST(KeyRanges, EveryNumberOfAnAttentionSpecDoes) { walk<AttentionSpec>("attention spec"); }

/// Sets the n-th number to `value`, and remembers its key.
class SetNumber : public FieldVisitor {
 public:
  SetNumber(int64_t which, double value) : left_(which), value_(value) {}
  std::string key;

  void boolean(const Field&, bool&) override {}
  void integer(const Field& field, int64_t& value) override {
    if (!hit(field)) return;
    constexpr auto most = std::numeric_limits<int64_t>::max();
    value = value_ > 0 ? most : -most;
  }
  void real(const Field& field, double& value) override {
    if (hit(field)) value = value_;
  }
  void text(const Field&, std::string&) override {}
  void choice_index(const Field&, int&, std::span<const std::string_view>) override {}
  void integers(const Field& field, std::vector<int64_t>& values) override {
    values.resize(1);
    integer(field, values[0]);
  }
  void reals(const Field& field, std::vector<double>& values) override {
    values.resize(1, 1.0);
    real(field, values[0]);
  }
  void texts(const Field&, std::vector<std::string>&) override {}
  void group(const Field&, const std::function<void(FieldVisitor&)>& describe) override {
    describe(*this);
  }
  void group_list(const Field&, const GroupListAccess& access) override {
    access.resize(1);
    access.describe(0, *this);
  }

 private:
  bool hit(const Field& field) {
    const bool this_one = left_-- == 0;
    if (this_one) key = field.key;
    return this_one;
  }
  int64_t left_;
  double value_;
};

TEST(KeyRanges, RecipesFilledByCodeAreCheckedToo) {
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity(), -1e300}) {
    for (int64_t n = 0;; ++n) {
      Recipe recipe;
      recipe.data.sources.push_back({.path = "text.txt"});
      recipe.train.stages = {{.steps = 1}};
      SetNumber set(n, value);
      recipe.describe(set);
      if (set.key.empty()) {
        EXPECT_GT(n, 80);
        break;
      }
      EXPECT_ERROR(ConfigError, recipe.resolved(), set.key + "' must be") << set.key << value;
    }
  }
}

}  // namespace
}  // namespace fovea::key_ranges_test
