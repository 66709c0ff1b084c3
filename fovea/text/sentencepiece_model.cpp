// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/sentencepiece_model.h"

#include <bit>

#include "fovea/base/error.h"

namespace fovea {
namespace {

using Model = SentencePieceModel;

// Field numbers of sentencepiece_model.proto.
enum ModelField : uint64_t { kPieces = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5 };
enum PieceField : uint64_t { kText = 1, kScore = 2, kType = 3 };
enum TrainerField : uint64_t {
  kAlgorithm = 3,
  kSuffix = 24,
  kByteFallback = 35,
  kBos = 46,
  kEos = 47,
  kPad = 48
};
enum NormalizerField : uint64_t { kCharsmap = 2, kDummyPrefix = 3, kRemoveExtra = 4, kEscape = 5 };

enum class Wire : uint64_t { varint = 0, eight_bytes = 1, bytes = 2, four_bytes = 5 };

/// One field of a protobuf message.
struct Field {
  uint64_t number = 0;
  Wire wire = Wire::varint;
  uint64_t value = 0;      // of a varint or of four bytes
  std::string_view bytes;  // of a string or message
};

/// Reads the fields of a message one by one.
class Message {
 public:
  Message(std::string_view bytes, const std::string& where) : rest_(bytes), where_(where) {}

  bool next(Field& field) {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    field = {.number = key >> 3, .wire = static_cast<Wire>(key & 7)};
    switch (field.wire) {
      case Wire::varint:
        field.value = varint();
        break;
      case Wire::bytes:
        field.bytes = take(varint());
        break;
      case Wire::eight_bytes:
        take(8);
        break;
      case Wire::four_bytes:
        for (const char c : take(4))
          field.value = field.value >> 8 | static_cast<uint64_t>(static_cast<uint8_t>(c)) << 24;
        break;
      default:
        damaged();
    }
    return true;
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    damaged();
  }
  std::string_view take(uint64_t size) {
    if (size > rest_.size()) damaged();
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }
  [[noreturn]] void damaged() const {
    fail<InputError>(where_,
                     "expected a SentencePiece model; got a file that is none or that is cut off; "
                     "copy it again");
  }

  std::string_view rest_;
  const std::string& where_;
};

Model::Piece read_piece(std::string_view bytes, size_t id, const std::string& where) {
  Model::Piece piece;
  Message message(bytes, where);
  for (Field field; message.next(field);) {
    if (field.number == kText) piece.text = field.bytes;
    if (field.number == kScore)
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    if (field.number == kType) {
      require<InputError>(field.value >= 1 && field.value <= 6, where,
                          "piece {} must be of type 1 to 6; got {}", id, field.value);
      piece.type = static_cast<Model::Type>(field.value);
    }
  }
  return piece;
}

void read_trainer(std::string_view bytes, Model& model, const std::string& where) {
  Message message(bytes, where);
  for (Field field; message.next(field);) {
    if (field.number == kAlgorithm) {
      require<UnsupportedError>(field.value == 1 || field.value == 2, where,
                                "this SentencePiece model is of type {}; unigram (1) and bpe (2) "
                                "are read",
                                field.value);
      model.algorithm = static_cast<Model::Algorithm>(field.value);
    }
    if (field.number == kSuffix) model.whitespace_as_suffix = field.value != 0;
    if (field.number == kByteFallback) model.byte_fallback = field.value != 0;
    if (field.number == kBos) model.bos = field.bytes;
    if (field.number == kEos) model.eos = field.bytes;
    if (field.number == kPad) model.pad = field.bytes;
  }
}

void read_normalizer(std::string_view bytes, Model& model, const std::string& where) {
  Message message(bytes, where);
  for (Field field; message.next(field);) {
    if (field.number == kCharsmap) model.charsmap = field.bytes;
    if (field.number == kDummyPrefix) model.add_dummy_prefix = field.value != 0;
    if (field.number == kRemoveExtra) model.remove_extra_whitespaces = field.value != 0;
    if (field.number == kEscape) model.escape_whitespaces = field.value != 0;
  }
}

void refuse_denormalizer(std::string_view bytes, const std::string& where) {
  Message message(bytes, where);
  for (Field field; message.next(field);) {
    require<UnsupportedError>(field.number != kCharsmap || field.bytes.empty(), where,
                              "this SentencePiece model changes decoded text (denormalizer_spec), "
                              "which is not read");
  }
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(0x80 | (value & 0x7F));
  out += static_cast<char>(value);
}
void put_number(std::string& out, uint64_t field, uint64_t value) {
  put_varint(out, field << 3 | static_cast<uint64_t>(Wire::varint));
  put_varint(out, value);
}
void put_float(std::string& out, uint64_t field, float value) {
  put_varint(out, field << 3 | static_cast<uint64_t>(Wire::four_bytes));
  const auto bits = std::bit_cast<uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(bits >> shift);
}
void put_bytes(std::string& out, uint64_t field, std::string_view bytes) {
  put_varint(out, field << 3 | static_cast<uint64_t>(Wire::bytes));
  put_varint(out, bytes.size());
  out += bytes;
}

}  // namespace

SentencePieceModel read_sentencepiece(std::string_view file, const std::string& where) {
  Model model;
  Message message(file, where);
  for (Field field; message.next(field);) {
    const bool known = field.number <= kDenormalizer && field.wire == Wire::bytes;
    require<InputError>(known || field.number >= 200, where,
                        "expected a SentencePiece model; got a file with the field {}, which it "
                        "does not have",
                        field.number);
    if (field.number == kPieces)
      model.pieces.push_back(read_piece(field.bytes, model.pieces.size(), where));
    if (field.number == kTrainer) read_trainer(field.bytes, model, where);
    if (field.number == kNormalizer) read_normalizer(field.bytes, model, where);
    if (field.number == kDenormalizer) refuse_denormalizer(field.bytes, where);
  }
  return model;
}

std::string write_sentencepiece(const SentencePieceModel& model) {
  std::string out;
  for (const Model::Piece& piece : model.pieces) {
    std::string message;
    put_bytes(message, kText, piece.text);
    put_float(message, kScore, piece.score);
    put_number(message, kType, static_cast<uint64_t>(piece.type));
    put_bytes(out, kPieces, message);
  }
  std::string trainer;
  put_number(trainer, kAlgorithm, static_cast<uint64_t>(model.algorithm));
  put_number(trainer, kSuffix, model.whitespace_as_suffix ? 1 : 0);
  put_number(trainer, kByteFallback, model.byte_fallback ? 1 : 0);
  put_bytes(trainer, kBos, model.bos);
  put_bytes(trainer, kEos, model.eos);
  put_bytes(trainer, kPad, model.pad);
  put_bytes(out, kTrainer, trainer);
  std::string normalizer;
  if (!model.charsmap.empty()) put_bytes(normalizer, kCharsmap, model.charsmap);
  put_number(normalizer, kDummyPrefix, model.add_dummy_prefix ? 1 : 0);
  put_number(normalizer, kRemoveExtra, model.remove_extra_whitespaces ? 1 : 0);
  put_number(normalizer, kEscape, model.escape_whitespaces ? 1 : 0);
  put_bytes(out, kNormalizer, normalizer);
  return out;
}

}  // namespace fovea
