// Files: nothing half-written is ever seen, nothing old is lost, and every refusal says what to do.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <thread>

#include "fovea/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::files_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::TemporaryFolder;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// Runs `f` in a child process; 0 when it returned true.
template <class F>
int in_child(F&& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    bool good = false;
    try {
      good = f();
    } catch (...) {
    }
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(ReadFile, ReturnsEveryByteThatWriteFileWrote) {
  TemporaryFolder folder;
  std::string bytes;
  for (int i = 0; i < 200000; ++i) bytes.push_back(static_cast<char>(i * 7));
  write_file(folder / "bytes", bytes);
  EXPECT_EQ(read_file(folder / "bytes"), bytes);
  write_file(folder / "bytes", std::string_view());
  EXPECT_EQ(read_file(folder / "bytes"), "");
}

TEST(ReadFile, MissingFileAndFolderAreInputErrorsThatNameThePath) {
  TemporaryFolder folder;
  EXPECT_ERROR(InputError, read_file(folder / "none.txt"), "none.txt", "No such file",
               "check the path");
  EXPECT_ERROR(InputError, read_file(folder.path()), folder.path().string(), "directory");
}

TEST(ReadFile, MoreThanTheLimitIsAnInputErrorThatNamesIt) {
  const ReadLimit limit{"a recipe", 1 << 20};
  testing::TemporaryFolder folder;
  write_file(folder / "whole", std::string(1 << 20, 'x'));
  EXPECT_EQ(read_file(folder / "whole", limit).size(), size_t{1} << 20);
  write_file(folder / "large", std::string((1 << 20) + 1, 'x'));
  EXPECT_ERROR(InputError, read_file(folder / "large", limit), "large", "1 MB", "a recipe");
  EXPECT_ERROR(InputError, read_file("/dev/zero", limit), "/dev/zero", "1 MB", "a recipe");
}

TEST(WriteFile, FillThatThrowsLeavesTheOldFileAndNoTemporary) {
  TemporaryFolder folder;
  write_file(folder / "a", "old");
  const auto half = [](OutputFile& file) {
    file.write(std::string_view("new, but only ha"));
    throw std::runtime_error("stop");
  };
  EXPECT_THROW(write_file(folder / "a", half), std::runtime_error);
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a"));
}

TEST(WriteFile, ADeviceAPipeAFolderOrALinkToNothingIsNotReplaced) {
  TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  fs::create_directory(folder / "folder");
  fs::create_symlink("/dev/null", folder / "device");
  fs::create_symlink("none", folder / "dangling");
  for (const char* name : {"pipe", "folder", "device", "dangling"})
    EXPECT_ERROR(IoError, write_file(folder / name, "text"), name, "expected a regular file");
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
  EXPECT_TRUE(fs::is_symlink(folder / "device"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("dangling", "device", "folder", "pipe"));
}

TEST(WriteFile, ALinkToARegularFileIsFollowed) {
  TemporaryFolder folder;
  fs::create_directory(folder / "there");
  write_file(folder / "there/file", "old");
  fs::create_symlink("there/file", folder / "link");
  write_file(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "there/file"), "new");
}

TEST(WriteFile, KilledWriterLeavesTheOldFile) {
  TemporaryFolder folder;
  write_file(folder / "a", "old");
  const int status = in_child([&] {
    write_file(folder / "a", [](OutputFile& file) {
      file.write(std::string_view("half"));
      ::raise(SIGKILL);
    });
    return true;
  });
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_file(folder / "a"), "old");
  write_file(folder / "a", "new");
  EXPECT_EQ(read_file(folder / "a"), "new");
}

// The limit on a file's size stands for a full disk: the write is refused in the middle.
TEST(WriteFile, RefusedWriteKeepsTheOldFileAndThrowsIoError) {
  TemporaryFolder folder;
  write_file(folder / "a", "old");
  EXPECT_EQ(0, in_child([&] {
              ::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{4096, 4096};
              ::setrlimit(RLIMIT_FSIZE, &limit);
              try {
                write_file(folder / "a", std::string(100000, 'x'));
              } catch (const IoError&) {
                return true;
              }
              return false;
            }));
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a"));
}

TEST(WriteFile, ReaderBesideAWriterNeverSeesHalf) {
  TemporaryFolder folder;
  const size_t size = 100000;
  write_file(folder / "a", std::string(size, '0'));
  std::jthread writer([&](const std::stop_token& stop) {
    for (char c = '1'; !stop.stop_requested(); c = c == '9' ? '1' : static_cast<char>(c + 1)) {
      write_file(folder / "a", std::string(size, c));
    }
  });
  for (int i = 0; i < 200; ++i) {
    const std::string seen = read_file(folder / "a");
    ASSERT_EQ(seen.size(), size);
    ASSERT_EQ(seen.find_first_not_of(seen[0]), std::string::npos);
  }
}

TEST(WriteFile, TwoThreadsOnOneFileLeaveOneOfTheTwo) {
  TemporaryFolder folder;
  const auto write_many = [&](char c) {
    for (int i = 0; i < 50; ++i) write_file(folder / "a", std::string(50000, c));
  };
  { std::jthread a(write_many, 'a'), b(write_many, 'b'); }
  const std::string left = read_file(folder / "a");
  EXPECT_EQ(left, std::string(50000, left.at(0)));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a"));
}

TEST(WriteFile, FolderThatTakesNoFilesIsAnIoErrorWithTheRemedy) {
  TemporaryFolder folder;
  EXPECT_ERROR(IoError, write_file("/proc/fovea.txt", "x"), "/proc", "cannot write");
  EXPECT_ERROR(IoError, write_file(folder / "none" / "a", "x"), "none", "check the path");
  write_file(folder / "file", "x");
  EXPECT_ERROR(IoError, write_file(folder / "file" / "a", "y"), "a folder stands where a file");
}

TEST(OutputFile, FullDiskIsAnIoErrorThatSaysToFreeSpace) {
  OutputFile file("/dev/full");
  EXPECT_ERROR(IoError, file.write(std::string_view("x")), "/dev/full", "No space left",
               "free space");
}

TEST(OutputFile, AppendKeepsAndTruncateDropsWhatWasThere) {
  TemporaryFolder folder;
  write_file(folder / "log", "one\n");
  OutputFile appended(folder / "log", OutputFile::Mode::append);
  appended.write(std::string_view("two\n"));
  appended.close();
  EXPECT_EQ(read_file(folder / "log"), "one\ntwo\n");
  OutputFile(folder / "log").close();
  EXPECT_EQ(read_file(folder / "log"), "");
}

TEST(WriteFolder, AppearsWholeOrNotAtAll) {
  TemporaryFolder folder;
  const auto half = [](const fs::path& path) {
    write_file(path / "weights", "half");
    throw std::runtime_error("stop");
  };
  EXPECT_THROW(write_folder(folder / "checkpoint", half), std::runtime_error);
  EXPECT_TRUE(names_in(folder.path()).empty());

  write_folder(folder / "checkpoint", [](const fs::path& path) {
    make_folders(path / "deep" / "er");
    write_file(path / "deep" / "er" / "weights", "all");
  });
  EXPECT_EQ(read_file(folder / "checkpoint" / "deep" / "er" / "weights"), "all");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("checkpoint"));
}

TEST(WriteFolder, DoesNotReplaceAFolderWithSomethingInIt) {
  TemporaryFolder folder;
  const auto fill = [](const char* text) {
    return [text](const fs::path& path) { write_file(path / "a", text); };
  };
  write_folder(folder / "checkpoint", fill("old"));
  EXPECT_THROW(write_folder(folder / "checkpoint", fill("new")), IoError);
  EXPECT_EQ(read_file(folder / "checkpoint" / "a"), "old");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("checkpoint"));
}

TEST(MakeFolders, MakesParentsAndAcceptsWhatIsThere) {
  TemporaryFolder folder;
  make_folders(folder / "a" / "b" / "c");
  make_folders(folder / "a" / "b" / "c");
  EXPECT_TRUE(fs::is_directory(folder / "a" / "b" / "c"));
  EXPECT_ERROR(IoError, make_folders("/proc/fovea/runs"), "/proc/fovea");
}

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  TemporaryFolder folder;
  const std::string bytes("some bytes\0with a zero", 22);
  write_file(folder / "a", bytes);
  MappedFile first(folder / "a");
  const MappedFile map = std::move(first);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size()),
            bytes);
  write_file(folder / "empty", "");
  EXPECT_TRUE(MappedFile(folder / "empty").bytes().empty());
}

TEST(MappedFile, MissingFileFolderAndDeviceAreInputErrors) {
  TemporaryFolder folder;
  EXPECT_ERROR(InputError, MappedFile(folder / "none"), "none", "check the path");
  EXPECT_ERROR(InputError, MappedFile(folder.path()), "not a regular file");
  EXPECT_ERROR(InputError, MappedFile("/dev/null"), "not a regular file");
}

TEST(FolderLock, SecondProcessIsRefusedAndToldWhoHoldsIt) {
  TemporaryFolder folder;
  const FolderLock lock(folder.path());
  const std::string holder = "process " + std::to_string(::getpid());
  EXPECT_EQ(0, in_child([&] {
              try {
                FolderLock second(folder.path());
              } catch (const LockedError& error) {
                return std::string(error.what()).find(holder) != std::string::npos;
              }
              return false;
            }));
  EXPECT_ERROR(LockedError, FolderLock(folder.path()), folder.path().string(), holder);
}

TEST(FolderLock, GoesWithItsHolderHoweverThatEnds) {
  TemporaryFolder folder;
  { const FolderLock lock(folder.path()); }
  const int status = in_child([&] {
    const FolderLock lock(folder.path());
    return ::raise(SIGKILL) == 0;
  });
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_NO_THROW(FolderLock(folder.path()));
}

TEST(FolderLock, MissingFolderIsAnIoError) {
  TemporaryFolder folder;
  EXPECT_ERROR(IoError, FolderLock(folder / "none"), "none");
}

TEST(Fingerprint, IsStableAcrossProcessesAndReleases) {
  // Written down once: stored fingerprints (data caches, checkpoints) must stay valid.
  EXPECT_EQ(hex64(fingerprint("")), "2180a92350d49cce");
  EXPECT_EQ(hex64(fingerprint("fovea")), "48909709d5112e13");
  EXPECT_EQ(hex64(fingerprint("fovea", 1)), "a432003328a1787d");
}

TEST(Fingerprint, ChangesWithEveryByteTheLengthAndTheSeed) {
  const std::string text = "the quick brown fox jumps";
  for (size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_NE(fingerprint(other), fingerprint(text)) << i;
  }
  EXPECT_NE(fingerprint(std::string("a\0", 2)), fingerprint("a"));
  EXPECT_NE(fingerprint(std::string(8, '\0')), fingerprint(std::string(16, '\0')));
  EXPECT_NE(fingerprint(text, 1), fingerprint(text, 2));
}

TEST(Hex64, IsSixteenLowerCaseDigits) {
  EXPECT_EQ(hex64(0), "0000000000000000");
  EXPECT_EQ(hex64(0xABCDEF0123456789), "abcdef0123456789");
}

}  // namespace
}  // namespace fovea::files_test
