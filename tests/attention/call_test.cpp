// The checked call: every path refuses the same input with the same error, and values that paths
// share are made once.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/call.h"

#include <gtest/gtest.h>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/paths/path.h"
#include "fovea/attention/places.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::call_test {
namespace {

using namespace fovea::testing;

AttentionSpec hard_spec(int64_t top_k) {
  AttentionSpec spec = small_spec(4, 2, 16);
  spec.focus = {.gate = FocusSpec::Gate::hard, .groups = 4, .top_k = top_k, .window = 3};
  return spec;
}

AttentionSpec routed_spec() {
  AttentionSpec spec = small_spec(4, 2, 16);
  spec.routing = {.clusters = 3, .keep = 5};
  return spec;
}

// The message of every way to make the call: few queries and many, each path, each dtype.
template <class Spoil>
std::vector<std::string> refusals(const AttentionSpec& spec, const Spoil& spoil) {
  std::vector<std::string> messages;
  for (const int64_t queries : {1, 40}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      AttentionInputs in = random_inputs(spec, 2, queries, 40).to(dtype);
      spoil(in.tensors);
      for (const Path path : {Path::automatic, Path::fused, Path::reference}) {
        try {
          attention(spec, in.q, in.k, in.v, in.tensors, {}, path);
          messages.emplace_back("nothing was refused");
        } catch (const ShapeError& error) {
          messages.emplace_back(error.what());
        }
      }
    }
  }
  return messages;
}

void expect_one_refusal(const std::vector<std::string>& messages, const std::string& words) {
  for (const std::string& message : messages) {
    EXPECT_EQ(message, messages.front());
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
}

TEST(Call, MembersBeyondTheGroupsAreRefusedOnEveryPath) {
  for (const int64_t top_k : {1, 3}) {
    expect_one_refusal(
        refusals(hard_spec(top_k), [](AttentionTensors& x) { x.members_bs[1][7] = 16; }),
        "token 7 of row 1 is in group 4");
  }
  AttentionSpec all = hard_spec(1);
  all.focus.groups = 64;  // every bit is a group
  const AttentionInputs in = random_inputs(all, 1, 9).to(at::kFloat);
  in.tensors.members_bs.fill_(-1);
  EXPECT_NO_THROW(attention(all, in.q, in.k, in.v, in.tensors));
}

// Where any two choices meet, no path compares memberships, so each must be a choice.
TEST(Call, MembersOfTooFewGroupsAreRefusedOnEveryPathWhereChoicesAlwaysMeet) {
  expect_one_refusal(refusals(hard_spec(3), [](AttentionTensors& x) { x.members_bs[0][5] = 4; }),
                     "members must be 3 groups a token (focus.top_k); token 5 of row 0 is in 1");
  const AttentionSpec spec = hard_spec(3);
  const AttentionInputs in = random_inputs(spec, 2, 40);
  EXPECT_LT(relative_error(attention(spec, in.q, in.k, in.v, in.tensors).out_bhte,
                           reference_attention(spec, in.q, in.k, in.v, in.tensors).out_bhte),
            1e-12);
}

TEST(Call, MembersOfTokensBeyondARowsLengthAreNotRead) {
  const AttentionSpec spec = hard_spec(3);
  const AttentionInputs in = random_inputs(spec, 2, 1, 40).to(at::kFloat);
  AttentionContext context;
  context.key_lengths_b = at::tensor({40, 30});
  in.tensors.members_bs[1].narrow(0, 30, 10).zero_();
  EXPECT_NO_THROW(attention(spec, in.q, in.k, in.v, in.tensors, context));
  in.tensors.members_bs[1].narrow(0, 29, 1).zero_();
  EXPECT_ERROR(ShapeError, attention(spec, in.q, in.k, in.v, in.tensors, context),
               "token 29 of row 1 is in 0");
}

TEST(Call, RoutesBeyondTheClustersAreRefusedOnEveryPath) {
  expect_one_refusal(
      refusals(routed_spec(), [](AttentionTensors& x) { x.key_routes_bhs[0][1][5] = 3; }),
      "routes are clusters 0 to 2; got 3");
  expect_one_refusal(
      refusals(routed_spec(), [](AttentionTensors& x) { x.query_routes_bht[1][3][0] = -1; }),
      "routes are clusters 0 to 2; got -1");
}

TEST(Call, ValuesThatPathsShareAreMadeOnceACall) {
  const AttentionCall call{.spec = {}, .q = {}};
  int made = 0;
  const auto make = [&made] { return ++made; };
  EXPECT_EQ(*call.made.get(make), 1);
  EXPECT_EQ(*call.made.get(make), 1);
  EXPECT_EQ(*call.made.get([] { return std::string("another type"); }), "another type");
  const AttentionCall other = call;  // another call, with values of its own
  EXPECT_EQ(*other.made.get(make), 2);
}

TEST(Call, PlacesAndStagesAreMadeOnce) {
  const AttentionSpec spec = routed_spec();
  const AttentionInputs in = random_inputs(spec, 2, 9);
  const AttentionContext context = packed_context({4, 5});
  const AttentionCall call = checked_call(spec, in.q, in.k, in.v, in.tensors, context);
  EXPECT_EQ(&call.places(), &call.places());
  EXPECT_EQ(&call.stages(), &call.stages());
  const Places places = resolve_places(context, 9, 9, at::kCPU);
  EXPECT_TRUE(call.places().key_positions_bs.equal(places.key_positions_bs));
  EXPECT_TRUE(call.places().query_documents_bt.equal(places.query_documents_bt));
  EXPECT_EQ(call.stages().size(), stage_uses(spec).size());
}

TEST(Paths, EndWithTheReferenceWhichRunsEveryCall) {
  const AttentionPath& last = attention_paths().back();
  EXPECT_EQ(last.name, PathName::reference);
  for (const auto& [name, spec] : all_specs()) {
    const AttentionInputs in = random_inputs(spec, 1, 4);
    const AttentionCall call = checked_call(spec, in.q, in.k, in.v, in.tensors, {});
    EXPECT_TRUE(last.serves(call)) << name;
    EXPECT_FALSE(last.reason_against(call)) << name;
  }
}

TEST(Paths, OurKernelsAreFusedAndGroupedAlone) {
  for (const AttentionPath& path : attention_paths()) {
    EXPECT_EQ(is_ours(path.name), path.name == PathName::fused || path.name == PathName::grouped);
  }
  PathTaken decode{.name = PathName::decode, .inner = PathName::torch_sdpa};
  EXPECT_FALSE(decode.is_ours());
  decode.inner = PathName::grouped;
  EXPECT_TRUE(decode.is_ours());
}

TEST(PlanName, ListsItsWordsInOneOrder) {
  PlanName name = PlanWord::window;
  name.add(PlanWord::documents);
  EXPECT_EQ(name.text(), "documents+window");
  EXPECT_TRUE(name.has(PlanWord::window));
  EXPECT_FALSE(name.has(PlanWord::causal));
  EXPECT_EQ(PlanName{}.text(), "");
}

}  // namespace
}  // namespace fovea::call_test
