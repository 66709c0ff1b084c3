// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/jinja/evaluator.h"

#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/text/jinja/access.h"
#include "fovea/text/jinja/builtins.h"
#include "fovea/text/jinja/lexer.h"
#include "fovea/text/jinja/loop.h"
#include "fovea/text/jinja/operators.h"
#include "fovea/text/jinja/scope.h"

namespace fovea::jinja {
namespace {

using Kind = ExpressionKind;

// Expressions, blocks and macro calls that are open at once: a bound on the stack.
constexpr int kDeepestEvaluation = 1500;

enum class Flow { next, break_loop, continue_loop };

class Evaluator {
 public:
  Evaluator(const Rendering& rendering, Budget& budget)
      : rendering_(rendering), budget_(budget), root_(std::make_shared<Scope>(nullptr)) {
    for (const auto& [name, value] : rendering.variables) root_->set(name, value);
  }
  ~Evaluator() {
    root_->clear();
    for (const ScopePtr& scope : scopes_of_macros_) scope->clear();
  }
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  std::string run(const Block& tree) {
    run_block(tree, root_);
    return std::move(out_);
  }

 private:
  /// Counts what is open, by its life.
  class Open {
   public:
    explicit Open(int& depth) : depth_(depth) {
      if (++depth_ > kDeepestEvaluation) {
        --depth_;
        fault("the template calls itself too deeply, or nests too deeply");
      }
    }
    ~Open() { --depth_; }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    int& depth_;
  };

  [[noreturn]] void fail_at(Position at, const Fault& found) const {
    const std::string here = place(rendering_.where, at);
    if (found.type() == Fault::Type::unsupported) fail<UnsupportedError>(here, "{}", found.what());
    fail<InputError>(here, "{}", found.what());
  }

  // Statements.

  Flow run_block(const Block& block, const ScopePtr& scope) {
    for (const Statement& statement : block) {
      Flow flow = Flow::next;
      try {
        const Open open(depth_);
        budget_.step();
        flow = run_statement(statement, scope);
      } catch (const Fault& found) {
        fail_at(statement.at, found);
      }
      if (flow != Flow::next) return flow;
    }
    return Flow::next;
  }

  Flow run_statement(const Statement& statement, const ScopePtr& scope) {
    switch (statement.kind) {
      case StatementKind::text:
        write(statement.text);
        return Flow::next;
      case StatementKind::print:
        out_ += to_text(evaluate(*statement.expressions[0], scope), budget_);
        return Flow::next;
      case StatementKind::if_else:
        return run_if(statement, scope);
      case StatementKind::for_loop:
        return run_for(statement, scope);
      case StatementKind::set:
        assign(statement.targets[0], evaluate(*statement.expressions[0], scope), scope);
        return Flow::next;
      case StatementKind::set_block:
        return run_set_block(statement, scope);
      case StatementKind::filter_block:
        return run_filter_block(statement, scope);
      case StatementKind::with:
        return run_with(statement, scope);
      case StatementKind::macro:
        define_macro(statement, scope);
        return Flow::next;
      case StatementKind::group:
        return run_block(statement.blocks[0], std::make_shared<Scope>(scope));
      case StatementKind::break_loop:
        return Flow::break_loop;
      case StatementKind::continue_loop:
        return Flow::continue_loop;
    }
    return Flow::next;
  }

  void write(const std::string& text) {
    budget_.take(static_cast<int64_t>(text.size()));
    out_ += text;
  }

  Flow run_if(const Statement& statement, const ScopePtr& scope) {
    for (size_t i = 0; i < statement.expressions.size(); ++i)
      if (truth(evaluate(*statement.expressions[i], scope)))
        return run_block(statement.blocks[i], scope);
    const bool has_else = statement.blocks.size() > statement.expressions.size();
    return has_else ? run_block(statement.blocks.back(), scope) : Flow::next;
  }

  Flow run_for(const Statement& statement, const ScopePtr& scope) {
    const Target& target = statement.targets[0];
    Values elements = elements_of(evaluate(*statement.expressions[0], scope), budget_);
    Loop::Keep keep;
    if (const Expression* condition = statement.expressions[1].get(); condition != nullptr) {
      keep = [this, condition, &target, &scope](const Value& element) {
        const auto inner = std::make_shared<Scope>(scope);
        assign(target, element, inner);
        return truth(evaluate(*condition, inner));
      };
    }
    const auto loop = std::make_shared<Loop>(std::move(elements), std::move(keep));
    const Value loop_value(loop);
    // However the loop is left, nothing may ask `keep` again: it refers to this call.
    const std::unique_ptr<Loop, void (*)(Loop*)> end(loop.get(), [](Loop* l) { l->finish(); });
    bool finished = false;  // one iteration, up to its end: jinja2 decides about `else` by that
    while (const std::optional<Value> element = loop->advance()) {
      budget_.step();
      const auto inner = std::make_shared<Scope>(scope);
      inner->set("loop", loop_value);
      assign(target, *element, inner);
      const Flow flow = run_block(statement.blocks[0], inner);
      if (flow == Flow::break_loop) break;
      finished |= flow == Flow::next;
    }
    if (finished || statement.blocks.size() < 2) return Flow::next;
    return run_block(statement.blocks[1], std::make_shared<Scope>(scope));
  }

  /// The text that a block writes, instead of writing it.
  Flow capture(const Block& block, const ScopePtr& scope, std::string& text) {
    std::swap(out_, text);
    const Flow flow = run_block(block, scope);  // after an exception nobody reads out_
    std::swap(out_, text);
    return flow;
  }

  Flow run_set_block(const Statement& statement, const ScopePtr& scope) {
    std::string text;
    const Flow flow = capture(statement.blocks[0], std::make_shared<Scope>(scope), text);
    if (flow != Flow::next) return flow;
    Value value(std::move(text));
    if (!statement.expressions.empty())
      value = filtered(*statement.expressions[0], std::move(value), scope);
    assign(statement.targets[0], std::move(value), scope);
    return Flow::next;
  }

  Flow run_filter_block(const Statement& statement, const ScopePtr& scope) {
    std::string text;
    const auto inner = std::make_shared<Scope>(scope);
    const Flow flow = capture(statement.blocks[0], inner, text);
    if (flow != Flow::next) return flow;
    const Value value = filtered(*statement.expressions[0], Value(std::move(text)), inner);
    if (value.text() == nullptr) fault("the filters of a filter block must give a string");
    write(*value.text());
    return Flow::next;
  }

  Value filtered(const Expression& filters, Value body, const ScopePtr& scope) {
    const auto inner = std::make_shared<Scope>(scope);
    inner->set(kBodyName, std::move(body));
    return evaluate(filters, inner);
  }

  Flow run_with(const Statement& statement, const ScopePtr& scope) {
    const auto inner = std::make_shared<Scope>(scope);
    for (size_t i = 0; i < statement.targets.size(); ++i)
      assign(statement.targets[i], evaluate(*statement.expressions[i], scope), inner);
    return run_block(statement.blocks[0], inner);
  }

  void assign(const Target& target, Value value, const ScopePtr& scope) {
    if (!target.elements.empty()) {
      Values parts = elements_of(value, budget_);
      if (parts.size() != target.elements.size()) {
        fault("expected {} values to unpack; got {}", target.elements.size(), parts.size());
      }
      for (size_t i = 0; i < parts.size(); ++i)
        assign(target.elements[i], std::move(parts[i]), scope);
    } else if (target.attribute.empty()) {
      budget_.take(static_cast<int64_t>(sizeof(Value)));
      scope->set(target.name, std::move(value));
    } else {
      const Value* object = scope->find(target.name, budget_);
      if (object == nullptr || object->name_space() == nullptr)
        fault("'{}' is no namespace: its attributes cannot be set", target.name);
      set_attribute(*object->name_space(), target.attribute, std::move(value), budget_);
    }
  }

  void define_macro(const Statement& statement, const ScopePtr& scope) {
    scopes_of_macros_.push_back(scope);
    scope->set(statement.text,
               make_callable(statement.text, {},
                             [this, &statement, scope](const Arguments& arguments, Budget&) {
                               return call_macro(statement, scope, arguments);
                             }));
  }

  Value call_macro(const Statement& macro, const ScopePtr& scope, const Arguments& arguments) {
    if (arguments.positional.size() > macro.parameters.size())
      fault("the macro '{}' takes at most {} arguments", macro.text, macro.parameters.size());
    for (size_t i = 0; i < arguments.named.size(); ++i) {
      const std::string& name = arguments.named[i].first;
      const auto known =
          std::ranges::find(macro.parameters, name, &std::pair<std::string, ExpressionPtr>::first);
      const auto position = static_cast<size_t>(known - macro.parameters.begin());
      if (known == macro.parameters.end() || position < arguments.positional.size())
        fault("the macro '{}' takes no argument '{}' by name here", macro.text, name);
    }
    const auto inner = std::make_shared<Scope>(scope);
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const auto& [name, absent] = macro.parameters[i];
      inner->set(name, argument_of(arguments, i, name, absent.get(), inner));
    }
    std::string text;
    capture(macro.blocks[0], inner, text);
    return Value(std::move(text));
  }

  Value argument_of(const Arguments& arguments, size_t position, const std::string& name,
                    const Expression* absent, const ScopePtr& scope) {
    if (position < arguments.positional.size()) return arguments.positional[position];
    for (const auto& [given, value] : arguments.named)
      if (given == name) return value;
    if (absent != nullptr) return evaluate(*absent, scope);
    return Value::undefined(fmt::format("parameter '{}' was not provided", name));
  }

  // Expressions.

  Value evaluate(const Expression& expression, const ScopePtr& scope) {
    try {
      const Open open(depth_);
      budget_.step();
      return evaluate_kind(expression, scope);
    } catch (const Fault& found) {
      fail_at(expression.at, found);
    }
  }

  Value part(const Expression& expression, size_t index, const ScopePtr& scope) {
    return evaluate(*expression.parts[index], scope);
  }

  Value evaluate_kind(const Expression& expression, const ScopePtr& scope) {
    switch (expression.kind) {
      case Kind::constant:
        return expression.constant;
      case Kind::name:
        return lookup(expression.name, scope);
      case Kind::list:
        return make_sequence(all_parts(expression, 0, scope), budget_);
      case Kind::tuple:
        return make_sequence(all_parts(expression, 0, scope), budget_, Sequence::Flavour::tuple);
      case Kind::dict:
        return evaluate_dict(expression, scope);
      case Kind::attribute:
        return get_attribute(part(expression, 0, scope), expression.name, budget_);
      case Kind::item:
        return get_item(part(expression, 0, scope), part(expression, 1, scope), budget_);
      case Kind::slice:
        return evaluate_slice(expression, scope);
      case Kind::call:
        return evaluate_call(expression, scope);
      case Kind::filter:
        return evaluate_filter(expression, scope);
      case Kind::test:
        return evaluate_test(expression, scope);
      case Kind::concatenate:
        return evaluate_concatenate(expression, scope);
      case Kind::compare:
        return evaluate_compare(expression, scope);
      default:
        return evaluate_operator(expression, scope);
    }
  }

  Value evaluate_operator(const Expression& expression, const ScopePtr& scope) {
    Value left = part(expression, 0, scope);
    switch (expression.kind) {
      case Kind::logical_not:
        return !truth(left);
      case Kind::logical_and:
        return truth(left) ? part(expression, 1, scope) : left;
      case Kind::logical_or:
        return truth(left) ? left : part(expression, 1, scope);
      case Kind::negative:
        return negative(left);
      case Kind::positive:
        return positive(left);
      case Kind::conditional:
        if (truth(left)) return part(expression, 1, scope);
        if (expression.parts[2] != nullptr) return part(expression, 2, scope);
        return Value::undefined("the condition is false and there is no else");
      default:
        return arithmetic(expression.name, left, part(expression, 1, scope), budget_);
    }
  }

  Value lookup(const std::string& name, const ScopePtr& scope) {
    const Value* found = scope->find(name, budget_);
    return found == nullptr ? global_function(name, rendering_.now) : *found;
  }

  Values all_parts(const Expression& expression, size_t first, const ScopePtr& scope) {
    Values values;
    for (size_t i = first; i < expression.parts.size(); ++i)
      values.push_back(part(expression, i, scope));
    return values;
  }

  Arguments arguments_of(const Expression& expression, const ScopePtr& scope) {
    Arguments arguments{all_parts(expression, 1, scope), {}};
    for (const auto& [name, value] : expression.named)
      arguments.named.emplace_back(name, evaluate(*value, scope));
    return arguments;
  }

  Value evaluate_dict(const Expression& expression, const ScopePtr& scope) {
    std::vector<std::pair<Value, Value>> entries;
    for (size_t i = 0; i < expression.parts.size(); i += 2) {
      Value key = part(expression, i, scope);
      entries.emplace_back(std::move(key), part(expression, i + 1, scope));
    }
    return make_dict(std::move(entries), budget_);
  }

  Value evaluate_slice(const Expression& expression, const ScopePtr& scope) {
    const Value object = part(expression, 0, scope);
    Value bounds[3] = {None{}, None{}, None{}};
    for (size_t i = 0; i < 3; ++i)
      if (expression.parts[i + 1] != nullptr) bounds[i] = part(expression, i + 1, scope);
    return get_slice(object, bounds[0], bounds[1], bounds[2], budget_);
  }

  Value evaluate_call(const Expression& expression, const ScopePtr& scope) {
    const Value function = part(expression, 0, scope);
    const Arguments arguments = arguments_of(expression, scope);
    if (function.is_undefined()) fail_undefined(function);
    if (function.callable() == nullptr) fault("'{}' object is not callable", type_name(function));
    return function.callable()->call(arguments, budget_);
  }

  Value evaluate_filter(const Expression& expression, const ScopePtr& scope) {
    const Value input = part(expression, 0, scope);
    return apply_filter(expression.name, input, arguments_of(expression, scope), budget_);
  }

  Value evaluate_test(const Expression& expression, const ScopePtr& scope) {
    const Value input = part(expression, 0, scope);
    return apply_test(expression.name, input, arguments_of(expression, scope), budget_);
  }

  Value evaluate_concatenate(const Expression& expression, const ScopePtr& scope) {
    std::string text;
    for (size_t i = 0; i < expression.parts.size(); ++i)
      text += to_text(part(expression, i, scope), budget_);
    return Value(std::move(text));
  }

  Value evaluate_compare(const Expression& expression, const ScopePtr& scope) {
    Value left = part(expression, 0, scope);
    for (size_t i = 0; i < expression.operators.size(); ++i) {
      Value right = part(expression, i + 1, scope);
      if (!comparison(expression.operators[i], left, right, budget_)) return false;
      left = std::move(right);
    }
    return true;
  }

  const Rendering& rendering_;
  Budget& budget_;
  ScopePtr root_;
  std::vector<ScopePtr> scopes_of_macros_;
  std::string out_;
  int depth_ = 0;
};

}  // namespace

std::string render(const Block& tree, const Rendering& rendering, Budget& budget) {
  try {
    return Evaluator(rendering, budget).run(tree);
  } catch (const Refusal& refusal) {
    fail<InputError>(rendering.where, "the template refuses this conversation: {}", refusal.what());
  }
}

}  // namespace fovea::jinja
