// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/sentencepiece_normalizer.h"

#include <algorithm>

#include "fovea/text/byte_names.h"
#include "fovea/text/normalizer.h"

namespace fovea {
namespace {

using Type = SentencePieceModel::Type;

std::vector<std::string> user_pieces(const SentencePieceModel& model) {
  std::vector<std::string> texts;
  for (const auto& piece : model.pieces)
    texts.push_back(piece.type == Type::user_defined ? piece.text : "");
  return texts;
}

void append_spaced(std::string_view text, std::string_view space, std::string& out) {
  for (const char c : text) {
    if (c == ' ') {
      out += space;
    } else {
      out += c;
    }
  }
}

}  // namespace

SentencePieceNormalizer::SentencePieceNormalizer(const SentencePieceModel& model,
                                                 const std::string& where)
    : prefix_(model.add_dummy_prefix && !model.whitespace_as_suffix),
      suffix_(model.add_dummy_prefix && model.whitespace_as_suffix),
      remove_extra_(model.remove_extra_whitespaces),
      space_(model.escape_whitespaces ? kSpaceMark : " "),
      user_pieces_(user_pieces(model)),
      has_user_pieces_(std::ranges::any_of(
          model.pieces, [](const auto& piece) { return piece.type == Type::user_defined; })) {
  if (!model.charsmap.empty()) charsmap_.emplace(model.charsmap, where);
}

SentencePieceNormalizer::UserPiece SentencePieceNormalizer::user_piece(
    std::string_view text) const {
  UserPiece longest;
  user_pieces_.prefixes(text, [&](size_t size, int32_t id) { longest = {size, id}; });
  return longest;
}

SentencePieceNormalizer::Head SentencePieceNormalizer::head(std::string_view text) const {
  if (has_user_pieces_) {
    if (const auto piece = user_piece(text); piece.size > 0)
      return {text.substr(0, piece.size), piece.size};
  }
  if (charsmap_) {
    if (const auto found = charsmap_->longest(text)) return {found->replacement, found->size};
  }
  const Utf8Step step = utf8_step(text);
  if (step.kind != Utf8Step::Kind::character) return {"\xEF\xBF\xBD", 1};
  return {text.substr(0, step.size), step.size};
}

std::string SentencePieceNormalizer::apply(std::string_view text, bool goes_on) const {
  std::string out;
  if (remove_extra_ && !goes_on) {
    while (!text.empty()) {
      const Head first = head(text);
      if (first.normal != " ") break;
      text.remove_prefix(first.size);
    }
  }
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 2);
  if (prefix_ && !goes_on) out += space_;
  const bool plain = !charsmap_ && !has_user_pieces_ && !remove_extra_;
  bool after_space = remove_extra_ && !goes_on;
  while (!text.empty()) {
    if (plain) {
      const size_t valid = valid_utf8_prefix(text);
      append_spaced(text.substr(0, valid), space_, out);
      text.remove_prefix(valid);
      if (text.empty()) break;
    }
    auto [normal, size] = head(text);
    text.remove_prefix(size);
    if (after_space) normal.remove_prefix(std::min(normal.find_first_not_of(' '), normal.size()));
    if (normal.empty()) continue;
    append_spaced(normal, space_, out);
    after_space = remove_extra_ && normal.ends_with(' ');
  }
  while (remove_extra_ && out.ends_with(space_)) out.resize(out.size() - space_.size());
  if (suffix_) out += space_;
  return out;
}

}  // namespace fovea
