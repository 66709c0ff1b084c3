// Rules that stretch rotary positions past the trained length (spec 6.2).
//
// A rule changes the frequencies f_t = theta^(-2t / d_r); YaRN also the length of the rotated
// vectors. Dynamic rules depend on the length n of the text. A request, prompt and answer together,
// has one n (the cache rule of 6.2), so cached keys never need another rotation.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fovea/config/fields.h"

namespace fovea {

struct RopeScaling {
  /// With `L` the original context, `a` the factor and n the length of the text:
  /// - `linear`: f/a
  /// - `ntk`: theta a^(d/(d-2)) in place of theta
  /// - `dynamic_ntk`: as `ntk`, with a n/L - (a-1) in place of a for n > L (Hugging Face)
  /// - `dynamic_ntk_yarn`: as `ntk`, with n/L in place of a for n > L (YaRN paper)
  /// - `dynamic_linear`: f L/n for n > L
  /// - `yarn`: by parts
  /// - `dynamic_yarn`: by parts with a = max(1, n/L)
  /// - `llama3`: by wavelength
  enum class Kind {
    none,
    linear,
    ntk,
    dynamic_ntk,
    dynamic_ntk_yarn,
    dynamic_linear,
    yarn,
    dynamic_yarn,
    llama3
  };

  Kind kind = Kind::none;
  double factor = 1.0;            ///< a >= 1
  int64_t original_context = 0;   ///< L in tokens
  double beta_fast = 32.0;        ///< yarn: turns in L from which a frequency stays
  double beta_slow = 1.0;         ///< yarn: turns in L below which it is divided by a
  double attention_factor = 0.0;  ///< yarn: multiplies cos and sin; 0 = 0.1 ln a + 1
  bool truncate = true;           ///< yarn: whole-numbered borders
  double low_frequency = 1.0;     ///< llama3: wavelengths above L / low are divided by a
  double high_frequency = 4.0;    ///< llama3: wavelengths below L / high stay

  /// The frequencies depend on the length of the text.
  bool dynamic() const;
  void describe(FieldVisitor& v);
  /// ConfigError naming the key.
  void check() const;
  bool operator==(const RopeScaling&) const = default;
};
std::span<const std::string_view> enum_names(RopeScaling::Kind);

struct RopeFrequencies {
  std::vector<double> values;  ///< d_r / 2
  double length = 1.0;         ///< multiplies cos and sin (YaRN's mscale)
};
/// Frequencies of a rotary width d_r for texts of `n` tokens.
RopeFrequencies rope_frequencies(const RopeScaling& scaling, double theta, int64_t width,
                                 int64_t n);

}  // namespace fovea
