// Every class of broken file, each with an error that names the file, the tensor and what was
// expected; and the writer's files read back.
#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/error.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/testing/temporary_folder.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string file_of(std::string_view header, std::size_t data_bytes) {
  const auto size = static_cast<std::uint64_t>(header.size());
  std::string file(8, '\0');
  std::memcpy(file.data(), &size, sizeof(size));
  file += header;
  file.append(data_bytes, 'x');
  return file;
}

std::vector<std::string> problems_of(std::string_view file) {
  ProblemList problems;
  parse_safetensors(std::as_bytes(std::span(file)), "a.safetensors", problems);
  return {problems.all().begin(), problems.all().end()};
}

std::vector<std::string> header_problems(std::string_view header, std::size_t data_bytes) {
  return problems_of(file_of(header, data_bytes));
}

TEST(Safetensors, ReadsAWellFormedFile) {
  const std::string file = file_of(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},)"
      R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
      R"("empty":{"dtype":"U8","shape":[0,7],"data_offsets":[4,4]},)"
      R"("scalar":{"dtype":"F8_E4M3","shape":[],"data_offsets":[12,13]}}   )",
      13);
  ProblemList problems;
  const SafetensorsHeader header =
      parse_safetensors(std::as_bytes(std::span(file)), "a.safetensors", problems);
  EXPECT_THAT(problems.all(), testing::IsEmpty());
  ASSERT_EQ(header.tensors.size(), 4U);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].dtype, DType::kBF16);
  EXPECT_EQ(header.tensors[1].num_bytes, 8);
  EXPECT_EQ(header.tensors[1].offset, static_cast<std::int64_t>(file.size()) - 13 + 4);
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(Safetensors, TruncatedInTheLengthTheHeaderOrTheData) {
  EXPECT_THAT(problems_of("abc"), ElementsAre(AllOf(HasSubstr("a.safetensors"),
                                                    HasSubstr("3 bytes"), HasSubstr("truncated"))));
  EXPECT_THAT(problems_of(""), ElementsAre(HasSubstr("truncated")));
  std::string file = file_of("{}", 0);
  file.pop_back();
  EXPECT_THAT(problems_of(file), ElementsAre(HasSubstr("truncated")));
  EXPECT_THAT(header_problems(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 15),
              ElementsAre(AllOf(HasSubstr("a.safetensors: w"), HasSubstr("[0, 16]"),
                                HasSubstr("15 bytes"), HasSubstr("truncated"))));
}

TEST(Safetensors, HeaderLongerThanTheFormatAllows) {
  std::string file(8, '\xFF');
  EXPECT_THAT(problems_of(file), ElementsAre(HasSubstr("expected at most 104857600")));
}

TEST(Safetensors, Overlapping) {
  EXPECT_THAT(header_problems(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                              R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                              6),
              ElementsAre(AllOf(HasSubstr("a.safetensors: b overlaps a"), HasSubstr("2 bytes"))));
}

TEST(Safetensors, ATensorInsideAnother) {
  EXPECT_THAT(header_problems(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                              R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},)"
                              R"("c":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})",
                              8),
              ElementsAre(HasSubstr("b overlaps a"), HasSubstr("c overlaps a")));
}

TEST(Safetensors, OversizedWithBytesBetweenOrBehindTensors) {
  EXPECT_THAT(header_problems(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 9),
              ElementsAre(AllOf(HasSubstr("5 bytes after the last tensor"))));
  EXPECT_THAT(header_problems(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})", 7),
              ElementsAre(AllOf(HasSubstr("3 bytes before a"), HasSubstr("no tensor"))));
}

TEST(Safetensors, SizeIsNotShapeTimesDType) {
  EXPECT_THAT(header_problems(R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,12]}})", 12),
              ElementsAre(AllOf(HasSubstr("a.safetensors: w"), HasSubstr("12 bytes"),
                                HasSubstr("expected 16"), HasSubstr("F32 [2, 2]"))));
}

TEST(Safetensors, ShapeOverflows) {
  for (const char* shape : {"[4611686018427387904,4]", "[18446744073709551615]",
                            "[4294967296,4294967296,4294967296]", "[9223372036854775807,2]"}) {
    EXPECT_THAT(header_problems(std::string(R"({"w":{"dtype":"U8","shape":)") + shape +
                                    R"(,"data_offsets":[0,0]}})",
                                0),
                ElementsAre(AllOf(HasSubstr("w: shape"), HasSubstr("overflows"))))
        << shape;
  }
}

TEST(Safetensors, DuplicateNames) {
  EXPECT_THAT(header_problems(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                              R"("w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                              2),
              ElementsAre(AllOf(HasSubstr("w: name given twice"))));
}

TEST(Safetensors, UnknownDType) {
  EXPECT_THAT(header_problems(R"({"w":{"dtype":"Q4_K","shape":[1],"data_offsets":[0,1]}})", 1),
              ElementsAre(AllOf(HasSubstr("w: dtype 'Q4_K'"), HasSubstr("F8_E4M3"))));
}

TEST(Safetensors, OffsetsBackwardsOrOfTheWrongCount) {
  for (const char* offsets : {"[4,0]", "[0]", "[]", "[0,4,8]"}) {
    EXPECT_THAT(
        header_problems(
            std::string(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":)") + offsets + "}}", 4),
        ElementsAre(AllOf(HasSubstr("w: data_offsets"), HasSubstr("[begin, end]"))));
  }
  EXPECT_THAT(
      header_problems(
          R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[18446744073709551615,18446744073709551615]}})",
          4),
      ElementsAre(HasSubstr("past the file's 4 bytes")));
}

TEST(Safetensors, MissingFields) {
  EXPECT_THAT(header_problems(R"({"w":{"dtype":"U8","shape":[1]}})", 1),
              ElementsAre(HasSubstr("w: no data_offsets")));
  EXPECT_THAT(header_problems(R"({"w":{}})", 0), ElementsAre(HasSubstr("w: no dtype")));
}

TEST(Safetensors, HeaderOfAnotherForm) {
  for (const char* header :
       {"[]",
        "3",
        "\"x\"",
        "{\"w\":1}",
        "{\"w\":[]}",
        "{\"w\":\"x\"}",
        "{\"w\":null}",
        R"({"w":{"dtype":1,"shape":[],"data_offsets":[0,0]}})",
        R"({"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}})",
        R"({"w":{"dtype":"U8","shape":[1.5],"data_offsets":[0,0]}})",
        R"({"w":{"dtype":"U8","shape":[[1]],"data_offsets":[0,0]}})",
        R"({"w":{"dtype":"U8","shape":["1"],"data_offsets":[0,0]}})",
        R"({"w":{"dtype":"U8","shape":{},"data_offsets":[0,0]}})",
        R"({"w":{"dtype":"U8","shape":1,"data_offsets":[0,0]}})",
        R"({"w":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})",
        R"({"w":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}})",
        R"({"w":{"dtype":"U8","strides":[1],"shape":[],"data_offsets":[0,1]}})",
        R"({"__metadata__":{"a":1}})",
        R"({"__metadata__":[]})",
        "{",
        "",
        "{}x",
        "{\"\xFF\":1}"}) {
    EXPECT_EQ(header_problems(header, 0).size(), 1U) << header;
  }
}

TEST(Safetensors, DeeplyNestedHeaderIsRefusedWithoutRecursion) {
  std::string header = "{\"w\":";
  header.append(5'000'000, '[');
  EXPECT_EQ(header_problems(header, 0).size(), 1U);
}

TEST(Safetensors, ControlCharactersOfNamesAreNotPrinted) {
  const auto problems =
      header_problems(R"({"\u001b[2Jx":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 0);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_THAT(problems[0], HasSubstr("?[2Jx"));
}

TEST(Safetensors, AllProblemsOfAFileAreReported) {
  EXPECT_EQ(header_problems(R"({"a":{"dtype":"X","shape":[1],"data_offsets":[0,1]},)"
                            R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,1]},)"
                            R"("c":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}})",
                            1)
                .size(),
            3U);
}

TEST(Safetensors, OpeningThrowsWithPathAndProblem) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "bad.safetensors";
  std::ofstream(path, std::ios::binary) << "abc";
  try {
    SafetensorsFile file(path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidCheckpoint);
    EXPECT_THAT(error.text(), HasSubstr("bad.safetensors"));
  }
  EXPECT_THROW(SafetensorsFile(folder.path() / "absent.safetensors"), Error);
}

TEST(SafetensorsWriter, FilesReadBackAndAreAligned) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "w.safetensors";
  SafetensorsWriter writer(path, {{"codes", DType::kU8, {3}},
                                  {"x", DType::kF32, {2, 2}},
                                  {"half", DType::kBF16, {3}},
                                  {"none", DType::kF32, {0}}});
  const std::vector<float> x = {1, 2, 3, 4};
  const std::vector<std::uint16_t> half = {5, 6, 7};
  const std::string codes = "abc";
  writer.append("codes", std::as_bytes(std::span(codes)));
  writer.append("x", std::as_bytes(std::span(x)).first(8));
  writer.append("half", std::as_bytes(std::span(half)));
  writer.append("x", std::as_bytes(std::span(x)).subspan(8));
  writer.finish();

  const SafetensorsFile file(path);
  EXPECT_EQ(static_cast<std::int64_t>(std::filesystem::file_size(path)), writer.file_bytes());
  EXPECT_EQ(file.metadata().at("format"), "pt");
  for (const StoredTensor& tensor : file.tensors()) {
    EXPECT_EQ(tensor.offset % dtype_bytes(tensor.dtype), 0) << tensor.name;
  }
  EXPECT_EQ(std::memcmp(file.view("x").data, x.data(), 16), 0);
  EXPECT_EQ(std::memcmp(file.view("codes").data, codes.data(), 3), 0);
  EXPECT_EQ(file.view("x").shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_THROW(file.view("y"), Error);
  EXPECT_EQ(file.find("y"), nullptr);
}

TEST(SafetensorsWriter, RefusesARepeatedNameAndAMissingFolder) {
  const TemporaryFolder folder;
  EXPECT_THROW(
      SafetensorsWriter(folder.path() / "w", {{"x", DType::kU8, {1}}, {"x", DType::kU8, {1}}}),
      Error);
  EXPECT_THROW(SafetensorsWriter(folder.path() / "no" / "w", {}), Error);
}

TEST(Printable, CutsLongTextOnACharacter) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "é";
  const std::string shown = printable(text);
  EXPECT_EQ(shown.size(), 203U);
  EXPECT_TRUE(shown.ends_with("…"));
}

}  // namespace
}  // namespace winnow
