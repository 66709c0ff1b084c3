// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/config/node.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/json_depth.h"

namespace fovea {
namespace {

// Recursion here and in later visitors stays far from the stack's end.
constexpr size_t kMaxDepth = kMostJsonLevels;
// No recipe has as many values; aliases of aliases can. The index of the largest sharded models
// has 100,000 entries.
constexpr size_t kMaxNodes = 200'000, kMaxJsonNodes = 1'000'000;
constexpr ReadLimit kLargestRecipe{"a recipe", 16 << 20};

/// Copies a YAML tree. Aliases are expanded, so a tree that contains itself shows as one without
/// end.
class YamlBuilder {
 public:
  explicit YamlBuilder(const std::string& name) : name_(name) {}

  ConfigNode build(const YAML::Node& yaml, size_t depth = 0) {
    ConfigNode node;
    node.place = place(yaml);
    require<ConfigError>(depth < kMaxDepth, node.place,
                         "nested deeper than {} levels (an alias of itself?); simplify it",
                         kMaxDepth);
    require<ConfigError>(++nodes_ <= kMaxNodes, node.place,
                         "more than {} values once aliases are expanded; write fewer aliases",
                         kMaxNodes);
    if (yaml.IsScalar()) {
      node.kind = ConfigNode::Kind::scalar;
      node.scalar = yaml.Scalar();
    } else if (yaml.IsSequence()) {
      node.kind = ConfigNode::Kind::list;
      for (const auto& item : yaml) node.items.push_back(build(item, depth + 1));
    } else if (yaml.IsMap()) {
      node.kind = ConfigNode::Kind::map;
      std::unordered_map<std::string, size_t> keys;
      for (const auto& entry : yaml) {
        check_key(node, keys, entry.first);
        ConfigNode built = build(entry.second, depth + 1);
        built.place = place(entry.first);
        node.fields.push_back({entry.first.Scalar(), std::move(built)});
      }
    }
    return node;
  }

 private:
  /// `keys`: where each key of the map stands in its fields.
  void check_key(const ConfigNode& node, std::unordered_map<std::string, size_t>& keys,
                 const YAML::Node& name) const {
    require<ConfigError>(name.IsScalar(), place(name),
                         "keys must be plain names; write 'key: value'");
    const auto [found, fresh] = keys.emplace(name.Scalar(), node.fields.size());
    if (!fresh) {
      fail<ConfigError>(place(name), "key '{}' stands twice (first at {}); remove one",
                        name.Scalar(), node.fields[found->second].second.place);
    }
  }
  std::string place(const YAML::Node& yaml) const {
    return fmt::format("{}:{}", name_, yaml.Mark().line + 1);
  }

  const std::string& name_;
  size_t nodes_ = 0;
};

/// Notes where documents begin.
struct DocumentStarts : YAML::EventHandler {
  std::vector<int> lines;

  void OnDocumentStart(const YAML::Mark& mark) override { lines.push_back(mark.line); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

/// ConfigError for a second document. At a ',' outside of brackets yaml-cpp begins one document
/// after the other without end: so YAML::LoadAll() must not see such a text.
void require_one_document(const std::string& text, const std::string& name) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  while (starts.lines.size() < 2 && parser.HandleNextDocument(starts)) {
  }
  if (starts.lines.size() < 2) return;
  fail<ConfigError>(fmt::format("{}:{}", name, starts.lines[1] + 1),
                    "expected one document; a second one begins here: remove the '---' that begins "
                    "it, or the ',' outside of brackets");
}

void require_utf8(std::string_view text, const std::string& name) {
  try {
    (void)nlohmann::json(text).dump();  // the JSON writer validates what it writes
  } catch (const nlohmann::json::type_error& error) {
    fail<ConfigError>(name, "expected UTF-8 text; {}; save the file as UTF-8", error.what());
  }
}

/// Builds ConfigNodes from parser events, so that duplicate keys are seen.
class JsonBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonBuilder(std::string name) : name_(std::move(name)) {}
  ConfigNode finish() { return std::move(root_); }

  bool null() override {
    ConfigNode node;
    node.place = name_;
    return add(std::move(node));
  }
  bool boolean(bool value) override { return scalar(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return scalar(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return scalar(text); }
  bool string(string_t& value) override { return scalar(value); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(ConfigNode::Kind::map); }
  bool start_array(std::size_t) override { return open(ConfigNode::Kind::list); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    if (!stack_.back().keys.insert(value).second) {
      fail<ConfigError>(name_, "key '{}' stands twice; remove one", value);
    }
    stack_.back().node.fields.push_back({value, {}});
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    fail<ConfigError>(name_, "expected JSON; at byte {}: {}", position, error.what());
  }

 private:
  bool scalar(std::string text) { return add(ConfigNode::make_scalar(std::move(text), name_)); }
  bool open(ConfigNode::Kind kind) {
    if (stack_.size() >= kMaxDepth) {
      fail<ConfigError>(name_, "JSON nested deeper than {} levels; simplify it", kMaxDepth);
    }
    stack_.emplace_back();
    stack_.back().node.kind = kind;
    stack_.back().node.place = name_;
    return true;
  }
  bool close() {
    ConfigNode node = std::move(stack_.back().node);
    stack_.pop_back();
    return add(std::move(node));
  }
  bool add(ConfigNode node) {
    if (++nodes_ > kMaxJsonNodes) {
      fail<ConfigError>(name_, "more than {} values; such a file is no config", kMaxJsonNodes);
    }
    if (stack_.empty()) {
      root_ = std::move(node);
      return true;
    }
    ConfigNode& open = stack_.back().node;
    if (open.kind == ConfigNode::Kind::map) {
      open.fields.back().second = std::move(node);
    } else {
      open.items.push_back(std::move(node));
    }
    return true;
  }

  struct Open {
    ConfigNode node;
    std::unordered_set<std::string> keys;  // of a map
  };

  std::string name_;
  std::vector<Open> stack_;
  size_t nodes_ = 0;
  ConfigNode root_;
};

}  // namespace

const ConfigNode* ConfigNode::find(std::string_view key) const {
  for (const auto& [name, node] : fields) {
    if (name == key) return &node;
  }
  return nullptr;
}

ConfigNode* ConfigNode::find(std::string_view key) {
  return const_cast<ConfigNode*>(std::as_const(*this).find(key));
}

ConfigNode ConfigNode::make_scalar(std::string text, std::string place) {
  ConfigNode node;
  node.kind = Kind::scalar;
  node.scalar = std::move(text);
  node.place = std::move(place);
  return node;
}

ConfigNode ConfigNode::make_map(std::string place) {
  ConfigNode node;
  node.kind = Kind::map;
  node.place = std::move(place);
  return node;
}

ConfigNode parse_yaml(std::string_view text, const std::string& name) {
  require_utf8(text, name);
  try {
    const std::string whole(text);
    require_one_document(whole, name);
    const std::vector<YAML::Node> documents = YAML::LoadAll(whole);
    if (documents.empty()) return {.place = name};
    return YamlBuilder(name).build(documents.front());
  } catch (const YAML::Exception& error) {
    fail<ConfigError>(fmt::format("{}:{}", name, error.mark.line + 1), "expected YAML; {}",
                      error.msg);
  }
}

ConfigNode load_yaml(const std::filesystem::path& path) {
  return parse_yaml(read_file(path, kLargestRecipe), path.string());
}

ConfigNode parse_json(std::string_view text, const std::string& name) {
  JsonBuilder builder(name);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.finish();
}

void set_override(ConfigNode& root, std::string_view assignment) {
  const size_t equals = assignment.find('=');
  require<UsageError>(equals != std::string_view::npos && equals > 0, "override",
                      "expected key=value, for example model.layers=8; got '{}'", assignment);
  std::string_view path = assignment.substr(0, equals);
  const std::string place = fmt::format("override '{}'", assignment);
  ConfigNode* node = &root;
  while (true) {
    const size_t dot = path.find('.');
    const std::string key(path.substr(0, dot));
    require<UsageError>(!key.empty(), place, "expected names between the dots");
    ConfigNode* next = nullptr;
    if (node->kind == ConfigNode::Kind::list) {
      size_t index = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
      if (error != std::errc{} || end != key.data() + key.size() || index >= node->items.size()) {
        fail<UsageError>(place, "expected an index below {}; got '{}'", node->items.size(), key);
      }
      next = &node->items[index];
    } else {
      if (node->kind != ConfigNode::Kind::map) *node = ConfigNode::make_map(place);
      next = node->find(key);
      if (next == nullptr) {
        node->fields.push_back({key, {}});
        next = &node->fields.back().second;
      }
    }
    node = next;
    if (dot == std::string_view::npos) break;
    path.remove_prefix(dot + 1);
  }
  *node = parse_yaml(assignment.substr(equals + 1), place);
  node->place = place;
}

void merge_into(ConfigNode& base, const ConfigNode& patch) {
  if (base.kind != ConfigNode::Kind::map || patch.kind != ConfigNode::Kind::map) {
    base = patch;
    return;
  }
  std::unordered_map<std::string, size_t> mine;  // a look-up of each key alone would be quadratic
  for (size_t i = 0; i < base.fields.size(); ++i) mine.emplace(base.fields[i].first, i);
  for (const auto& [key, value] : patch.fields) {
    const auto [found, fresh] = mine.emplace(key, base.fields.size());
    if (fresh) {
      base.fields.push_back({key, value});
    } else {
      merge_into(base.fields[found->second].second, value);
    }
  }
}

}  // namespace fovea
