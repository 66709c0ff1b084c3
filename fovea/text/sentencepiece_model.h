// The content of a SentencePiece model file (tokenizer.model), and the file itself.
//
// The file is a protobuf message, ModelProto of sentencepiece_model.proto. The fields that say how
// text becomes tokens are read and written here; how the model was trained is left out.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

/// The names and numbers are those of the file.
struct SentencePieceModel {
  enum class Algorithm { unigram = 1, bpe = 2 };
  enum class Type { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::normal;
  };

  std::vector<Piece> pieces;  ///< by id
  Algorithm algorithm = Algorithm::unigram;
  bool byte_fallback = false;    ///< characters without a piece become bytes; needs all 256 of them
  bool add_dummy_prefix = true;  ///< a space before (whitespace_as_suffix: behind) every text
  bool whitespace_as_suffix = false;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;  ///< pieces hold U+2581 for spaces
  std::string charsmap;            ///< precompiled, "" = none (fovea/text/charsmap.h)
  std::string bos = "<s>", eos = "</s>", pad = "<pad>";  ///< names of the control pieces
};

/// `where` names the file in errors. InputError for a damaged file, UnsupportedError for a model of
/// another algorithm.
SentencePieceModel read_sentencepiece(std::string_view file, const std::string& where);

/// The file of a model; reading it gives the same model.
std::string write_sentencepiece(const SentencePieceModel& model);

}  // namespace fovea
