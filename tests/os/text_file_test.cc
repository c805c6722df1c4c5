#include "os/text_file.h"

#include "tests/error_of.h"
#include "tests/scratch.h"

namespace zerorun::testing {
namespace {

TEST(TextFile, IsReadWholeUpToTheLimitAndErrorsNameThePathAndTheReason) {
  const Scratch folder;
  const std::string content(100'000, 'x');
  const auto path = folder.write("text", content);
  std::string text;
  EXPECT_EQ(try_read_text(path, content.size(), text), 0);
  EXPECT_EQ(text, content);
  EXPECT_EQ(try_read_text(path, content.size() - 1, text), EFBIG);
  EXPECT_EQ(try_read_text(folder.path(), 1, text), EISDIR);
  const auto error_of = [](const std::filesystem::path& file) {
    return testing::error_of<IoError>([&] { read_text(file, 100'000); });
  };
  EXPECT_EQ(error_of(path), "");
  EXPECT_THAT(error_of(folder.write("long", content + "x")), HasSubstr("long is longer than 1"));
  EXPECT_THAT(error_of(folder.path() / "none"), HasSubstr("none: No such file"));
  const std::string pipe = folder.path() / "pipe";  // opening it would wait for a writer
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(error_of(pipe), pipe + " is not a regular file");
}

TEST(TextFile, APipeIsReadToItsEndAndWithoutAWriterIsAnError) {
  const Scratch folder;
  const std::string pipe = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::string text = "before";
  EXPECT_EQ(try_read_text(pipe, 100, text), ENODATA);
  EXPECT_EQ(text, "");

  const std::string content(300'000, 'x');  // more than a pipe holds
  // A reader from now on, so that no write is refused before the pipe is opened below.
  const int unused = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  const int end = ::open(pipe.c_str(), O_WRONLY | O_CLOEXEC);
  std::thread writing([&] {
    for (size_t done = 0; done < content.size();) {
      const ssize_t count = ::write(end, content.data() + done, content.size() - done);
      if (count > 0) done += static_cast<size_t>(count);
    }
    ::close(end);
  });
  EXPECT_EQ(try_read_text(pipe, content.size(), text), 0);
  writing.join();
  ::close(unused);
  EXPECT_EQ(text, content);
}

}  // namespace
}  // namespace zerorun::testing
