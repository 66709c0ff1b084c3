// Case files: the golden ones of tests/golden/attention (written by an independent NumPy
// implementation) on every path and in every dtype, and what is refused.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/attention_case.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fovea/base/files.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::attention_case_test {
namespace {

using namespace fovea::testing;

std::vector<std::filesystem::path> golden_cases() {
  std::set<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(FOVEA_SOURCE_DIR "/tests/golden/attention"))
    paths.insert(entry.path());
  return {paths.begin(), paths.end()};
}

void expect_errors_below(const CaseResult& result, double forward, double backward,
                         const std::string& what) {
  for (const auto& [name, error] : result.errors) {
    EXPECT_LT(error, name.starts_with("grad_") ? backward : forward)
        << what << ": " << name << " on " << enum_name(result.path.name);
  }
}

TEST(GoldenCases, AgreeWithTheIndependentImplementationOnEveryPathAndDtype) {
  ASSERT_GE(golden_cases().size(), 12u);
  for (const auto& path : golden_cases()) {
    for (const CasePath way : {CasePath::automatic, CasePath::reference}) {
      const CaseResult wide = run_attention_case(path, {.path = way});
      EXPECT_EQ(wide.errors.size(), load_attention_case(path).expected.size())
          << path << ": every expected tensor must be computed";
      EXPECT_GE(wide.errors.size(), 5u);
      expect_errors_below(wide, 1e-12, 1e-12, path.stem());
      expect_errors_below(run_attention_case(path, {.path = way, .dtype = at::kFloat}), 1e-5, 1e-4,
                          path.stem());
      expect_errors_below(run_attention_case(path, {.path = way, .dtype = at::kBFloat16}), 0.05,
                          0.1, path.stem());
    }
  }
}

TEST(GoldenCases, DecodeAgreesWhereACacheCanRunThem) {
  std::set<std::string> decoded;
  for (const auto& path : golden_cases()) {
    try {
      const CaseResult result = run_attention_case(path, {.path = CasePath::decode});
      EXPECT_LT(result.errors.at("out"), 1e-12) << path;
      EXPECT_EQ(result.path.name, PathName::decode);
      decoded.insert(path.stem());
    } catch (const UnsupportedError&) {
      EXPECT_TRUE(path.stem() == "mqa_last_queries" || path.stem() == "t5_bidirectional" ||
                  path.string().find("dropout") != std::string::npos ||
                  path.string().find("packed") != std::string::npos ||
                  path.stem() == "empty_rows" || path.stem() == "everything")
          << path;
    }
  }
  for (const char* name : {"plain_mha", "focal_constant", "soft_cap", "alibi_12_heads", "t5",
                           "window_sinks", "strided", "fixed", "sink_logit", "mta_before",
                           "mta_paper", "mta_window_sinks", "talking_heads", "differential"}) {
    EXPECT_TRUE(decoded.contains(name)) << name;
  }
}

TEST(GoldenCases, FusedIsRefusedUntilThereAreKernels) {
  for (const auto& path : golden_cases()) {
    EXPECT_ERROR(UnsupportedError, run_attention_case(path, {.path = CasePath::fused}), "fused");
  }
}

class CaseFile : public ::testing::Test {
 protected:
  std::filesystem::path write(const TensorMap& tensors, const TextMap& metadata) {
    const auto path = folder_ / "case.safetensors";
    write_safetensors(path, tensors, metadata);
    return path;
  }
  TensorMap tensors() const {
    return {{"q", at::ones({1, 2, 3, 4})},
            {"k", at::ones({1, 1, 3, 4})},
            {"v", at::ones({1, 1, 3, 4})}};
  }
  TextMap metadata() const {
    return {{"attention_spec", R"({"heads": 2, "kv_heads": 1, "head_dim": 4})"}};
  }

  TemporaryFolder folder_;
};

TEST_F(CaseFile, WithoutGradientsGivesOutputAndLse) {
  const CaseResult result = run_attention_case(write(tensors(), metadata()));
  EXPECT_EQ(result.tensors.size(), 2u);
  EXPECT_TRUE(result.tensors.at("out").allclose(at::ones({1, 2, 3, 4})));
  EXPECT_TRUE(result.errors.empty());
}

TEST_F(CaseFile, ASeedDrawsTheSameOutputGradientOnEveryPath) {
  const auto path = write(tensors(), metadata());
  const CaseResult a = run_attention_case(path, {.path = CasePath::reference, .gradient_seed = 5});
  const CaseResult b = run_attention_case(path, {.path = CasePath::automatic, .gradient_seed = 5});
  EXPECT_TRUE(a.tensors.at("grad_v").allclose(b.tensors.at("grad_v")));
  EXPECT_FALSE(a.tensors.at("grad_v").allclose(
      run_attention_case(path, {.gradient_seed = 6}).tensors.at("grad_v")));
}

// Mechanisms with queries or keys beside q and k: decoding takes the rows of its tokens from each.
TEST_F(CaseFile, DecodesEveryTensorOfTheTokens) {
  const at::Generator generator = at::detail::createCPUGenerator(3);
  const auto rows = [&](int64_t heads) {
    return at::randn({2, heads, 9, 4}, generator, at::TensorOptions(at::kDouble));
  };
  for (const auto& [setting, names] :
       {std::pair<std::string, std::vector<std::string>>{
            R"("streaming": {"recent": 4, "start": 2})", {"start_queries"}},
        {R"("longformer": {"window": 3, "globals": 2, "projections": true})",
         {"global_queries", "global_keys", "global_values"}}}) {
    TensorMap tensors{{"q", rows(2)}, {"k", rows(1)}, {"v", rows(1)}};
    for (const std::string& name : names) tensors[name] = rows(name.ends_with("queries") ? 2 : 1);
    const auto path = write(
        tensors,
        {{"attention_spec", R"({"heads": 2, "kv_heads": 1, "head_dim": 4, )" + setting + "}"}});
    const CaseResult whole = run_attention_case(path, {.path = CasePath::reference}),
                     decoded = run_attention_case(path, {.path = CasePath::decode});
    EXPECT_TRUE(decoded.tensors.at("out").allclose(whole.tensors.at("out"), 1e-12, 1e-12))
        << setting;
  }
}

TEST_F(CaseFile, ThatIsNotACaseIsRefusedByName) {
  EXPECT_ERROR(InputError, load_attention_case(write(tensors(), {})), "attention_spec",
               "case.safetensors");
  EXPECT_ERROR(ConfigError,
               load_attention_case(write(tensors(), {{"attention_spec", R"({"headz": 2})"}})),
               "headz", "heads");
  TensorMap unknown = tensors();
  unknown["expected_grad_qq"] = at::ones({1});
  EXPECT_ERROR(InputError, load_attention_case(write(unknown, metadata())), "expected_grad_qq",
               "expected_grad_q");
  TensorMap missing = tensors();
  missing.erase("v");
  EXPECT_ERROR(InputError, load_attention_case(write(missing, metadata())), "'v'");
  TensorMap documents = tensors();
  for (const char* name : {"query_documents", "key_documents"})
    documents[name] = at::zeros({3}, at::kFloat);
  EXPECT_ERROR(ShapeError, run_attention_case(write(documents, metadata())), "documents",
               "integers", "Float");
  TensorMap misfit = tensors();
  misfit["grad_out"] = at::ones({1, 2, 3, 5});
  EXPECT_ERROR(InputError, load_attention_case(write(misfit, metadata())), "grad_out",
               "[1, 2, 3, 5]");
  TextMap seed = metadata();
  seed["dropout_seed"] = "many";
  EXPECT_ERROR(InputError, load_attention_case(write(tensors(), seed)), "dropout_seed", "many");
  TensorMap heads = tensors();
  heads["k"] = at::ones({1, 2, 3, 4});
  EXPECT_ERROR(ShapeError, run_attention_case(write(heads, metadata())), "k");
}

}  // namespace
}  // namespace fovea::attention_case_test
