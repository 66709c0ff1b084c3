// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/byte_reader.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "fovea/base/error.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

constexpr size_t kInputBlock = 256 << 10;  // a few read calls per megabyte, and well inside L2

class PlainReader : public ByteReader {
 public:
  explicit PlainReader(const fs::path& path) : path_(path.string()) {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) {
      fail<InputError>(path_, "cannot read: {}; check the path and its permissions",
                       std::strerror(errno));
    }
  }
  PlainReader(const PlainReader&) = delete;
  PlainReader& operator=(const PlainReader&) = delete;
  ~PlainReader() override { ::close(descriptor_); }

  size_t read(std::span<char> out) override {
    for (;;) {
      const ssize_t count = ::read(descriptor_, out.data(), out.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0)
        fail<InputError>(path_, "cannot read: {}; check the disk", std::strerror(errno));
      consumed_ += count;
      return static_cast<size_t>(count);
    }
  }
  int64_t consumed() const override { return consumed_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t consumed_ = 0;
};

[[noreturn]] void fail_damaged(const std::string& path, const char* format, std::string_view what) {
  fail<InputError>(path, "expected whole {} data; got {}; copy or compress the file again", format,
                   what);
}

class GzipReader : public ByteReader {
 public:
  explicit GzipReader(const fs::path& path) : file_(path), input_(kInputBlock) {
    require<MemoryError>(inflateInit2(&stream_, 16 + MAX_WBITS) == Z_OK, "gzip",
                         "no memory to decompress '{}'", path.string());
  }
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;
  ~GzipReader() override { inflateEnd(&stream_); }

  size_t read(std::span<char> out) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    while (stream_.avail_out == out.size()) {
      if (stream_.avail_in == 0 && !refill()) {
        if (inside_member_) fail_damaged(file_.path(), "gzip", "a file that ends too early");
        return 0;
      }
      const int result = inflate(&stream_, Z_NO_FLUSH);
      inside_member_ = result != Z_STREAM_END;
      if (result == Z_STREAM_END) {
        inflateReset(&stream_);
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        fail_damaged(file_.path(), "gzip", stream_.msg != nullptr ? stream_.msg : "damaged data");
      }
    }
    return out.size() - stream_.avail_out;
  }
  int64_t consumed() const override { return file_.consumed(); }

 private:
  bool refill() {
    const size_t count = file_.read(input_);
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(count);
    return count > 0;
  }

  PlainReader file_;
  std::vector<char> input_;
  z_stream stream_{};
  bool inside_member_ = true;  // an empty file is no gzip file
};

class ZstdReader : public ByteReader {
 public:
  explicit ZstdReader(const fs::path& path)
      : file_(path), input_(kInputBlock), stream_(ZSTD_createDStream()) {
    require<MemoryError>(stream_ != nullptr, "zstd", "no memory to decompress '{}'", path.string());
  }
  ZstdReader(const ZstdReader&) = delete;
  ZstdReader& operator=(const ZstdReader&) = delete;
  ~ZstdReader() override { ZSTD_freeDStream(stream_); }

  size_t read(std::span<char> out) override {
    ZSTD_outBuffer target{out.data(), out.size(), 0};
    while (target.pos == 0) {
      if (block_.pos == block_.size && !may_hold_output_) {
        block_ = {input_.data(), file_.read(input_), 0};
        if (block_.size == 0) {
          if (inside_frame_) fail_damaged(file_.path(), "zstd", "a file that ends too early");
          return 0;
        }
      }
      const size_t result = ZSTD_decompressStream(stream_, &target, &block_);
      if (ZSTD_isError(result) != 0) fail_damaged(file_.path(), "zstd", ZSTD_getErrorName(result));
      inside_frame_ = result != 0;
      may_hold_output_ = inside_frame_ && target.pos == target.size;
    }
    return target.pos;
  }
  int64_t consumed() const override { return file_.consumed(); }

 private:
  PlainReader file_;
  std::vector<char> input_;
  ZSTD_DStream* stream_;
  ZSTD_inBuffer block_{nullptr, 0, 0};
  bool inside_frame_ = true;      // an empty file is no zstd file
  bool may_hold_output_ = false;  // the last call filled `out` to the brim
};

}  // namespace

std::unique_ptr<ByteReader> open_bytes(const fs::path& path) {
  const fs::path ending = path.extension();
  if (ending == ".gz") return std::make_unique<GzipReader>(path);
  if (ending == ".zst") return std::make_unique<ZstdReader>(path);
  return std::make_unique<PlainReader>(path);
}

}  // namespace fovea
