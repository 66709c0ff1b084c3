// fovea completion: shell completion for bash and zsh, made from the parser's own table of verbs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "cli/options.h"
#include "cli/verbs.h"
#include "fovea/config/reader.h"
#include "fovea/train/recipe.h"

namespace fovea::cli {
namespace {

/// One line of the table: what may stand after "fovea PATH".
struct Place {
  std::string path;  ///< "", "train", "data prepare"
  struct Word {
    std::string text, help;
  };
  std::vector<Word> words;  ///< verbs or options
  bool recipe = false;      ///< takes key=value overrides
};

std::string first_sentence(std::string text) {
  text = text.substr(0, text.find('\n'));
  std::erase_if(text, [](char c) { return c == '\'' || c == '`' || c == '"' || c == '\\'; });
  return text;
}

void collect(const CLI::App& app, const std::string& path, std::vector<Place>& places) {
  Place place{.path = path};
  for (const CLI::App* sub : app.get_subcommands({}))
    place.words.push_back({sub->get_name(), first_sentence(sub->get_description())});
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      place.words.push_back({"--" + name, first_sentence(option->get_description())});
    place.recipe |= option->get_name() == "overrides";
  }
  places.push_back(place);
  for (const CLI::App* sub : app.get_subcommands({}))
    collect(*sub, path.empty() ? sub->get_name() : path + " " + sub->get_name(), places);
}

std::string recipe_keys() {
  std::string keys;
  for (const FieldLine& line : list_fields<Recipe>())
    if (line.key.find(".N.") == std::string::npos) keys += " " + line.key + "=";
  return keys;
}

/// The words before the cursor that name verbs, in variable `at`: "data prepare".
constexpr const char* kBashHead =
    R"(# bash completion of fovea; load it with: source <(fovea completion bash)
_fovea() {
  local cur=${COMP_WORDS[COMP_CWORD]} at="" word words="" keys=""
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$at $word" in
)";
constexpr const char* kBashTail = R"(  esac
  if [[ $cur != -* && -n $keys ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$keys" -- "$cur"; compgen -f -- "$cur")
    [[ ${#COMPREPLY[@]} -gt 1 || ${COMPREPLY[0]} == *= ]] && compopt -o nospace
  elif [[ $cur == -* || -n $verbs ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    compopt -o filenames
  fi
}
complete -F _fovea fovea
)";

std::string bash(const std::vector<Place>& places) {
  std::string out = kBashHead;
  for (const Place& place : places)
    if (!place.path.empty())
      out += fmt::format("      \" {0}\" | \"{0}\") at=\"{0}\" ;;\n", place.path);
  out += "    esac\n  done\n  local verbs=\"\"\n  case \"$at\" in\n";
  for (const Place& place : places) {
    std::string words;
    bool verbs = false;
    for (const Place::Word& word : place.words) {
      words += " " + word.text;
      verbs |= !word.text.starts_with("-");
    }
    out += fmt::format("    \"{}\") words=\"{}\"{}{} ;;\n", place.path, words,
                       verbs ? " verbs=yes" : "",
                       place.recipe ? fmt::format(" keys=\"{}\"", recipe_keys()) : "");
  }
  return out + kBashTail;
}

constexpr const char* kZshHead = R"(#compdef fovea
# zsh completion of fovea; load it with: source <(fovea completion zsh)
_fovea() {
  local at="" word
  local -a verbs options keys
  for word in ${words[2,CURRENT-1]}; do
    case "$at $word" in
)";
constexpr const char* kZshTail = R"(  esac
  if [[ $PREFIX == -* ]]; then
    _describe -o option options
  elif (( ${#verbs} )); then
    _describe verb verbs
  else
    _alternative 'files:file:_files' 'keys:recipe key:compadd -S "" -a keys'
  fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _fovea "$@"; else compdef _fovea fovea; fi
)";

std::string zsh(const std::vector<Place>& places) {
  std::string out = kZshHead;
  for (const Place& place : places)
    if (!place.path.empty())
      out += fmt::format("      \" {0}\" | \"{0}\") at=\"{0}\" ;;\n", place.path);
  out += "    esac\n  done\n  case \"$at\" in\n";
  for (const Place& place : places) {
    std::string verbs, options;
    for (const Place::Word& word : place.words) {
      std::string help = word.help;
      std::ranges::replace(help, ':', ';');  // a colon ends the word of _describe
      (word.text.starts_with("-") ? options : verbs) += fmt::format(" '{}:{}'", word.text, help);
    }
    out += fmt::format("    \"{}\")\n      verbs=({} )\n      options=({} )\n      keys=({} ) ;;\n",
                       place.path, verbs, options, place.recipe ? recipe_keys() : "");
  }
  return out + kZshTail;
}

}  // namespace

Verb add_completion_verb(Command& app, Globals&) {
  auto shell = std::make_shared<std::string>();
  Command* verb =
      app.add_subcommand("completion", "completion for a shell: source <(fovea completion bash)");
  verb->add_option("shell", *shell, "bash or zsh")->required();
  return {verb, [shell, &app] {
            constexpr std::array<std::string_view, 2> names{"bash", "zsh"};
            std::vector<Place> places;
            collect(app.parser(), "", places);
            print(parse_choice<int>("completion", *shell, names) == 0 ? bash(places) : zsh(places));
          }};
}

}  // namespace fovea::cli
