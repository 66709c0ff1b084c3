// The page and the JSON of an inspection; classes of kernels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/report/example_inspection.h"

namespace fovea::inspect_test {
namespace {

using namespace fovea::testing;

TEST(Inspection, KernelsAreNamedByWhereTheirWeightLies) {
  for (const KernelKind kind : {KernelKind::identity, KernelKind::diagonal, KernelKind::priming,
                                KernelKind::edge, KernelKind::mixed}) {
    EXPECT_EQ(kernel_kind_name(kernel_kind(kernel_like(kind), 3, 5)), kernel_kind_name(kind));
  }
  EXPECT_EQ(kernel_kind(std::vector<double>(15, 0.0), 3, 5), KernelKind::mixed);
}

TEST(Inspection, ThePageShowsEveryPartAndEscapesEveryText) {
  const std::string page = inspect_html(example_inspection());
  for (const char* part : {"id=\"layers\"", "id=\"kernels\"", "id=\"groups\"", "attention-data",
                           "data-kind=\"priming\"", "data-kind=\"edge\"", "&lt;b&gt;key",
                           "<span style=\"--c:var(--series-1)\" title=\"group 1\"> "
                           "&lt;u&gt;key&lt;/u&gt;</span>"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_EQ(page.find("<script>hacked"), std::string::npos);
  EXPECT_EQ(page.find("<i>the</i>"), std::string::npos);
  EXPECT_EQ(page.find("http://") == std::string::npos, true);
  EXPECT_EQ(page, inspect_html(example_inspection()));  // the same bytes
}

TEST(Inspection, ModelsWithoutKernelsAndGroupsHaveNoSuchSections) {
  InspectResult result = example_inspection();
  for (InspectModel& model : result.models)
    model.kernels.clear(), model.mixes.clear(), model.focus.clear();
  const std::string page = inspect_html(result);
  EXPECT_EQ(page.find("id=\"kernels\""), std::string::npos);
  EXPECT_EQ(page.find("id=\"groups\""), std::string::npos);
}

TEST(Inspection, OneModelIsShownOnceAndTwoSideBySide) {
  InspectResult result = example_inspection();
  ASSERT_EQ(result.models.size(), 2u);
  const std::string both = inspect_html(result);
  EXPECT_NE(both.find("id=\"right-map\""), std::string::npos);
  EXPECT_NE(both.find("Two variants"), std::string::npos);
  result.models.pop_back();
  const std::string one = inspect_html(result);
  EXPECT_NE(one.find("id=\"left-map\""), std::string::npos);
  EXPECT_EQ(one.find("id=\"right-map\""), std::string::npos);
  EXPECT_EQ(one.find("Two variants"), std::string::npos);
  EXPECT_EQ(one.find("@readers"), std::string::npos);
}

TEST(Inspection, JsonHasGroupsKernelsAndLayers) {
  const InspectResult result = example_inspection();
  const auto groups = groups_json(result), all = inspect_json(result);
  EXPECT_EQ(groups["models"][1]["layers"][0]["groups"].size(), 4u);
  EXPECT_EQ(groups["models"][0]["layers"][0]["pairs"][0]["key"], 3);
  EXPECT_EQ(groups["models"][0]["tokens"][1], " tok1");
  EXPECT_EQ(groups["models"][0]["layers"][0]["first_choices"][6], 2);
  EXPECT_EQ(groups["models"][0]["layers"][0]["distant_kept"], 0.25);
  EXPECT_EQ(all["models"][0]["kernels"][3]["class"], "edge");
  EXPECT_EQ(all["models"][0]["layers"][1]["entropy"][1], 2.0);
  EXPECT_EQ(all["models"][0]["head_mixes"][0]["diagonal_mean"], 0.9);
}

}  // namespace
}  // namespace fovea::inspect_test
