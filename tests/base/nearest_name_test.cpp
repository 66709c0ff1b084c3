// Nearest names: edit distance and what counts as a likely misspelling.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/nearest_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace fovea::nearest_name_test {
namespace {

const std::vector<std::string> kKeys{"heads", "key_value_heads", "layers", "width", "theta"};

TEST(EditDistance, CountsInsertionsDeletionsChangesAndSwapsAsOne) {
  EXPECT_EQ(edit_distance("layers", "layers"), 0);
  EXPECT_EQ(edit_distance("layer", "layers"), 1);
  EXPECT_EQ(edit_distance("layerss", "layers"), 1);
  EXPECT_EQ(edit_distance("lazers", "layers"), 1);
  EXPECT_EQ(edit_distance("alyers", "layers"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(EditDistance, OfAnEmptyNameIsTheOthersLength) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
}

TEST(EditDistance, IsSymmetric) {
  for (const std::string& a : kKeys) {
    for (const std::string& b : kKeys) EXPECT_EQ(edit_distance(a, b), edit_distance(b, a));
  }
}

TEST(NearestName, FindsTheLikelyKeyAndNoUnlikelyOne) {
  EXPECT_EQ(nearest_name("heds", kKeys), "heads");
  EXPECT_EQ(nearest_name("hedas", kKeys), "heads");
  EXPECT_EQ(nearest_name("layer", kKeys), "layers");
  EXPECT_EQ(nearest_name("key_vale_heads", kKeys), "key_value_heads");
  EXPECT_EQ(nearest_name("optimizer", kKeys), "");
  EXPECT_EQ(nearest_name("x", kKeys), "");
  EXPECT_EQ(nearest_name("heads", {}), "");
}

TEST(NearestName, AMegabyteOfANameIsNearToNothing) {
  const std::string huge(1 << 20, 'a');
  EXPECT_EQ(nearest_name(huge, std::vector<std::string>{huge + "b", "heads"}), "");
  EXPECT_EQ(nearest_name("heds", std::vector<std::string>{huge, "heads"}), "heads");
}

TEST(NearestName, SuggestionIsASentencePartOrNothing) {
  EXPECT_EQ(did_you_mean("widht", kKeys), " (did you mean 'width'?)");
  EXPECT_EQ(did_you_mean("optimizer", kKeys), "");
}

}  // namespace
}  // namespace fovea::nearest_name_test
