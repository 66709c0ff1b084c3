// TFRecord framing and the few protobuf fields that scalars and texts need.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "fovea/base/paths.h"

namespace fovea {
namespace {

constexpr size_t kBufferBytes = 64 * 1024;

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = value;
  }
  return table;
}

/// A protobuf message under construction. Field numbers are those of TensorBoard's event.proto,
/// summary.proto, tensor.proto.
class Message {
 public:
  Message& number(uint32_t field, uint64_t value) {
    key(field, 0);
    varint(value);
    return *this;
  }
  Message& real(uint32_t field, double value) {
    key(field, 1);
    raw(std::bit_cast<uint64_t>(value));
    return *this;
  }
  Message& single(uint32_t field, float value) {
    key(field, 5);
    raw(std::bit_cast<uint32_t>(value));
    return *this;
  }
  Message& bytes(uint32_t field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(uint32_t field, const Message& value) { return bytes(field, value.bytes_); }
  const std::string& str() const { return bytes_; }

 private:
  void key(uint32_t field, uint32_t wire) { varint(field << 3 | wire); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7F) | 0x80);
    bytes_ += static_cast<char>(value);
  }
  template <class T>
  void raw(T value) {
    static_assert(std::endian::native == std::endian::little);
    char data[sizeof value];
    std::memcpy(data, &value, sizeof value);
    bytes_.append(data, sizeof value);
  }

  std::string bytes_;
};

// Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log.
Message event(int64_t step, double wall_time) {
  Message out;
  out.real(1, wall_time).number(2, static_cast<uint64_t>(step));
  return out;
}

// Summary: 1 value. Value: 1 tag, 2 simple_value, 8 tensor, 9 metadata.
Message summary_event(int64_t step, double wall_time, const Message& value) {
  return event(step, wall_time).message(5, Message().message(1, value));
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// A name that no earlier file has: the second of the start, the process, and a counter.
std::filesystem::path new_path(const std::filesystem::path& folder) {
  make_folders(folder);
  char host[256] = "localhost";
  if (::gethostname(host, sizeof host - 1) != 0) std::strcpy(host, "localhost");
  const auto seconds = static_cast<int64_t>(now_seconds());
  for (int64_t counter = 0;; ++counter) {
    auto path = folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}", seconds, host,
                                     ::getpid(), counter);
    if (!path_exists(path)) return path;
  }
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = crc_table();
  uint32_t crc = ~0u;
  for (const char c : bytes)
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, int64_t first_step)
    : path_(new_path(folder)), file_(path_) {
  const double now = now_seconds();
  append_record(event(0, now).bytes(3, "brain.Event:2").str());
  if (first_step > 0) {
    // SessionLog: 1 status, START = 1. Readers drop earlier events of this step and later.
    append_record(event(first_step, now).message(7, Message().number(1, 1)).str());
  }
  flush();
}

TensorBoardWriter::~TensorBoardWriter() {
  try {
    flush();
  } catch (...) {
    // Documented: whoever cares calls flush().
  }
}

void TensorBoardWriter::append_record(std::string_view payload) {
  const auto append = [this](auto value) {
    char data[sizeof value];
    std::memcpy(data, &value, sizeof value);
    buffer_.append(data, sizeof value);
  };
  const auto length = static_cast<uint64_t>(payload.size());
  char length_bytes[sizeof length];
  std::memcpy(length_bytes, &length, sizeof length);
  append(length);
  append(masked_crc32c({length_bytes, sizeof length}));
  buffer_ += payload;
  append(masked_crc32c(payload));
  if (buffer_.size() >= kBufferBytes) flush();
}

void TensorBoardWriter::add_scalar(std::string_view tag, int64_t step, double wall_time,
                                   double value) {
  const Message entry = Message().bytes(1, tag).single(2, static_cast<float>(value));
  append_record(summary_event(step, wall_time, entry).str());
}

void TensorBoardWriter::add_text(std::string_view tag, int64_t step, double wall_time,
                                 std::string_view markdown) {
  // TensorProto: 1 dtype (7: string), 2 shape (one dimension of size 1), 8 string_val.
  const Message shape = Message().message(2, Message().number(1, 1));
  const Message tensor = Message().number(1, 7).message(2, shape).bytes(8, markdown);
  // SummaryMetadata: 1 plugin_data {1 plugin_name}.
  const Message metadata = Message().message(1, Message().bytes(1, "text"));
  const Message entry = Message().bytes(1, tag).message(8, tensor).message(9, metadata);
  append_record(summary_event(step, wall_time, entry).str());
}

void TensorBoardWriter::flush() {
  // Cleared first: after a failed write the same bytes must not be written twice.
  const std::string bytes = std::exchange(buffer_, {});
  if (!bytes.empty()) file_.write(bytes);
}

}  // namespace fovea
