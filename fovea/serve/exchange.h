// Exchange: a request that the engine answers, while its events come in.
//
// Events arrive on the engine's thread and wait in an inbox; everything else runs on the thread of
// the server, which collects them when it is woken.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fovea/serve/http.h"

namespace fovea::serve {

/// Wakes the server's thread; from any thread, also when the exchange is gone.
using Wake = std::function<void()>;

class Exchange {
 public:
  Exchange() = default;
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Takes the events that came. Throws Problem where the request failed.
  virtual void collect() = 0;
  /// Whether all events came.
  virtual bool finished() const = 0;
  /// Whether the answer is a stream of events; else it is response(), once finished.
  virtual bool streams() const { return false; }
  /// The new text of a stream, once the first event came.
  virtual std::string take_text() { return ""; }
  virtual HttpResponse response() = 0;
  /// The client is gone, or too slow: the engine ends the request within one step.
  virtual void cancel() = 0;
};

/// Events that wait between the engine's thread and the server's.
template <class Event>
class Inbox {
 public:
  explicit Inbox(Wake wake) : wake_(std::move(wake)) {}

  /// False where the reader is too far behind: the event is lost. Events of no bytes always come.
  bool push(Event event, size_t bytes) {
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      if (bytes > 0 && bytes_ > kMostBytes) return false;
      first = events_.empty();
      events_.push_back(std::move(event));
      bytes_ += bytes;
    }
    if (first) wake_();
    return true;
  }
  std::vector<Event> take() {
    const std::lock_guard lock(mutex_);
    bytes_ = 0;
    return std::exchange(events_, {});
  }

 private:
  /// A stream that its client does not read may take so much: some thousands of tokens.
  static constexpr size_t kMostBytes = 4 << 20;

  Wake wake_;
  std::mutex mutex_;
  std::vector<Event> events_;
  size_t bytes_ = 0;
};

}  // namespace fovea::serve
