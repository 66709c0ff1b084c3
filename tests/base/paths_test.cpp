// Paths: what cannot be looked at is said, and names stay inside the folder that was chosen.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/paths.h"

#include <gtest/gtest.h>

#include "fovea/base/files.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::paths_test {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;

TEST(FileName, NamesThatLeaveTheFolderHideOrActOnATerminalAreNone) {
  for (const std::string name : {"", ".", "..", "../victim", "/etc/passwd", "a/b", "a\\b",
                                 ".hidden", "a\nb", "a\x1b[31m", "\xff", "\xe2\x80\xaeturned"})
    EXPECT_NE(why_no_file_name(name), "") << name;
  EXPECT_NE(why_no_file_name(std::string("a\0b", 3)), "");
  EXPECT_NE(why_no_file_name(std::string(300, 'x')), "");
}

TEST(FileName, WordsOfEveryLanguageSpacesAndDotsInsideAreTaken) {
  for (const std::string name : {"hellaswag", "Größe 2", "a.b-c_d+e", "问题"})
    EXPECT_EQ(why_no_file_name(name), "") << name;
}

TEST(Paths, FilesFoldersLinksAndNothingAreToldApart) {
  const TemporaryFolder folder;
  write_file(folder / "file", "x");
  fs::create_symlink("file", folder / "link");
  fs::create_symlink("nothing", folder / "dangling");
  EXPECT_TRUE(path_exists(folder / "link") && is_file(folder / "link"));
  EXPECT_TRUE(is_folder(folder.path()) && !is_file(folder.path()) && !is_folder(folder / "file"));
  EXPECT_FALSE(path_exists(folder / "dangling") || path_exists(folder / "file/below"));
  EXPECT_EQ(folder_entries(folder.path()).size(), 3u);
  EXPECT_TRUE(same_place(folder / "link", folder / "file"));
  EXPECT_FALSE(same_place(folder / "nothing", folder / "nothing"));
}

TEST(Paths, LoopsLongNamesAndNulsAreInputErrorsThatSayWhatToDo) {
  const TemporaryFolder folder;
  fs::create_symlink("loop", folder / "loop");
  for (const auto& look : {path_exists, is_file, is_folder}) {
    EXPECT_ERROR(InputError, look(folder / "loop"), "links lead in a circle");
    EXPECT_ERROR(InputError, look(std::string(300, 'x')), "was a text given");
    EXPECT_ERROR(InputError, look(std::string("a\0b", 3)), "NUL");
  }
  EXPECT_ERROR(InputError, folder_entries(folder / "loop"), "circle");
}

}  // namespace
}  // namespace fovea::paths_test
