// fovea chat: a conversation with a model in the terminal, or line by line through pipes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/options.h"
#include "cli/verbs.h"
#include "fovea/infer/chat.h"

namespace fovea::cli {
namespace {

constexpr const char* kCommands =
    "  /help            this list\n"
    "  /new             forget the conversation\n"
    "  /undo            take the last turn and its answer back\n"
    "  /set KEY=VALUE   change a sampling key, for example /set temperature=0.5\n"
    "  /show            the sampling keys and how full the context is\n"
    "  /exit            leave (so does Ctrl-D)\n"
    "  Ctrl-C ends the answer. A line that ends in \\ goes on in the next one.\n";

std::atomic<bool> ctrl_c_pressed{false};
static_assert(std::atomic<bool>::is_always_lock_free);

/// While it lives, Ctrl-C sets `ctrl_c_pressed`, and a read from the terminal returns.
class CtrlC {
 public:
  CtrlC() {
    struct sigaction action = {};
    action.sa_handler = [](int) { ctrl_c_pressed = true; };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before_);
  }
  ~CtrlC() { sigaction(SIGINT, &before_, nullptr); }
  CtrlC(const CtrlC&) = delete;
  CtrlC& operator=(const CtrlC&) = delete;

 private:
  struct sigaction before_ = {};
};

/// Lines of stdin; a partial line is kept over Ctrl-C.
class Lines {
 public:
  enum class Got { line, end, interrupted };

  Got next(std::string& line) {
    for (;;) {
      const size_t newline = buffer_.find('\n');
      if (newline != std::string::npos || (at_end_ && !buffer_.empty())) {
        line = buffer_.substr(0, newline);
        buffer_.erase(0, newline == std::string::npos ? newline : newline + 1);
        if (line.ends_with('\r')) line.pop_back();
        return Got::line;
      }
      if (at_end_) return Got::end;
      char bytes[4096];
      const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (count < 0 && errno == EINTR) {
        if (ctrl_c_pressed) return Got::interrupted;
        continue;
      }
      if (count < 0) fail<IoError>("stdin", "cannot read: {}", std::strerror(errno));
      at_end_ = count == 0;
      buffer_.append(bytes, static_cast<size_t>(count));
    }
  }

 private:
  std::string buffer_;
  bool at_end_ = false;
};

struct ChatVerbOptions {
  std::string model;
  ModelOptions how;
  FieldOptions fields;
};

/// The loop: reads turns and commands, prints answers.
class Conversation {
 public:
  Conversation(const LoadedModel& loaded, const ChatOptions& options, const ContextOptions& context,
               GenerateOptions generate, const Globals& globals)
      : chat_(loaded.model, *loaded.tokenizer, options, context, loaded.chat_template),
        generate_(std::move(generate)),
        globals_(globals),
        log_(stderr_progress(globals)),
        terminal_(::isatty(STDIN_FILENO) != 0 && !globals.json) {}

  void run() {
    const CtrlC ctrl_c;
    if (terminal_)
      log_.message(
          fmt::format("Write, and the model answers (--format {}). /help lists the commands.",
                      enum_names(ChatFormat{})[static_cast<size_t>(chat_.format())]));
    for (std::string turn; read_turn(turn);) {
      try {
        if (!turn.starts_with('/')) {
          answer(turn);
        } else if (!command(turn)) {
          return;
        }
      } catch (const IoError&) {
        throw;  // nobody reads the answers
      } catch (const Error& error) {
        complain(error);  // the conversation is as before this turn
      }
    }
  }

 private:
  /// Lines joined by a final backslash; false at the end of the input.
  bool read_turn(std::string& turn) {
    for (turn.clear();;) {
      if (terminal_) print(turn.empty() ? "> " : ". ");
      std::string line;
      ctrl_c_pressed = false;
      const Lines::Got got = lines_.next(line);
      if (got == Lines::Got::interrupted) {
        if (terminal_) print("\n");
        log_.message("/exit or Ctrl-D leaves");
        turn.clear();
        continue;
      }
      if (got == Lines::Got::end) {
        if (terminal_) print("\n");
        return !turn.empty();
      }
      turn += line;
      if (!turn.ends_with('\\')) {
        if (!turn.empty()) return true;
        continue;
      }
      turn.back() = '\n';
    }
  }

  void answer(const std::string& turn) {
    ctrl_c_pressed = false;
    const TextStream stream = globals_.json ? TextStream{} : TextStream{print};
    const GenerateResult r = chat_.say(turn, generate_, stream, &ctrl_c_pressed);
    // Another draw for the next turn, and the same conversation from the same seed.
    ++generate_.seed;
    if (globals_.json) {
      nlohmann::ordered_json json{{"turn", turn}};
      json.update(r.to_json());
      print(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
      return;
    }
    print("\n");
    log_.message(fmt::format("[{} tokens, {:.1f} tokens/s, {}; {} of {} positions]", r.tokens,
                             r.tokens_per_second(), enum_name(r.reason), filled(),
                             chat_.session().context()));
    if (r.reason == FinishReason::context)
      log_.message("the context is full: /new, /undo, or start with --when-full slide");
  }

  /// False for /exit.
  bool command(const std::string& text) {
    const size_t space = std::min(text.find(' '), text.size());
    const std::string name = text.substr(0, space),
                      rest = text.substr(std::min(space + 1, text.size()));
    if (name == "/exit" || name == "/quit") return false;
    if (name == "/help") {
      tell(kCommands);
    } else if (name == "/new") {
      chat_.reset();
    } else if (name == "/undo") {
      if (!chat_.undo()) tell("nothing to take back\n");
    } else if (name == "/set") {
      GenerateOptions changed = generate_;
      ConfigNode node = ConfigNode::make_map("/set");
      set_override(node, rest);
      read_fields(node, changed);
      changed.check();
      generate_ = changed;
    } else if (name == "/show") {
      tell(fields_to_yaml(generate_) +
           fmt::format("{} of {} positions\n", filled(), chat_.session().context()));
    } else {
      const std::vector<std::string> known{"/help", "/new", "/undo", "/set", "/show", "/exit"};
      fail<InputError>("chat", "unknown command '{}'{}; /help lists them", name,
                       did_you_mean(name, known));
    }
    return true;
  }

  size_t filled() const { return chat_.session().tokens().size(); }
  // Asked for, so --quiet does not silence it.
  void tell(const std::string& text) { write_stderr(text); }
  void complain(const Error& error) { write_stderr(fmt::format("fovea: {}\n", error.what())); }

  Chat chat_;
  GenerateOptions generate_;
  const Globals& globals_;
  Progress log_;
  bool terminal_;
  Lines lines_;
};

void run(const ChatVerbOptions& options, const Globals& globals) {
  GenerateOptions generate;
  ChatOptions chat;
  ContextOptions context{.when_full = WhenFull::slide};
  options.fields.apply(generate);
  options.fields.apply(chat);
  options.fields.apply(context);
  generate.check();
  const LoadedModel loaded = open_model(options.model, options.how);
  Conversation(loaded, chat, context, generate, globals).run();
}

}  // namespace

Verb add_chat_verb(Command& app, Globals& globals) {
  auto options = std::make_shared<ChatVerbOptions>();
  Command* verb =
      app.add_subcommand("chat", "talk with a model; the cache stays between the turns");
  verb->add_option("model", options->model, "run folder, checkpoint, model folder or .gguf file")
      ->required();
  options->fields.add<ChatOptions>(*verb);
  options->fields.add<GenerateOptions>(*verb);
  options->fields.add<ContextOptions>(*verb);
  add_model_options(*verb, options->how);
  add_global_options(*verb, globals);
  verb->footer(
      fmt::format("\nWhile it runs:\n{}\nA full context slides here unless --when-full says "
                  "otherwise. Each line of a pipe is a turn;\n--json prints one line of JSON an "
                  "answer.\n",
                  kCommands));
  return {.parser = verb,
          .run = [options, &globals] { run(*options, globals); },
          .memory_remedy = "lower --context, or take --dtype bfloat16 or a smaller model"};
}

}  // namespace fovea::cli
