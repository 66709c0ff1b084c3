// Drawing of progress: a bar that redraws itself, or lines now and then.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/progress.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "fovea/base/error.h"
#include "fovea/report/format.h"

namespace fovea {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[2K";
constexpr int64_t kWidestBar = 30;
constexpr int64_t kNarrowestBar = 6;
// Before this much time the speed is noise, and a time left that jumps is worse than none.
constexpr double kSecondsBeforeEstimate = 2;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double fraction_of(const ProgressUpdate& state) {
  return state.total > 0 ? std::clamp(state.done / state.total, 0.0, 1.0) : 0.0;
}

/// A bar of `width` cells in steps of an eighth of a cell.
std::string bar_text(double fraction, int64_t width) {
  static constexpr std::string_view kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<int64_t>(fraction * static_cast<double>(width) * 8 + 1e-9);
  std::string bar;
  for (int64_t i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[eighths % 8];
  const int64_t used = eighths / 8 + (eighths % 8 != 0);
  for (int64_t i = used; i < width; ++i) bar += "░";
  return bar;
}

}  // namespace

int64_t terminal_width(int descriptor, int64_t fallback) {
  struct winsize size {};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return fallback;
  return size.ws_col;
}

Progress::Progress(ProgressOptions options) : options_(std::move(options)) {
  require<UsageError>(options_.mode == ProgressOptions::Mode::quiet || options_.sink, "progress",
                      "expected a sink that takes the output; got none");
  if (!options_.clock) options_.clock = steady_seconds;
  if (!options_.width) options_.width = [] { return int64_t{80}; };
}

Progress::~Progress() {
  try {
    finish();
  } catch (...) {
    // A sink that throws (a closed pipe) must not end the program while it unwinds.
  }
}

double Progress::seconds_left() const {
  const double elapsed = now_ - first_time_;
  const double worked = state_.done - first_done_;
  if (elapsed < kSecondsBeforeEstimate || worked <= 0 || state_.total <= 0) return kNotANumber;
  return std::max(state_.total - state_.done, 0.0) * elapsed / worked;
}

std::string Progress::details() const {
  std::string text;
  if (!std::isnan(state_.loss)) text += fmt::format("  loss {:.3f}", state_.loss);
  if (!std::isnan(state_.tokens_per_second))
    text += fmt::format("  {} tok/s", count_text(state_.tokens_per_second));
  if (const double left = seconds_left(); !std::isnan(left))
    text += fmt::format("  {} left", duration_text(left));
  return text;
}

std::string Progress::bar_line(int64_t width) const {
  const double fraction = fraction_of(state_);
  const std::string label = single_line(state_.label);
  const std::string percent = fmt::format(" {:3.0f} %", std::floor(fraction * 100));
  const std::string rest = details();
  // The last column stays free: writing it makes some terminals wrap.
  const int64_t room = width - 1 - display_width(percent) - display_width(rest) - 1;
  const int64_t bar = std::clamp(room - display_width(label), kNarrowestBar, kWidestBar);
  const std::string shown = shorten(label, std::max<int64_t>(room - bar, 0));
  const std::string gap = shown.empty() ? "" : " ";
  return shorten(shown + gap + bar_text(fraction, bar) + percent + rest, width - 1);
}

std::string Progress::plain_line() const {
  return fmt::format("{:.0f} %  {}{}\n", std::floor(fraction_of(state_) * 100),
                     single_line(state_.label), details());
}

void Progress::update(const ProgressUpdate& state) {
  if (finished_ || options_.mode == ProgressOptions::Mode::quiet) return;
  now_ = options_.clock();
  const bool first = !started_;
  if (first) {
    started_ = true;
    first_time_ = now_;
    first_done_ = state.done;
  }
  state_ = state;
  pending_ = true;
  const bool bar = options_.mode == ProgressOptions::Mode::bar;
  const double interval = bar ? options_.redraw_seconds : options_.line_seconds;
  if (!first && now_ - last_output_ < interval) return;
  last_output_ = now_;
  pending_ = false;
  if (bar) {
    options_.sink(std::string(kClearLine) + bar_line(options_.width()));
    bar_shown_ = true;
  } else {
    options_.sink(plain_line());
  }
}

void Progress::clear_line() {
  if (bar_shown_) options_.sink(kClearLine);
  bar_shown_ = false;
}

void Progress::message(std::string_view text) {
  if (options_.mode != ProgressOptions::Mode::quiet) write_above_bar(std::string(text) + "\n");
}

void Progress::warning(std::string_view text) {
  if (options_.sink) write_above_bar(fmt::format("warning: {}\n", text));
}

void Progress::write_above_bar(const std::string& line) {
  const bool redraw = bar_shown_;
  clear_line();
  options_.sink(line);
  if (redraw) {
    options_.sink(bar_line(options_.width()));
    bar_shown_ = true;
  }
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  clear_line();
  if (options_.mode == ProgressOptions::Mode::lines && pending_) options_.sink(plain_line());
}

}  // namespace fovea
