// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/sentencepiece_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>
#include <variant>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/text/bpe.h"
#include "fovea/text/normalizer.h"
#include "fovea/text/sentencepiece_normalizer.h"
#include "fovea/text/unigram.h"
#include "fovea/text/utf8.h"

namespace fovea {
namespace {

using SpModel = SentencePieceModel;
using PieceType = SpModel::Type;

bool stands_in_text(PieceType type) {
  return type == PieceType::normal || type == PieceType::user_defined || type == PieceType::unused;
}

/// What both algorithms need to know.
struct Vocabulary {
  std::vector<std::string> names;  // of pieces that stand in texts, else ""
  int32_t unknown = -1;
  ByteTokens byte_tokens = no_byte_tokens();
};

void check_piece(const SpModel::Piece& piece, size_t id, const SpModel& model,
                 const std::string& where) {
  require<InputError>(!piece.text.empty(), where, "piece {} is empty", id);
  require<InputError>(std::isfinite(piece.score), where, "the score of piece {} is not a number",
                      id);
  if (piece.type != PieceType::byte) return;
  require<InputError>(named_byte(piece.text).has_value(), where,
                      "piece {} must name a byte, like <0x0A>; got '{}'", id, piece.text);
  require<InputError>(model.byte_fallback, where,
                      "piece {} is a byte in a model without byte_fallback", id);
}

Vocabulary vocabulary_of(const SpModel& model, const std::string& where) {
  Vocabulary made;
  constexpr size_t kMostIds = 1 << 22;
  require<InputError>(!model.pieces.empty() && model.pieces.size() < kMostIds, where,
                      "expected a SentencePiece model with pieces; got {}", model.pieces.size());
  std::unordered_map<std::string_view, size_t> in_text, reserved;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SpModel::Piece& piece = model.pieces[id];
    check_piece(piece, id, model, where);
    const bool texts = stands_in_text(piece.type);
    const auto [first, is_new] = (texts ? in_text : reserved).emplace(piece.text, id);
    require<InputError>(is_new, where, "pieces {} and {} are both '{}'", first->second, id,
                        piece.text);
    made.names.push_back(texts ? piece.text : "");
    if (piece.type == PieceType::byte)
      made.byte_tokens[*named_byte(piece.text)] = static_cast<int32_t>(id);
    if (piece.type == PieceType::unknown) {
      require<InputError>(made.unknown < 0, where, "pieces {} and {} are both of the unknown type",
                          made.unknown, id);
      made.unknown = static_cast<int32_t>(id);
    }
  }
  require<InputError>(made.unknown >= 0, where, "expected a piece of the unknown type; got none");
  const bool all = std::ranges::none_of(made.byte_tokens, [](int32_t id) { return id < 0; });
  require<InputError>(all || !model.byte_fallback, where,
                      "byte_fallback needs a piece for each of the 256 bytes");
  return made;
}

/// BPE by scores: of all pairs of neighbours that are a piece together, the one with the best score
/// first. So every way to cut a piece in two is a merge, and those of equal scores have one rank.
class ScoredBpe {
 public:
  ScoredBpe(const SpModel& model, const Vocabulary& vocabulary, const std::string& where)
      : vocabulary_(vocabulary), names_(vocabulary.names) {
    for (size_t id = 0; id < names_.size(); ++id)
      if (!names_[id].empty()) ids_.emplace(names_[id], static_cast<int32_t>(id));
    std::vector<BpeMerge> merges = all_merges(model, where);
    BpeOptions options{.unknown = {.token = vocabulary.unknown, .fused = !model.byte_fallback},
                       .unit = BpeOptions::Unit::character,
                       .byte_tokens = vocabulary.byte_tokens};
    bpe_.emplace(names_, merges, options);
  }

  void encode(std::string_view text, std::vector<int32_t>& tokens) const {
    const size_t begin = tokens.size();
    bpe_->encode(text, tokens);
    if (names_.size() > vocabulary_.names.size()) replace_parts(tokens, begin);
  }

 private:
  std::vector<BpeMerge> all_merges(const SpModel& model, const std::string& where) {
    std::map<float, int32_t, std::greater<>> ranks;
    for (const SpModel::Piece& piece : model.pieces) ranks[piece.score] = 0;
    int32_t next = 0;
    for (auto& [score, rank] : ranks) rank = next++;
    std::vector<BpeMerge> merges;
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      const SpModel::Piece& piece = model.pieces[id];
      if (piece.type != PieceType::normal && piece.type != PieceType::unused) continue;
      constexpr size_t kLongest = 1024;  // cutting takes the square of a piece's length
      require<InputError>(piece.text.size() <= kLongest, where,
                          "piece {} has {} bytes; at most {} can be read", id, piece.text.size(),
                          kLongest);
      if (valid_utf8_prefix(piece.text) < piece.text.size()) continue;  // no text has it
      const size_t before = merges.size();
      add_cuts(piece.text, {.merged = static_cast<int32_t>(id), .rank = ranks[piece.score]},
               merges);
      require<UnsupportedError>(piece.type == PieceType::normal || merges.size() == before, where,
                                "this model has unused pieces of several characters ('{}'), which "
                                "are not read in a BPE model",
                                piece.text);
    }
    return merges;
  }

  void add_cuts(std::string_view text, BpeMerge merge, std::vector<BpeMerge>& merges) {
    const size_t first = utf8_step(text).size;
    for (size_t cut = first; cut < text.size(); cut += utf8_step(text.substr(cut)).size) {
      merge.left = part(text.substr(0, cut));
      merge.right = merge.left < 0 ? -1 : part(text.substr(cut));
      if (merge.right >= 0) merges.push_back(merge);
    }
  }

  /// The id of a piece. A single character without one gets an id behind the vocabulary: it may be
  /// part of a piece, but is unknown alone.
  int32_t part(std::string_view text) {
    if (const auto found = ids_.find(std::string(text)); found != ids_.end()) return found->second;
    if (utf8_step(text).size != text.size()) return -1;
    const auto id = static_cast<int32_t>(names_.size());
    names_.emplace_back(text);
    ids_.emplace(text, id);
    return id;
  }

  void replace_parts(std::vector<int32_t>& tokens, size_t begin) const {
    const std::vector<int32_t> found(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                     tokens.end());
    tokens.resize(begin);
    for (const int32_t id : found) {
      const auto place = static_cast<size_t>(id);
      const bool unknown = id == vocabulary_.unknown || place >= vocabulary_.names.size();
      if (!unknown) {
        tokens.push_back(id);
      } else if (id == vocabulary_.unknown ||
                 !append_byte_tokens(names_[place], vocabulary_.byte_tokens, tokens)) {
        if (tokens.size() == begin || tokens.back() != vocabulary_.unknown)
          tokens.push_back(vocabulary_.unknown);
      }
    }
  }

  Vocabulary vocabulary_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, int32_t> ids_;
  std::optional<Bpe> bpe_;
};

/// The scores of the pieces as SentencePiece uses them.
Unigram scored_unigram(const SpModel& model, const Vocabulary& vocabulary) {
  float least = std::numeric_limits<float>::max(), most = std::numeric_limits<float>::min();
  for (const SpModel::Piece& piece : model.pieces) {
    if (piece.type != PieceType::normal) continue;
    least = std::min(least, piece.score);
    most = std::max(most, piece.score);
  }
  std::vector<std::string> names = vocabulary.names;
  std::vector<double> scores;
  for (size_t id = 0; id < names.size(); ++id) {
    const SpModel::Piece& piece = model.pieces[id];
    // A piece of the user's wins over any way to cut it.
    const float length = static_cast<float>(piece.text.size());
    scores.push_back(piece.type == PieceType::user_defined ? length * most - 0.1 : piece.score);
    if (piece.type == PieceType::unused) names[id] = "";
  }
  constexpr float kPenalty = 10;
  return {names, std::move(scores),
          UnigramOptions{.unknown = vocabulary.unknown,
                         .unknown_score = least - kPenalty,
                         .byte_tokens = vocabulary.byte_tokens,
                         .single_precision = true}};
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(const SpModel& model, const MarkNames& marks, const std::string& where)
      : file_(write_sentencepiece(model)),
        text_prefix_(model.add_dummy_prefix || model.remove_extra_whitespaces ? " " : ""),
        normalizer_(model, where),
        vocabulary_(vocabulary_of(model, where)) {
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      const SpModel::Piece& piece = model.pieces[id];
      pieces_.push_back(replace_all(vocabulary_.names[id], kSpaceMark, " "));
      if (piece.type == PieceType::byte)
        pieces_.back() = std::string(1, static_cast<char>(*named_byte(piece.text)));
      if (piece.type == PieceType::control || piece.type == PieceType::unknown)
        specials_.push_back({static_cast<int32_t>(id), piece.text});
    }
    const auto control = [&](const std::string& name) {
      const auto found = std::ranges::find(specials_, name, &SpecialToken::text);
      return found == specials_.end() || found->id == vocabulary_.unknown ? -1 : found->id;
    };
    bos_ = marks.adds_bos.value_or(true) ? control(model.bos) : -1;
    eos_ = control(marks.eos.empty() ? model.eos : marks.eos);
    pad_ = control(marks.pad.empty() ? model.pad : marks.pad);
    if (model.algorithm == SpModel::Algorithm::unigram) {
      model_.emplace<Unigram>(scored_unigram(model, vocabulary_));
    } else {
      model_.emplace<ScoredBpe>(model, vocabulary_, where);
    }
    set_ends(marks.ends, where);
  }

  std::string_view kind() const override { return "sentencepiece"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  int32_t bos() const override { return bos_; }
  int32_t eos() const override { return eos_; }
  int32_t pad() const override { return pad_; }
  std::vector<SpecialToken> special_tokens() const override { return specials_; }
  std::string_view text_prefix() const override { return text_prefix_; }
  TokenizerFile file() const override { return {"tokenizer.model", file_}; }
  uint64_t rules() const override { return fovea::fingerprint(file_); }

  void append(std::string_view text, std::vector<int32_t>& tokens) const override {
    encode_normal(normalizer_.apply(text), tokens);
  }
  void append_more(std::string_view text, std::vector<int32_t>& tokens) const override {
    encode_normal(normalizer_.apply(text, true), tokens);
  }
  /// The prefix of a text is not put before its second part.
  size_t append_prefix(std::string_view, std::vector<int32_t>&) const override { return 0; }

  std::string_view piece(int32_t token) const override {
    require_id(token);
    return pieces_[static_cast<size_t>(token)];
  }

 private:
  void encode_normal(std::string_view normal, std::vector<int32_t>& tokens) const {
    if (const auto* unigram = std::get_if<Unigram>(&model_)) {
      unigram->encode(normal, tokens);
    } else {
      const auto& bpe = std::get<ScoredBpe>(model_);
      normalizer_.split(
          normal, [&](std::string_view part) { bpe.encode(part, tokens); },
          [&](int32_t id) { tokens.push_back(id); });
    }
  }

  std::string file_, text_prefix_;
  SentencePieceNormalizer normalizer_;
  Vocabulary vocabulary_;
  std::vector<std::string> pieces_;
  std::vector<SpecialToken> specials_;
  int32_t bos_ = -1, eos_ = -1, pad_ = -1;
  std::variant<std::monostate, Unigram, ScoredBpe> model_;
};

}  // namespace

std::shared_ptr<const Tokenizer> sentencepiece_tokenizer(const SentencePieceModel& model,
                                                         const MarkNames& marks,
                                                         const std::string& where) {
  return std::make_shared<const SentencePieceTokenizer>(model, marks, where);
}

}  // namespace fovea
