#include "os/whole_file.h"

#include <sys/resource.h>

#include "os/text_file.h"
#include "tests/common.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;

struct WriteWholeFile : ::testing::Test {
  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(root_), {}));
  }

  const Scratch folder_;
  const fs::path root_ = folder_.path();
};

TEST_F(WriteWholeFile, CreatesAndReplacesWithTheSamePermissionsAndLeavesNothingElse) {
  const fs::path file = root_ / "file";
  for (const char* text : {"first, the longer one\n", "second\n", ""}) {
    write_whole_file(file, text);
    EXPECT_EQ(folder_.read("file"), text);
    EXPECT_EQ(files(), 1U);
  }
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  write_whole_file(file, "new");
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(WriteWholeFile, FollowsLinksAlsoToWhatDoesNotExistYet) {
  fs::create_directory(root_ / "inner");
  fs::create_symlink("inner/target", root_ / "relative");
  fs::create_symlink(root_ / "relative", root_ / "chain");
  for (const char* text : {"first", "second"}) {
    write_whole_file(root_ / "chain", text);
    EXPECT_TRUE(fs::is_symlink(root_ / "chain"));
    EXPECT_TRUE(fs::is_symlink(root_ / "relative"));
    EXPECT_EQ(folder_.read("inner/target"), text);
  }
  fs::create_symlink("loop", root_ / "loop");
  EXPECT_THROW(write_whole_file(root_ / "loop", "text"), IoError);
}

TEST_F(WriteWholeFile, WritesToWhatIsNoRegularFile) {
  const fs::path pipe = root_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = folder_.read("pipe"); });
  write_whole_file(pipe, "through the pipe");
  reader.join();
  EXPECT_EQ(read, "through the pipe");
  EXPECT_TRUE(fs::is_fifo(pipe));
  // A link, so that a mistake replaces the link and not the device.
  fs::create_symlink("/dev/null", root_ / "null");
  write_whole_file(root_ / "null", "gone");
  EXPECT_TRUE(fs::is_symlink(root_ / "null"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(WriteWholeFile, WritesToAnOpenFileWhereThatStands) {
  const fs::path file = folder_.write("file", "before ");
  const int descriptor = ::open(file.c_str(), O_WRONLY);
  ASSERT_EQ(::lseek(descriptor, 0, SEEK_END), 7);
  const fs::path link = root_ / "stdout";
  fs::create_symlink("/proc/self/fd/" + std::to_string(descriptor), link);
  write_whole_file(link, "text ");
  ASSERT_EQ(::write(descriptor, "after", 5), 5);
  ::close(descriptor);
  EXPECT_EQ(folder_.read("file"), "before text after");
  EXPECT_TRUE(fs::is_symlink(link));
}

TEST_F(WriteWholeFile, OnAFullDiskKeepsTheOldContentAndLeavesNothing) {
  const fs::path file = folder_.write("file", "old");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 100'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(write_whole_file(file, std::string(200'000, 'x')), IoError);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(folder_.read("file"), "old");
  EXPECT_EQ(files(), 1U);
  folder_.write("file.tmp", "the user's own");
  write_whole_file(file, "new");
  EXPECT_EQ(folder_.read("file"), "new");
  EXPECT_EQ(folder_.read("file.tmp"), "the user's own");
  EXPECT_EQ(files(), 2U);
}

TEST_F(WriteWholeFile, RefusesAFullDeviceAFolderAndAMissingOne) {
  EXPECT_THROW(write_whole_file("/dev/full", "text"), IoError);
  EXPECT_THROW(write_whole_file(root_, "text"), IoError);
  const fs::path file = root_ / "missing" / "file";
  EXPECT_EQ(error_of<IoError>([&] { write_whole_file(file, "text"); }),
            "cannot write " + file.string() + ": No such file or directory");
}

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
