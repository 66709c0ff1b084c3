// What becomes a document, and what bad input is answered with.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>
#include <zstd.h>

#include "tests/data/data_fixture.h"

namespace fovea::reading_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class Reading : public DataTest {
 protected:
  std::vector<std::string> documents(const DataConfig& config) const {
    return all_texts(prepare(config)->sources()[0]);
  }
  std::vector<std::string> documents(const std::string& name = "") const {
    return documents(config(name));
  }
};

std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string long_text(size_t lines) {
  std::string text;
  for (size_t i = 0; i < lines; ++i)
    text += fmt::format("line {} of many, {}\n", i, i * i * 2654435761u);
  return text;
}

TEST_F(Reading, AFolderIsReadRecursivelyInOrderOfPaths) {
  write("b.txt", "second\n");
  write("a/deep/er.md", "first\n");
  write("c", "third\n");
  EXPECT_THAT(documents(), ElementsAre("first\n", "second\n", "third\n"));
}

TEST_F(Reading, HiddenFilesAndFoldersAreLeftOut) {
  write("seen.txt", "seen\n");
  write(".hidden.txt", "hidden\n");
  write(".git/config", "hidden\n");
  EXPECT_THAT(documents(), ElementsAre("seen\n"));
}

TEST_F(Reading, LoopsOfLinksEndAndLinksToNothingAreCounted) {
  write("a/text.txt", "only once\n");
  fs::create_directory_symlink(folder_ / "text", text("a/loop"));
  fs::create_symlink(text("nowhere"), text("broken"));
  const auto corpus = prepare();
  EXPECT_THAT(all_texts(corpus->sources()[0]), ElementsAre("only once\n"));
  EXPECT_EQ(corpus->sources()[0].store.counts().skipped_links, 1);
}

TEST_F(Reading, IncludeTakesEndingsAlsoOfCompressedFiles) {
  write("a.py", "python\n");
  write("b.py.gz", gzip("zipped python\n"));
  write("c.txt", "text\n");
  DataConfig some = config();
  some.sources[0].include = {".py"};
  EXPECT_THAT(documents(some), ElementsAre("python\n", "zipped python\n"));
  some.sources[0].include = {".rs"};
  EXPECT_THAT(message<InputError>(some), AllOf(HasSubstr(".rs"), HasSubstr("3 files left out")));
}

TEST_F(Reading, BinariesInAFolderAreSkippedAndCounted) {
  write("a.bin", std::string("ab\0cd", 5));
  write("b.txt", "text that is read\n");
  write("c.utf16", "\xFF\xFEx");
  const auto corpus = prepare();
  EXPECT_THAT(all_texts(corpus->sources()[0]), ElementsAre("text that is read\n"));
  EXPECT_EQ(corpus->sources()[0].store.counts().skipped_binary, 2);
}

TEST_F(Reading, AFolderOfBinariesOnlyIsAnInputErrorThatCountsThem) {
  write("a.bin", std::string("ab\0cd", 5));
  write("b.bin", std::string("\0", 1));
  EXPECT_THAT(message<InputError>(), HasSubstr("2 binary files"));
}

TEST_F(Reading, ANamedBinaryIsAnInputErrorWithThePlace) {
  write("model.bin", std::string("ab\0cd", 5));
  EXPECT_THAT(message<InputError>("model.bin"),
              AllOf(HasSubstr("model.bin"), HasSubstr("NUL byte at byte 2")));
  write("utf16.txt", "\xFF\xFEx");
  EXPECT_THAT(message<InputError>("utf16.txt"), HasSubstr("iconv -f UTF-16"));
}

TEST_F(Reading, ANulFarInsideATextFileMakesItBinaryToo) {
  write("a.txt", "text\n");
  write("late.bin", long_text(100000) + std::string("\0", 1));
  EXPECT_THAT(documents(), ElementsAre("text\n"));
}

TEST_F(Reading, AMissingPathIsAnInputErrorThatNamesIt) {
  EXPECT_THAT(message<InputError>("nowhere.txt"),
              AllOf(HasSubstr("nowhere.txt"), HasSubstr("data.sources")));
}

TEST_F(Reading, EmptyFilesAreCountedAndAnEmptyCorpusIsAnInputError) {
  write("empty.txt", "");
  write("mark.txt", "\xEF\xBB\xBF");
  EXPECT_THAT(message<InputError>(), HasSubstr("2 empty documents"));
  EXPECT_THAT(message<InputError>("empty.txt"), HasSubstr("got no document"));
  fs::create_directories(text("void"));
  EXPECT_THAT(message<InputError>("void"), HasSubstr("found none"));
}

TEST_F(Reading, LineEndsStayAndAByteOrderMarkGoes) {
  write("a.txt", "\xEF\xBB\xBFone\r\ntwo\r\n\xEF\xBB\xBFthree");
  EXPECT_THAT(documents(), ElementsAre("one\r\ntwo\r\n\xEF\xBB\xBFthree"));
}

TEST_F(Reading, InvalidUtf8FailsWithThePlaceUnlessToldOtherwise) {
  write("a.txt", "caf\xE9 au lait\n");
  write("b.txt", "fine\n");
  DataConfig policy = config();
  EXPECT_THAT(message<InputError>(policy),
              AllOf(HasSubstr("a.txt"), HasSubstr("0xe9 at byte 3"), HasSubstr("iconv")));
  policy.invalid_utf8 = InvalidUtf8::replace;
  EXPECT_THAT(documents(policy), ElementsAre("caf\xEF\xBF\xBD au lait\n", "fine\n"));
  policy.invalid_utf8 = InvalidUtf8::skip;
  EXPECT_THAT(documents(policy), ElementsAre("fine\n"));
  EXPECT_EQ(prepare(policy)->sources()[0].store.counts().skipped_invalid, 1);
}

TEST_F(Reading, AVeryLongLineOfWideCharactersIsReadWhole) {
  std::string line = "x";
  while (line.size() < (9u << 20)) line += "\xE2\x82\xAC";
  write("a.txt", line);
  EXPECT_EQ(documents("a.txt").at(0), line);
}

TEST_F(Reading, CompressedTextEqualsPlainText) {
  const std::string text = long_text(60000);
  write("a.txt", text);
  write("b.txt.gz", gzip(text));
  write("c.txt.zst", zstd(text));
  write("d.txt.gz", gzip(text.substr(0, 1000)) + gzip(text.substr(1000)));
  write("e.txt.zst", zstd(text.substr(0, 1000)) + zstd(text.substr(1000)));
  for (const std::string& document : documents()) EXPECT_EQ(document, text);
  const auto stored = prepare()->sources()[0].store;
  for (const StoredDocument& document : stored.documents())
    EXPECT_EQ(document.hash, stored.documents()[0].hash);
}

TEST_F(Reading, TruncatedOrDamagedCompressionNamesTheFile) {
  const std::string text = long_text(5000);
  const auto cut = [](const std::string& bytes) { return bytes.substr(0, bytes.size() - 5); };
  write("cut.txt.gz", cut(gzip(text)));
  write("cut.txt.zst", cut(zstd(text)));
  write("empty.gz", "");
  write("empty.zst", "");
  write("plain.gz", text);
  write("plain.zst", text);
  for (const char* name : {"cut.txt.gz", "cut.txt.zst", "empty.gz", "empty.zst"}) {
    EXPECT_THAT(message<InputError>(name), AllOf(HasSubstr(name), HasSubstr("ends too early")));
  }
  for (const char* name : {"plain.gz", "plain.zst"})
    EXPECT_THAT(message<InputError>(name), HasSubstr(name));
  std::string damaged = gzip(text);
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x55);
  write("damaged.gz", damaged);
  EXPECT_THAT(message<InputError>("damaged.gz"), HasSubstr("damaged.gz"));
}

TEST_F(Reading, EachJsonLineIsADocument) {
  write("a.jsonl",
        "{\"text\": \"one\\n\", \"id\": 1}\n\n  \r\n{\"meta\": {\"text\": \"inner\"}, \"text\": "
        "\"tw\\u00f6\"}\r\n"
        "{\"text\": \"no end of line\"}");
  EXPECT_THAT(documents("a.jsonl"), ElementsAre("one\n", "tw\xC3\xB6", "no end of line"));
}

TEST_F(Reading, AnotherFieldAndCompressionWorkForJsonLines) {
  write("a.jsonl.zst", zstd("{\"body\": \"first\"}\n{\"body\": \"second\"}\n"));
  DataConfig other = config("a.jsonl.zst");
  other.sources[0].field = "body";
  EXPECT_THAT(documents(other), ElementsAre("first", "second"));
}

TEST_F(Reading, ABadJsonLineFailsWithFileAndLineOrIsSkippedAndCounted) {
  const std::vector<std::string> bad = {"{\"text\": \"cut",
                                        "[1, 2]",
                                        "\"text\"",
                                        "{\"text\": 7}",
                                        "{\"text\": null}",
                                        "{\"text\": [\"x\"]}",
                                        "{\"other\": \"x\"}",
                                        "{\"text\": \"\\ud800\"}",
                                        "{}}"};
  for (const std::string& line : bad) {
    write("a.jsonl", "{\"text\": \"good one\"}\n" + line + "\n{\"text\": \"good two\"}\n");
    DataConfig policy = config("a.jsonl");
    EXPECT_THAT(message<InputError>(policy),
                AllOf(HasSubstr("a.jsonl:2"), HasSubstr("data.bad_lines")))
        << line;
    policy.bad_lines = BadLines::skip;
    EXPECT_THAT(documents(policy), ElementsAre("good one", "good two")) << line;
    EXPECT_EQ(prepare(policy)->sources()[0].store.counts().skipped_lines, 1);
  }
}

TEST_F(Reading, AMissingFieldShowsTheNearestKey) {
  write("a.jsonl", "{\"texts\": \"x\", \"id\": 3}\n");
  EXPECT_THAT(message<InputError>("a.jsonl"),
              AllOf(HasSubstr("did you mean 'texts'"), HasSubstr("keys here: texts, id")));
}

TEST_F(Reading, NulInAJsonStringIsACharacterAndLongLinesAreWhole) {
  const std::string huge(3 << 20, 'h');
  write("a.jsonl", "{\"text\": \"a\\u0000b\"}\n{\"text\": \"" + huge + "\"}\n");
  EXPECT_THAT(documents("a.jsonl"), ElementsAre(std::string("a\0b", 3), huge));
}

TEST_F(Reading, InvalidUtf8InAJsonLineFollowsItsPolicy) {
  write("a.jsonl", "{\"text\": \"fine\"}\n{\"text\": \"caf\xE9\"}\n");
  DataConfig policy = config("a.jsonl");
  EXPECT_THAT(message<InputError>(policy), AllOf(HasSubstr("a.jsonl:2"), HasSubstr("UTF-8")));
  policy.invalid_utf8 = InvalidUtf8::replace;
  EXPECT_THAT(documents(policy), ElementsAre("fine", "caf\xEF\xBF\xBD"));
  policy.invalid_utf8 = InvalidUtf8::skip;
  EXPECT_THAT(documents(policy), ElementsAre("fine"));
}

}  // namespace
}  // namespace fovea::reading_test
