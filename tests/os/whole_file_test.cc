#include "os/whole_file.h"

#include <sys/resource.h>

#include "tests/error_of.h"
#include "tests/scratch.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

size_t entries_of(const fs::path& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(WriteWholeFile, CreatesAndReplacesAndLeavesNothingElse) {
  const Scratch folder;
  const fs::path file = folder.path() / "file";
  for (const char* text : {"first, the longer one\n", "second\n", ""}) {
    write_whole_file(file, text);
    EXPECT_EQ(content_of(file), text);
    EXPECT_EQ(entries_of(folder.path()), 1U);
  }
}

TEST(WriteWholeFile, NamesTheFileWhoseFolderIsMissing) {
  const Scratch folder;
  const fs::path file = folder.path() / "missing" / "file";
  EXPECT_EQ(error_of<IoError>([&] { write_whole_file(file, "text"); }),
            "cannot write " + file.string() + ": No such file or directory");
}

TEST(WriteWholeFile, KeepsThePermissions) {
  const Scratch folder;
  const fs::path file = folder.write("file", "old");
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  write_whole_file(file, "new");
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(content_of(file), "new");
}

TEST(WriteWholeFile, FollowsLinksAlsoToWhatDoesNotExistYet) {
  const Scratch folder;
  const fs::path root = folder.path();
  fs::create_directory(root / "inner");
  fs::create_symlink("inner/target", root / "relative");
  fs::create_symlink(root / "relative", root / "chain");
  for (const char* text : {"first", "second"}) {
    write_whole_file(root / "chain", text);
    EXPECT_TRUE(fs::is_symlink(root / "chain"));
    EXPECT_TRUE(fs::is_symlink(root / "relative"));
    EXPECT_EQ(content_of(root / "inner" / "target"), text);
  }
  fs::create_symlink("loop", root / "loop");
  EXPECT_THROW(write_whole_file(root / "loop", "text"), IoError);
}

TEST(WriteWholeFile, WritesToWhatIsNoRegularFile) {
  const Scratch folder;
  const fs::path pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = content_of(pipe); });
  write_whole_file(pipe, "through the pipe");
  reader.join();
  EXPECT_EQ(read, "through the pipe");
  EXPECT_TRUE(fs::is_fifo(pipe));
  // A link, so that a mistake replaces the link and not the device.
  fs::create_symlink("/dev/null", folder.path() / "null");
  write_whole_file(folder.path() / "null", "gone");
  EXPECT_TRUE(fs::is_symlink(folder.path() / "null"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(WriteWholeFile, WritesToAnOpenFileWhereThatStands) {
  const Scratch folder;
  const fs::path file = folder.write("out", "before ");
  const int descriptor = ::open(file.c_str(), O_WRONLY);
  ASSERT_EQ(::lseek(descriptor, 0, SEEK_END), 7);
  const fs::path link = folder.path() / "stdout";
  fs::create_symlink("/proc/self/fd/" + std::to_string(descriptor), link);
  write_whole_file(link, "text ");
  ASSERT_EQ(::write(descriptor, "after", 5), 5);
  ::close(descriptor);
  EXPECT_EQ(content_of(file), "before text after");
  EXPECT_TRUE(fs::is_symlink(link));
}

TEST(WriteWholeFile, OnAFullDiskKeepsTheOldContentAndLeavesNothing) {
  const Scratch folder;
  const fs::path file = folder.write("file", "old");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 100'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(write_whole_file(file, std::string(200'000, 'x')), IoError);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(content_of(file), "old");
  EXPECT_EQ(entries_of(folder.path()), 1U);
  const fs::path other = folder.write("file.tmp", "the user's own");
  write_whole_file(file, "new");
  EXPECT_EQ(content_of(file), "new");
  EXPECT_EQ(content_of(other), "the user's own");
  EXPECT_EQ(entries_of(folder.path()), 2U);
}

TEST(WriteWholeFile, RefusesAFullDeviceAndAFolder) {
  const Scratch folder;
  EXPECT_THROW(write_whole_file("/dev/full", "text"), IoError);
  EXPECT_THROW(write_whole_file(folder.path(), "text"), IoError);  // a folder
}

}  // namespace
}  // namespace zerorun::testing
