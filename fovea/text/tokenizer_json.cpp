// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/text/byte_names.h"
#include "fovea/text/word_splitter.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

/// A map in the order of the ids; Json's own objects look through all keys at every insertion.
std::string vocabulary_text(const std::vector<std::string>& pieces) {
  std::string text = "{";
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].empty()) continue;
    text += fmt::format("{}\n      {}: {}", text.size() == 1 ? "" : ",",
                        Json(name_of_bytes(pieces[id])).dump(), id);
  }
  return text + "\n    }";
}

Json added_tokens(const std::vector<SpecialToken>& specials) {
  Json added = Json::array();
  for (const SpecialToken& special : specials) {
    added.push_back({{"id", special.id},
                     {"content", special.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return added;
}

Json byte_level(bool split_words) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", false},
          {"use_regex", split_words}};
}

// GPT-2's pattern is part of ByteLevel; others stand before it.
Json pre_tokenizer(const std::string& pattern) {
  if (pattern.empty() || pattern == kGpt2Pattern) return byte_level(!pattern.empty());
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false)})}};
}

Json post_processor(const std::optional<SpecialToken>& begin) {
  if (!begin) return byte_level(false);
  const Json mark = {{"SpecialToken", {{"id", begin->text}, {"type_id", 0}}}};
  const Json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json second = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
  Json processor = {{"type", "TemplateProcessing"},
                    {"single", Json::array({mark, first})},
                    {"pair", Json::array({mark, first, second})}};
  processor["special_tokens"][begin->text] = {{"id", begin->text},
                                              {"ids", Json::array({begin->id})},
                                              {"tokens", Json::array({begin->text})}};
  return processor;
}

}  // namespace

std::string byte_level_json(const ByteLevelFile& file) {
  Json merges = Json::array();
  for (const auto& [left, right] : file.merges)
    merges.push_back(name_of_bytes(left) + " " + name_of_bytes(right));
  constexpr const char* kHere = "vocabulary";  // put in as text below
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"ignore_merges", file.whole_words},
                      {"vocab", kHere},
                      {"merges", std::move(merges)}};
  const Json root = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added_tokens(file.specials)},
                     {"normalizer", file.normal_form ? Json{{"type", "NFC"}} : Json(nullptr)},
                     {"pre_tokenizer", pre_tokenizer(file.pattern)},
                     {"post_processor", post_processor(file.begin)},
                     {"decoder", byte_level(!file.pattern.empty())},
                     {"model", model}};
  std::string text = root.dump(2) + "\n";
  const std::string here = fmt::format("\"vocab\": \"{}\"", kHere);
  text.replace(text.find(here), here.size(), "\"vocab\": " + vocabulary_text(file.pieces));
  return text;
}

size_t safe_cut(std::string_view text) {
  const auto visible = [&](size_t i) { return text[i] > 0x20 && text[i] < 0x7F; };
  const auto letter = [&](size_t i) {
    return (text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z');
  };
  for (size_t cut = text.size() > 3 ? text.size() - 2 : 0; cut > 1; --cut) {
    if (text[cut - 1] == '\n' && visible(cut - 2) && visible(cut)) return cut;
    if (text[cut] == ' ' && letter(cut - 1) && letter(cut + 1)) return cut;
  }
  return 0;
}

}  // namespace fovea
