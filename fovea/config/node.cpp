// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/config/node.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"

namespace fovea {
namespace {

ConfigNode from_yaml(const YAML::Node& yaml, const std::string& name) {
  ConfigNode node;
  node.place = fmt::format("{}:{}", name, yaml.Mark().line + 1);
  switch (yaml.Type()) {
    case YAML::NodeType::Undefined:
    case YAML::NodeType::Null:
      return node;
    case YAML::NodeType::Scalar:
      node.kind = ConfigNode::Kind::scalar;
      node.scalar = yaml.Scalar();
      return node;
    case YAML::NodeType::Sequence:
      node.kind = ConfigNode::Kind::list;
      for (const auto& item : yaml) node.items.push_back(from_yaml(item, name));
      return node;
    case YAML::NodeType::Map:
      node.kind = ConfigNode::Kind::map;
      for (const auto& entry : yaml) {
        if (!entry.first.IsScalar()) {
          fail<ConfigError>(node.place, "keys must be plain names; write 'key: value'");
        }
        const std::string key = entry.first.Scalar();
        const std::string place = fmt::format("{}:{}", name, entry.first.Mark().line + 1);
        if (const ConfigNode* first = node.find(key)) {
          fail<ConfigError>(place, "key '{}' stands twice (first at {}); remove one", key,
                            first->place);
        }
        ConfigNode value = from_yaml(entry.second, name);
        value.place = place;
        node.fields.emplace_back(key, std::move(value));
      }
      return node;
  }
  return node;
}

/// Builds ConfigNodes from parser events, so that duplicate keys are seen.
class JsonBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonBuilder(std::string name) : name_(std::move(name)) {}
  ConfigNode take() { return std::move(root_); }

  bool null() override { return put({}); }
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
    if (stack_.back().find(value) != nullptr) {
      fail<ConfigError>(name_, "key '{}' stands twice; remove one", value);
    }
    stack_.back().fields.emplace_back(value, ConfigNode{});
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    fail<ConfigError>(name_, "expected JSON; at byte {}: {}", position, error.what());
  }

 private:
  static constexpr size_t kMaxDepth =
      200;  // recursion of later visitors stays far from the stack's end

  bool scalar(std::string text) { return put(ConfigNode::make_scalar(std::move(text), name_)); }
  bool open(ConfigNode::Kind kind) {
    if (stack_.size() >= kMaxDepth) {
      fail<ConfigError>(name_, "JSON nested deeper than {} levels; simplify it", kMaxDepth);
    }
    ConfigNode node;
    node.kind = kind;
    node.place = name_;
    stack_.push_back(std::move(node));
    return true;
  }
  bool close() {
    ConfigNode node = std::move(stack_.back());
    stack_.pop_back();
    return put(std::move(node));
  }
  bool put(ConfigNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
    } else if (stack_.back().kind == ConfigNode::Kind::map) {
      stack_.back().fields.back().second = std::move(node);
    } else {
      stack_.back().items.push_back(std::move(node));
    }
    return true;
  }

  std::string name_;
  std::vector<ConfigNode> stack_;
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
  try {
    return from_yaml(YAML::Load(std::string(text)), name);
  } catch (const YAML::Exception& error) {
    fail<ConfigError>(fmt::format("{}:{}", name, error.mark.line + 1), "expected YAML; {}",
                      error.msg);
  }
}

ConfigNode load_yaml(const std::filesystem::path& path) {
  return parse_yaml(read_file(path), path.string());
}

ConfigNode parse_json(std::string_view text, const std::string& name) {
  JsonBuilder builder(name);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
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
      if (next == nullptr) next = &node->fields.emplace_back(key, ConfigNode{}).second;
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
  for (const auto& [key, value] : patch.fields) {
    if (ConfigNode* mine = base.find(key)) {
      merge_into(*mine, value);
    } else {
      base.fields.emplace_back(key, value);
    }
  }
}

}  // namespace fovea
