// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/base/printable.h"
#include "fovea/checkpoint/mapped_weights.h"
#include "fovea/text/utf8.h"

namespace fovea {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kLargestAlignment = 1 << 20;
constexpr uint64_t kMostItems = 1 << 24;  // of an array: 64 times the largest vocabulary known
constexpr uint64_t kMostAxes = 4;         // ggml's limit
constexpr std::string_view kAgain = "the file is damaged, get it again";

struct TypeSize {
  GgufType type;
  size_t bytes;  // at least, for texts
};
constexpr std::array<TypeSize, 12> kTypes{{{GgufType::uint8, 1},
                                           {GgufType::int8, 1},
                                           {GgufType::uint16, 2},
                                           {GgufType::int16, 2},
                                           {GgufType::uint32, 4},
                                           {GgufType::int32, 4},
                                           {GgufType::float32, 4},
                                           {GgufType::boolean, 1},
                                           {GgufType::text, 8},
                                           {GgufType::uint64, 8},
                                           {GgufType::int64, 8},
                                           {GgufType::float64, 8}}};

uint64_t aligned(uint64_t offset, uint64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

/// Reads the bytes of one file in order; every complaint names the file and the byte.
class Cursor {
 public:
  Cursor(std::string where, std::span<const std::byte> bytes)
      : where_(std::move(where)), bytes_(bytes) {}

  size_t at() const { return at_; }
  uint64_t remaining() const { return bytes_.size() - at_; }
  const std::string& where() const { return where_; }

  template <class T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, next_bytes(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string text(std::string_view what) {
    const size_t begin = at_;
    const auto length = number<uint64_t>(what);
    const std::span<const std::byte> bytes = next_bytes(length, what);
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    require<CheckpointError>(valid_utf8_prefix(text) == text.size(), where_,
                             "byte {}: {} must be UTF-8; got '{}'; {}", begin, what,
                             shortened(text), kAgain);
    return text;
  }

  /// A count of things that take `bytes` bytes each at least.
  uint64_t count(std::string_view what, uint64_t bytes) {
    const size_t begin = at_;
    const auto count = number<uint64_t>(what);
    require<CheckpointError>(count <= remaining() / bytes, where_,
                             "byte {}: {} of at least {} bytes each must fit into the {} bytes "
                             "that follow; got {}; the file is truncated or damaged, get it again",
                             begin, what, bytes, remaining(), count);
    return count;
  }

  /// A name or value as an error shows it: one line, not too long.
  static std::string shortened(std::string_view text) {
    constexpr size_t shown = 80;
    return printable_line(text.substr(0, shown)) + (text.size() > shown ? "..." : "");
  }

 private:
  std::span<const std::byte> next_bytes(uint64_t size, std::string_view what) {
    require<CheckpointError>(size <= remaining(), where_,
                             "byte {}: {} takes {} bytes, {} are left; the file is truncated or "
                             "damaged, get it again",
                             at_, what, size, remaining());
    const std::span<const std::byte> bytes = bytes_.subspan(at_, size);
    at_ += size;
    return bytes;
  }

  std::string where_;
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

class HeaderReader {
 public:
  HeaderReader(const std::string& where, std::span<const std::byte> bytes)
      : cursor_(where, bytes), size_(bytes.size()) {}

  void read(GgufMetadata& metadata, std::vector<GgufTensor>& tensors) {
    read_version();
    const auto tensor_count = cursor_.count("the number of tensors", 8 + 4 + 4 + 8);
    const auto entry_count = cursor_.count("the number of metadata entries", 8 + 4 + 1);
    for (uint64_t i = 0; i < entry_count; ++i) read_entry(metadata);
    const uint64_t alignment = alignment_of(metadata);
    for (uint64_t i = 0; i < tensor_count; ++i) tensors.push_back(read_tensor(alignment));
    place(tensors, aligned(cursor_.at(), alignment));
    check_end(tensors, alignment);
  }

 private:
  const std::string& where() const { return cursor_.where(); }

  void read_version() {
    std::string magic;
    for (size_t i = 0; i < kMagic.size() && cursor_.remaining() > 0; ++i)
      magic += cursor_.number<char>("the magic number");
    require<CheckpointError>(magic == kMagic, where(),
                             "expected a GGUF file, which begins with 'GGUF'; got '{}'; check the "
                             "path",
                             Cursor::shortened(magic));
    const auto version = cursor_.number<uint32_t>("the version");
    require<UnsupportedError>(version >> 24 == 0, where(),
                              "expected little-endian numbers; this file has the other order: "
                              "convert it, or get the little-endian file");
    require<UnsupportedError>(version == 2 || version == kGgufVersion, where(),
                              "expected GGUF version 2 or 3; got {}: convert the model again with "
                              "a newer program",
                              version);
  }

  void read_entry(GgufMetadata& metadata) {
    const size_t begin = cursor_.at();
    std::string key = cursor_.text("a metadata key");
    GgufValue value = read_value(key);
    const std::string shown = Cursor::shortened(key);
    require<CheckpointError>(metadata.emplace(std::move(key), std::move(value)).second, where(),
                             "byte {}: the metadata key '{}' stands twice; {}", begin, shown,
                             kAgain);
  }

  GgufValue read_value(const std::string& key) {
    const std::string what = fmt::format("the value of '{}'", Cursor::shortened(key));
    GgufValue value;
    uint64_t count = 1;
    size_t begin = cursor_.at();
    auto type = cursor_.number<uint32_t>(what);
    if (type == kGgufArray) {
      value.array = true;
      begin = cursor_.at();
      type = cursor_.number<uint32_t>(what);
    }
    const auto known = std::ranges::find(kTypes, static_cast<GgufType>(type), &TypeSize::type);
    require<CheckpointError>(
        known != kTypes.end(), where(), "byte {}: {} must have a type of 0 to 12{}; got {}; {}",
        begin, what, value.array ? " but 9 (arrays of arrays are not read)" : "", type, kAgain);
    value.type = known->type;
    if (value.array) {
      count = cursor_.count(fmt::format("the items of '{}'", Cursor::shortened(key)), known->bytes);
      require<CheckpointError>(count <= kMostItems, where(),
                               "byte {}: '{}' must have at most {} items; got {}; {}", begin,
                               Cursor::shortened(key), kMostItems, count, kAgain);
    }
    for (uint64_t i = 0; i < count; ++i) read_item(value, what);
    return value;
  }

  void read_item(GgufValue& value, const std::string& what) {
    switch (value.type) {
      case GgufType::uint8:
        return value.integers.push_back(cursor_.number<uint8_t>(what));
      case GgufType::int8:
        return value.integers.push_back(cursor_.number<int8_t>(what));
      case GgufType::uint16:
        return value.integers.push_back(cursor_.number<uint16_t>(what));
      case GgufType::int16:
        return value.integers.push_back(cursor_.number<int16_t>(what));
      case GgufType::uint32:
        return value.integers.push_back(cursor_.number<uint32_t>(what));
      case GgufType::int32:
        return value.integers.push_back(cursor_.number<int32_t>(what));
      case GgufType::int64:
        return value.integers.push_back(cursor_.number<int64_t>(what));
      case GgufType::float32:
        return value.reals.push_back(cursor_.number<float>(what));
      case GgufType::float64:
        return value.reals.push_back(cursor_.number<double>(what));
      case GgufType::text:
        return value.texts.push_back(cursor_.text(what));
      case GgufType::boolean: {
        const auto flag = cursor_.number<uint8_t>(what);
        require<CheckpointError>(flag <= 1, where(), "byte {}: {} must be 0 or 1; got {}; {}",
                                 cursor_.at() - 1, what, flag, kAgain);
        return value.integers.push_back(flag);
      }
      case GgufType::uint64: {
        const auto number = cursor_.number<uint64_t>(what);
        require<CheckpointError>(number <= std::numeric_limits<int64_t>::max(), where(),
                                 "byte {}: {} must be below 2^63; got {}; {}", cursor_.at() - 8,
                                 what, number, kAgain);
        return value.integers.push_back(static_cast<int64_t>(number));
      }
    }
  }

  uint64_t alignment_of(const GgufMetadata& metadata) const {
    const auto found = metadata.find("general.alignment");
    if (found == metadata.end()) return kGgufAlignment;
    const GgufValue& value = found->second;
    const bool whole = !value.array && value.integers.size() == 1 && value.integers[0] > 0;
    const uint64_t alignment = whole ? static_cast<uint64_t>(value.integers[0]) : 0;
    require<CheckpointError>(
        alignment >= 8 && alignment <= kLargestAlignment && std::has_single_bit(alignment), where(),
        "'general.alignment' must be a power of two from 8 to {}; got {}; {}", kLargestAlignment,
        whole ? std::to_string(alignment) : "another type or a negative number", kAgain);
    return alignment;
  }

  /// begin is the offset in the data until place().
  GgufTensor read_tensor(uint64_t alignment) {
    GgufTensor tensor;
    tensor.name = cursor_.text("a tensor name");
    const std::string what = fmt::format("tensor '{}'", Cursor::shortened(tensor.name));
    const auto axes = cursor_.number<uint32_t>(what);
    require<CheckpointError>(axes >= 1 && axes <= kMostAxes, where(),
                             "{} must have 1 to {} axes; got {}; {}", what, kMostAxes, axes,
                             kAgain);
    std::vector<uint64_t> sizes;  // innermost first
    for (uint32_t i = 0; i < axes; ++i) sizes.push_back(cursor_.number<uint64_t>(what));
    const auto number = cursor_.number<uint32_t>(what);
    const std::optional<GgmlType> type = ggml_type(number);
    if (!type) fail_type(what, number);
    tensor.type = *type;
    const uint64_t bytes = byte_count(what, sizes, ggml_layout(*type));
    for (const uint64_t size : sizes)
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    const auto offset = cursor_.number<uint64_t>(what);
    require<CheckpointError>(offset % alignment == 0, where(),
                             "{} must begin at a multiple of {} bytes; got {}; {}", what, alignment,
                             offset, kAgain);
    require<CheckpointError>(offset <= size_ && bytes <= size_ - offset, where(),
                             "{}: bytes {} ... {} + {} of the data must lie inside the file of {} "
                             "bytes; it is truncated "
                             "or damaged, get it again",
                             what, offset, offset, bytes, size_);
    tensor.begin = offset;
    tensor.end = offset + bytes;
    return tensor;
  }

  [[noreturn]] void fail_type(const std::string& what, uint32_t number) const {
    const std::string_view name = ggml_name(number);
    if (name.empty())
      fail<CheckpointError>(where(), "{} has the unknown number format {}; {}", what, number,
                            kAgain);
    fail<UnsupportedError>(where(),
                           "{} is {}, which is not read: expected F32, F16, BF16, Q8_0, Q4_0, "
                           "Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K; get the model in one of these",
                           what, name);
  }

  uint64_t byte_count(const std::string& what, const std::vector<uint64_t>& sizes,
                      const GgmlLayout& layout) const {
    constexpr uint64_t largest = std::numeric_limits<int64_t>::max();
    uint64_t values = 1;
    for (const uint64_t size : sizes) {
      require<CheckpointError>(size > 0 && size <= largest && values <= largest / size, where(),
                               "{}: the sizes [{}] must be at least 1 and fit into 63 bits; {}",
                               what, fmt::join(sizes, ", "), kAgain);
      values *= size;
    }
    const auto block = static_cast<uint64_t>(layout.values);
    require<CheckpointError>(sizes[0] % block == 0, where(),
                             "{}: rows of {} must be whole blocks of {} values; got {}; {}", what,
                             layout.name, block, sizes[0], kAgain);
    const uint64_t blocks = values / block;
    require<CheckpointError>(blocks <= largest / layout.bytes, where(),
                             "{}: the sizes [{}] must fit into 63 bits; {}", what,
                             fmt::join(sizes, ", "), kAgain);
    return blocks * layout.bytes;
  }

  /// Offsets become places in the file: inside it and apart from each other.
  void place(std::vector<GgufTensor>& tensors, uint64_t data) const {
    std::vector<const GgufTensor*> order;
    for (GgufTensor& tensor : tensors) {
      require<CheckpointError>(data <= size_ && tensor.end <= size_ - data, where(),
                               "tensor '{}': bytes {} ... {} of the data must lie inside the file, "
                               "whose data is {} bytes; it is truncated, get it again",
                               Cursor::shortened(tensor.name), tensor.begin, tensor.end,
                               data <= size_ ? size_ - data : 0);
      tensor.begin += data;
      tensor.end += data;
      order.push_back(&tensor);
    }
    std::ranges::sort(order, {}, [](const GgufTensor* t) { return t->begin; });
    for (size_t i = 1; i < order.size(); ++i) {
      require<CheckpointError>(order[i]->begin >= order[i - 1]->end, where(),
                               "tensor '{}' begins at byte {}, inside '{}' that ends at {}; {}",
                               Cursor::shortened(order[i]->name), order[i]->begin,
                               Cursor::shortened(order[i - 1]->name), order[i - 1]->end, kAgain);
    }
  }

  /// Bytes behind the last tensor are those of a tensor that the header does not count: then all
  /// others are read from wrong places too.
  void check_end(const std::vector<GgufTensor>& tensors, uint64_t alignment) const {
    uint64_t end = cursor_.at();
    for (const GgufTensor& tensor : tensors) end = std::max(end, tensor.end);
    require<CheckpointError>(size_ <= aligned(end, alignment), where(),
                             "the {} tensors that the header counts end at byte {}, the file at "
                             "{}: the count is wrong or the file is damaged; {}",
                             tensors.size(), end, size_, kAgain);
  }

  Cursor cursor_;
  uint64_t size_;
};

}  // namespace

GgufValue GgufValue::of_text(std::string text) {
  return {.type = GgufType::text, .texts = {std::move(text)}};
}
GgufValue GgufValue::of_integer(int64_t value, GgufType type) {
  return {.type = type, .integers = {value}};
}
GgufValue GgufValue::of_real(double value) { return {.type = GgufType::float32, .reals = {value}}; }
GgufValue GgufValue::of_boolean(bool value) {
  return {.type = GgufType::boolean, .integers = {value ? 1 : 0}};
}
GgufValue GgufValue::of_texts(std::vector<std::string> texts) {
  return {.type = GgufType::text, .array = true, .texts = std::move(texts)};
}
GgufValue GgufValue::of_integers(std::vector<int64_t> values, GgufType type) {
  return {.type = type, .array = true, .integers = std::move(values)};
}

GgufFile::GgufFile(const std::filesystem::path& path) : path_(path), file_(map_weights(path)) {
  HeaderReader(path.string(), file_->bytes()).read(metadata_, tensors_);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    require<CheckpointError>(place_of_.emplace(tensors_[i].name, i).second, path.string(),
                             "the tensor '{}' stands twice; {}",
                             Cursor::shortened(tensors_[i].name), kAgain);
  }
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = place_of_.find(name);
  return found == place_of_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> GgufFile::bytes(const GgufTensor& tensor) const {
  return file_->bytes().subspan(tensor.begin, tensor.end - tensor.begin);
}

}  // namespace fovea
