// A walk in parts has the bits of the walk in one piece; chosen rows have those of whole maps.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/layer_walk.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace fovea::layer_walk_test {
namespace {

std::vector<ModelConfig> configs() {
  std::vector<ModelConfig> all(5);
  for (ModelConfig& c : all) {
    c.layers = 3;
    c.width = 32;
    c.heads = 4;
    c.ffn_width = 48;
    c.context = 256;
  }
  all[1].attention.spec.focus = {
      .gate = FocusSpec::Gate::hard, .groups = 4, .top_k = 1, .window = 5, .sinks = 1};
  all[1].attention.spec.focus.width = 8;
  all[2].attention.spec.multi_token.before = {.queries = 3, .keys = 3};
  all[2].attention.spec.multi_token.after = {.queries = 2, .keys = 3};
  all[2].attention.multi_token.init = KernelStart::uniform;
  all[3].attention.spec.differential = true;
  all[4].attention.spec.mask.window = 40;
  return all;
}

Transformer tiny(const ModelConfig& config) { return Transformer(config.resolved(250), 3); }

at::Tensor ids(int64_t count) { return (at::arange(count, at::kLong) * 37 % 250).unsqueeze(0); }

ModelInput text_of(int64_t count) {
  ModelInput input;
  input.tokens_bt = ids(count);
  return input;
}

TEST(LayerWalk, ReadsTheBitsOfDecodeHiddenWhileOtherTextsAreRead) {
  for (const ModelConfig& config : configs()) {
    const Transformer model = tiny(config);
    DecodeState whole = model.make_decode_state(1, 100), parts = model.make_decode_state(1, 100),
                other = model.make_decode_state(1, 100);
    for (int64_t begin = 0; begin < 80; begin += 40) {
      const at::Tensor some = ids(80).narrow(1, begin, 40);
      const at::Tensor expected = model.decode_hidden(some, whole);
      LayerWalk walk = model.decode_layers(some, parts);
      int64_t layers = 0;
      for (; !walk.done(); ++layers) {
        EXPECT_FALSE(walk.hidden().defined());
        walk.next();
        model.decode(ids(5), other);
        model.decode(ids(1), other);
      }
      EXPECT_EQ(layers, config.layers);
      EXPECT_TRUE(at::equal(walk.hidden(), expected));
    }
    EXPECT_TRUE(at::equal(model.decode(ids(1), parts), model.decode(ids(1), whole)));
  }
}

TEST(LayerWalk, ChosenRowsHaveTheBitsOfWholeMaps) {
  for (const ModelConfig& config : configs()) {
    const Transformer model = tiny(config);
    const std::vector<LayerView> whole = model.look(text_of(150));
    const std::vector<int64_t> queries{149, 3, 64, 65, 31}, heads{1, 0};
    const std::vector<LayerView> some =
        model.look(text_of(150), {.layers = {0, 2}, .heads = heads, .queries = queries});
    ASSERT_EQ(some.size(), 3U);
    EXPECT_FALSE(some[1].weights_hqs.defined());
    for (const size_t layer : {size_t{0}, size_t{2}}) {
      EXPECT_EQ(whole[layer].weights_hqs.sizes()[1], 150);
      EXPECT_TRUE(
          at::equal(some[layer].weights_hqs, whole[layer]
                                                 .weights_hqs.index_select(0, at::tensor(heads))
                                                 .index_select(1, at::tensor(queries))));
      EXPECT_TRUE(at::equal(some[layer].stats.entropy_h, whole[layer].stats.entropy_h));
    }
  }
}

}  // namespace
}  // namespace fovea::layer_walk_test
