// Logits of a model folder for some tokens, for programs that compare them (check_transformers.py,
// check_peft.py).
//
//   peer_logits FOLDER OUT.safetensors [--adapter FOLDER] TOKEN...     writes "logits" [tokens,
//   vocabulary], float32
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <iostream>

#include "fovea/base/error.h"
#include "fovea/checkpoint/adapter.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/checkpoint/safetensors.h"

int main(int argc, char** argv) {
  try {
    const std::filesystem::path folder = argv[1];
    fovea::Transformer base(fovea::load_model_config(folder), 0);
    fovea::load_weights(folder, base);
    const bool adapted = argc > 4 && std::string_view(argv[3]) == "--adapter";
    const fovea::Transformer model =
        adapted ? fovea::with_adapter(base, fovea::read_adapter(argv[4], base.config()))
                : std::move(base);
    std::vector<int64_t> tokens;
    for (int i = adapted ? 5 : 3; i < argc; ++i) tokens.push_back(std::stoll(argv[i]));
    const at::NoGradGuard no_grad;
    const fovea::ModelInput input{.tokens_bt = at::tensor(tokens, at::kLong).unsqueeze(0)};
    fovea::write_safetensors(argv[2], {{"logits", model.logits(model.hidden(input))[0]}});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
