// Live progress of long work: one bar on a terminal, plain lines elsewhere, only warnings when
// quiet.
//
// The library prints nothing: the caller gives a sink that takes bytes, and a clock. Not
// thread-safe; use one thread.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "fovea/report/compare_result.h"

namespace fovea {

/// Columns of the terminal behind a file descriptor; `fallback` where there is none.
int64_t terminal_width(int descriptor, int64_t fallback = 80);

struct ProgressOptions {
  enum class Mode { quiet, lines, bar };
  Mode mode = Mode::quiet;
  std::function<void(std::string_view)> sink;  // receives bytes; required unless quiet
  std::function<double()> clock;               // seconds, monotonic; default: steady clock
  std::function<int64_t()> width;  // columns; default: 80. Asked at every redraw, so resizing works
  double redraw_seconds = 0.1;     // bar: at most one redraw in this time
  double line_seconds = 10;        // lines: one line in this time
};

/// Where the work stands. `done` and `total` are in any one unit (tokens of all runs, say).
struct ProgressUpdate {
  std::string label;  // "focal, seed 2 (5 of 12)"
  double done = 0;
  double total = 0;
  double loss = kNotANumber;               // left out while NaN
  double tokens_per_second = kNotANumber;  // left out while NaN
};

/// The time left is estimated from the work done since the first update, so work that an earlier
/// process did (a resume) counts as done but not as fast.
class Progress {
 public:
  explicit Progress(ProgressOptions options);
  /// Ends the line, as finish().
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(const ProgressUpdate& state);
  /// A line of its own, above the bar.
  void message(std::string_view text);
  /// The same with "warning: " before it, also when quiet (if there is a sink).
  void warning(std::string_view text);
  /// Removes the bar (a terminal is left clean) or writes the last line. Idempotent.
  void finish();

 private:
  std::string bar_line(int64_t width) const;
  std::string plain_line() const;
  std::string details() const;
  double seconds_left() const;
  void clear_line();
  void write_above_bar(const std::string& line);

  ProgressOptions options_;
  ProgressUpdate state_;
  double first_time_ = 0, first_done_ = 0, last_output_ = 0, now_ = 0;
  bool started_ = false, bar_shown_ = false, pending_ = false, finished_ = false;
};

}  // namespace fovea
