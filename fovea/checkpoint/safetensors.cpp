// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/checkpoint/mapped_weights.h"
#include "fovea/checkpoint/weights_elsewhere.h"

namespace fovea {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

using SortedJson = nlohmann::json;

constexpr size_t kLengthBytes = 8;            // the length of the header
constexpr size_t kLargestHeader = 100 << 20;  // the limit of the reference implementation
constexpr size_t kDataAlignment = 64;         // a cache line, and the widest vector load
constexpr size_t kDeepest = 4;                // file, tensor, shape; one to spare
constexpr size_t kMostSizes = 64;             // torch's own limit

struct DtypeName {
  std::string_view name;
  at::ScalarType dtype;
};
constexpr std::array kDtypes = {
    DtypeName{"F32", at::kFloat},
    DtypeName{"F16", at::kHalf},
    DtypeName{"BF16", at::kBFloat16},
    DtypeName{"F64", at::kDouble},
    DtypeName{"I64", at::kLong},
    DtypeName{"I32", at::kInt},
    DtypeName{"I16", at::kShort},
    DtypeName{"I8", at::kChar},
    DtypeName{"U8", at::kByte},
    DtypeName{"BOOL", at::kBool},
    DtypeName{"U16", at::kUInt16},
    DtypeName{"U32", at::kUInt32},
    DtypeName{"U64", at::kUInt64},
    DtypeName{"F8_E4M3", at::kFloat8_e4m3fn},
    DtypeName{"F8_E5M2", at::kFloat8_e5m2},
    DtypeName{"C64", at::kComplexFloat},
};

std::string legal_dtypes() {
  std::string out;
  for (const DtypeName& entry : kDtypes) out += (out.empty() ? "" : ", ") + std::string(entry.name);
  return out;
}

constexpr std::string_view kDamaged = "the file is damaged, get it again";

/// Hands over the members of the header's object one after the other, each as it ends: time and
/// memory grow with the text alone. (A parse of the whole with a callback looks at every member
/// again whenever one ends.)
class HeaderEvents : public nlohmann::json_sax<SortedJson> {
 public:
  using Member = std::function<void(const std::string& name, const SortedJson& value)>;

  HeaderEvents(std::string_view where, Member member) : where_(where), member_(std::move(member)) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(SortedJson::object()); }
  bool start_array(std::size_t) override { return open(SortedJson::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    const bool fresh =
        stack_.size() == 1 ? names_.insert(value).second : !stack_.back().value.contains(value);
    if (!fresh) {
      fail<CheckpointError>(where_, "the name '{}' stands twice in the header; {}", value,
                            kDamaged);
    }
    stack_.back().key = value;
    return true;
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    fail<CheckpointError>(where_, "the header must be JSON; {}; {}", error.what(), kDamaged);
  }

 private:
  struct Open {
    SortedJson value;
    std::string key;  // of the member that comes next
  };

  bool open(SortedJson value) {
    if (stack_.size() >= kDeepest) {
      fail<CheckpointError>(where_, "the header is nested deeper than {} levels; {}", kDeepest,
                            kDamaged);
    }
    require_object(value);
    stack_.push_back({std::move(value), ""});
    return true;
  }
  bool close() {
    SortedJson value = std::move(stack_.back().value);
    stack_.pop_back();
    return stack_.empty() || add(std::move(value));
  }
  bool add(SortedJson value) {
    require_object(value);
    Open& parent = stack_.back();
    if (stack_.size() == 1) {
      member_(parent.key, value);
    } else if (parent.value.is_array()) {
      parent.value.push_back(std::move(value));
    } else {
      parent.value.emplace(parent.key, std::move(value));
    }
    return true;
  }
  void require_object(const SortedJson& outermost) const {
    if (stack_.empty() && !outermost.is_object()) {
      fail<CheckpointError>(where_, "the header must be a JSON object of tensors; got {}",
                            outermost.type_name());
    }
  }

  std::string_view where_;
  Member member_;
  std::vector<Open> stack_;
  std::unordered_set<std::string> names_;
};

/// Parses the header of one file; every complaint names the file.
class HeaderParser {
 public:
  HeaderParser(const std::filesystem::path& path, std::string_view header, size_t data_size)
      : where_(path.string()), header_(header), data_size_(data_size) {}

  std::vector<SafetensorsEntry> parse(TextMap& metadata) const {
    std::vector<SafetensorsEntry> entries;
    HeaderEvents events(where_, [&](const std::string& name, const SortedJson& value) {
      if (name == "__metadata__") {
        read_metadata(value, metadata);
      } else {
        entries.push_back(read_entry(name, value));
      }
    });
    SortedJson::sax_parse(header_.begin(), header_.end(), &events);
    check_layout(entries);
    return entries;
  }

 private:
  void read_metadata(const SortedJson& value, TextMap& metadata) const {
    if (!value.is_object()) {
      fail<CheckpointError>(where_, "'__metadata__' must be a map of texts; got {}",
                            value.type_name());
    }
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) {
        fail<CheckpointError>(where_, "'__metadata__' must hold texts; '{}' is {}", key,
                              text.type_name());
      }
      metadata[key] = text.get<std::string>();
    }
  }

  const SortedJson& field(const std::string& name, const SortedJson& value, const char* key) const {
    const auto found = value.is_object() ? value.find(key) : value.end();
    if (found == value.end()) {
      fail<CheckpointError>(where_, "tensor '{}' must have the key '{}'; {}", name, key, kDamaged);
    }
    return *found;
  }

  static bool read_sizes(const SortedJson& value, std::vector<uint64_t>& sizes) {
    if (!value.is_array()) return false;
    for (const SortedJson& item : value) {
      if (!item.is_number_unsigned()) return false;
      sizes.push_back(item.get<uint64_t>());
    }
    return true;
  }

  SafetensorsEntry read_entry(const std::string& name, const SortedJson& value) const {
    SafetensorsEntry entry;
    entry.name = name;
    const SortedJson& dtype = field(name, value, "dtype");
    const auto known =
        std::find_if(kDtypes.begin(), kDtypes.end(), [&](const DtypeName& candidate) {
          return dtype.is_string() && candidate.name == dtype.get_ref<const std::string&>();
        });
    if (known == kDtypes.end()) {
      fail<CheckpointError>(where_, "tensor '{}' must have a dtype of {}; got {}", name,
                            legal_dtypes(), dtype.dump());
    }
    entry.dtype = known->dtype;

    std::vector<uint64_t> shape, offsets;
    if (!read_sizes(field(name, value, "shape"), shape)) {
      fail<CheckpointError>(where_, "tensor '{}': the shape must be a list of sizes; got {}", name,
                            value["shape"].dump());
    }
    if (!read_sizes(field(name, value, "data_offsets"), offsets) || offsets.size() != 2) {
      fail<CheckpointError>(where_, "tensor '{}': data_offsets must be [begin, end]; got {}", name,
                            value["data_offsets"].dump());
    }
    if (shape.size() > kMostSizes) {
      fail<CheckpointError>(where_, "tensor '{}': a shape has at most {} sizes; got {}; {}", name,
                            kMostSizes, shape.size(), kDamaged);
    }
    const uint64_t bytes = byte_count(name, shape, c10::elementSize(entry.dtype));
    if (offsets[0] > offsets[1] || offsets[1] > data_size_) {
      fail<CheckpointError>(
          where_,
          "tensor '{}': bytes {} ... {} of the data must lie inside its {} bytes; "
          "the file is truncated or damaged, get it again",
          name, offsets[0], offsets[1], data_size_);
    }
    if (offsets[1] - offsets[0] != bytes) {
      fail<CheckpointError>(
          where_, "tensor '{}': shape {} and dtype {} take {} bytes; data_offsets span {}; {}",
          name, value["shape"].dump(), known->name, bytes, offsets[1] - offsets[0], kDamaged);
    }
    for (const uint64_t size : shape) entry.shape.push_back(static_cast<int64_t>(size));
    entry.begin = offsets[0];
    entry.end = offsets[1];
    return entry;
  }

  uint64_t byte_count(const std::string& name, const std::vector<uint64_t>& shape,
                      uint64_t item) const {
    constexpr uint64_t largest = std::numeric_limits<int64_t>::max();
    uint64_t bytes = item;
    bool empty = false;
    for (const uint64_t size : shape) {
      empty = empty || size == 0;
      if (size > largest || (size != 0 && bytes > largest / size)) {
        fail<CheckpointError>(where_, "tensor '{}': the shape overflows 64 bits; {}", name,
                              kDamaged);
      }
      bytes *= size == 0 ? 1 : size;  // keep looking for overflow behind a zero
    }
    return empty ? 0 : bytes;
  }

  /// No holes, no overlaps, nothing left over.
  void check_layout(const std::vector<SafetensorsEntry>& entries) const {
    std::vector<const SafetensorsEntry*> order;
    order.reserve(entries.size());
    for (const SafetensorsEntry& entry : entries) order.push_back(&entry);
    std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
      return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
    });
    size_t at = 0;
    std::string_view before = "the header";
    for (const SafetensorsEntry* entry : order) {
      if (entry->begin < at) {
        fail<CheckpointError>(where_,
                              "tensor '{}' begins at byte {}, inside '{}' that ends at {}; {}",
                              entry->name, entry->begin, before, at, kDamaged);
      }
      if (entry->begin > at) {
        fail<CheckpointError>(where_,
                              "bytes {} ... {} between '{}' and '{}' belong to no tensor; {}", at,
                              entry->begin, before, entry->name, kDamaged);
      }
      at = entry->end;
      before = entry->name;
    }
    if (at != data_size_) {
      fail<CheckpointError>(where_, "{} bytes are left over after the last tensor '{}'; {}",
                            data_size_ - at, before, kDamaged);
    }
  }

  std::string where_;
  std::string_view header_;
  size_t data_size_;
};

}  // namespace

std::string_view safetensors_dtype(at::ScalarType dtype) {
  for (const DtypeName& entry : kDtypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  fail<CheckpointError>("safetensors", "dtype {} cannot be stored; convert it to one of {}",
                        c10::toString(dtype), legal_dtypes());
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), file_(map_weights(path)) {
  const std::span<const std::byte> bytes = file_->bytes();
  if (bytes.size() < kLengthBytes) {
    fail<CheckpointError>(
        path.string(),
        "a safetensors file begins with 8 bytes of header length; the file has {}; "
        "it is truncated, get it again",
        bytes.size());
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  const size_t rest = bytes.size() - kLengthBytes;
  if (length < 2 || length > kLargestHeader || length > rest) {
    fail<CheckpointError>(
        path.string(),
        "the header length must be 2 ... {} and lie inside the file of {} bytes; got "
        "{}; the file is truncated or no safetensors file",
        kLargestHeader, bytes.size(), length);
  }
  data_begin_ = kLengthBytes + length;
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  entries_ = HeaderParser(path, header, bytes.size() - data_begin_).parse(metadata_);
  std::sort(entries_.begin(), entries_.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::lower_bound(
      entries_.begin(), entries_.end(), name,
      [](const SafetensorsEntry& entry, std::string_view n) { return entry.name < n; });
  return found != entries_.end() && found->name == name ? &*found : nullptr;
}

at::Tensor SafetensorsFile::tensor(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) {
    std::vector<std::string> names;
    for (const SafetensorsEntry& candidate : entries_) names.push_back(candidate.name);
    fail<CheckpointError>(path_.string(), "tensor '{}' is missing{}", name,
                          did_you_mean(name, names));
  }
  const std::byte* data = file_->bytes().data() + data_begin_ + entry->begin;
  const at::TensorOptions options = at::TensorOptions(entry->dtype);
  // The closure holds the map for as long as the tensor lives.
  at::Tensor view = at::from_blob(
      const_cast<std::byte*>(data), entry->shape, [file = file_](void*) {}, options);
  const bool aligned =
      reinterpret_cast<uintptr_t>(data) % std::min<size_t>(c10::elementSize(entry->dtype), 8) == 0;
  if (aligned) return view;
  // Foreign files may put float64 behind an odd number of bytes: only then a copy.
  at::Tensor copy = at::empty(entry->shape, options);
  if (entry->end > entry->begin)
    std::memcpy(copy.mutable_data_ptr(), data, entry->end - entry->begin);
  return copy;
}

TensorMap SafetensorsFile::tensors() const {
  TensorMap out;
  for (const SafetensorsEntry& entry : entries_) out.emplace(entry.name, tensor(entry.name));
  return out;
}

namespace {

void write_tensors(const std::filesystem::path& path, const TensorMap& tensors,
                   const TextMap& metadata, const TensorFetch& fetch) {
  std::vector<const TensorMap::value_type*> order;
  for (const auto& item : tensors) {
    if (!item.second.defined() || item.first == "__metadata__") {
      fail<CheckpointError>(path.string(),
                            "tensor '{}' must be defined and have another name than "
                            "__metadata__",
                            item.first);
    }
    order.push_back(&item);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->second.element_size() > b->second.element_size();
  });
  SortedJson header = SortedJson::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t at = 0;
  for (const auto* item : order) {
    const at::Tensor& tensor = item->second;
    const size_t end = at + static_cast<size_t>(tensor.numel()) * tensor.element_size();
    header[item->first] = {{"dtype", safetensors_dtype(tensor.scalar_type())},
                           {"shape", tensor.sizes().vec()},
                           {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump(-1, ' ', false, SortedJson::error_handler_t::replace);
  text.append((kDataAlignment - (kLengthBytes + text.size()) % kDataAlignment) % kDataAlignment,
              ' ');
  write_file(path, [&](OutputFile& file) {
    const uint64_t length = text.size();
    file.write(std::string_view(reinterpret_cast<const char*>(&length), kLengthBytes));
    file.write(text);
    for (const auto* item : order) {
      const at::Tensor tensor = fetch ? fetch(item->first, item->second) : item->second;
      const at::Tensor plain = tensor.detach().to(at::kCPU).resolve_conj().contiguous();
      file.write(std::span(static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()));
    }
  });
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                       const TextMap& metadata) {
  write_tensors(path, tensors, metadata, {});
}

void write_fetched(const std::filesystem::path& path, const TensorMap& tensors,
                   const TextMap& metadata, const TensorFetch& fetch) {
  write_tensors(path, tensors, metadata, fetch);
}

}  // namespace fovea
