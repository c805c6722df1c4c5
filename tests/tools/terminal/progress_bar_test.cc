#include <poll.h>

#include "tests/common.h"
#include "tools/terminal/tool.h"

namespace zerorun {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

// The two ends of a terminal.
struct ProgressBarTest : ::testing::Test {
  ProgressBarTest() : reader_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    ::grantpt(reader_);
    ::unlockpt(reader_);
    terminal_ = File(std::fopen(::ptsname(reader_), "w"), &std::fclose);
  }
  ~ProgressBarTest() override { ::close(reader_); }

  // The text that was written so far.
  std::string seen() const {
    std::fflush(terminal_.get());
    std::string text;
    pollfd waits = {.fd = reader_, .events = POLLIN, .revents = 0};
    while (::poll(&waits, 1, 0) == 1 && (waits.revents & POLLIN) != 0) {
      char part[256];
      text.append(part, static_cast<size_t>(std::max<ssize_t>(::read(reader_, part, 256), 0)));
    }
    return text;
  }

  int reader_;
  File terminal_{nullptr, &std::fclose};
};

TEST_F(ProgressBarTest, SaysHowMuchIsDoneAndLeavesNothing) {
  {
    ProgressBar bar("reading", 200, terminal_.get(), 0ms);
    bar.add(100);
    EXPECT_THAT(seen(), HasSubstr("reading [###############               ]  50 % of 200 B"));
  }
  EXPECT_EQ(seen(), "\r\033[K");
}

TEST_F(ProgressBarTest, ShortWorkAndFilesHaveNone) {
  ProgressBar("reading", 200, terminal_.get()).add(100);
  EXPECT_EQ(seen(), "");
  const File file(std::tmpfile(), &std::fclose);
  ProgressBar("reading", 200, file.get(), 0ms).add(100);
  std::fflush(file.get());
  EXPECT_EQ(std::ftell(file.get()), 0);
}

}  // namespace
}  // namespace zerorun
