#include "launcher/ranks/output.h"

#include "launcher/options.h"
#include "launcher/ranks/report.h"
#include "tests/common.h"

namespace zerorun::testing {
namespace {

void drain(OutputQueue& queue) {
  while (queue.pending()) queue.write_some();
}

// A rank's stream, and the end of the pipe at which the rank writes.
struct Source : RankStream {
  explicit Source(OutputRoute route) : Source(make_pipe(), std::move(route)) {}
  Source(Pipe pipe, OutputRoute route)
      : RankStream(std::move(pipe.read), std::move(route)), rank(std::move(pipe.write)) {}
  void write(std::string_view text) const {
    ASSERT_EQ(::write(rank.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void send(std::string_view text) {
    write(text);
    read_some();
  }

  FileDescriptor rank;
};

// A queue that writes to a file.
struct Output : ::testing::Test {
  Output()
      : file_(open((scratch_.path() / "out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600)),
        queue_(file_.get()) {}

  std::string written() {
    drain(queue_);
    return scratch_.read("out");
  }

  Scratch scratch_;
  FileDescriptor file_;
  OutputQueue queue_;
};

TEST_F(Output, AnotherSourceNeverContinuesALine) {
  queue_.append(0, "step 1");
  queue_.append(0, "\rstep 2");
  queue_.append(1, "hello\n");
  queue_.append(0, "step 3\n");
  EXPECT_EQ(written(), "step 1\rstep 2\nhello\nstep 3\n");
}

TEST_F(Output, TrailingLinesAreThoseOfTheLastSource) {
  queue_.append(0, "a\n");
  queue_.append(1, "b\nc\n");
  queue_.append(1, "d\n");
  EXPECT_EQ(queue_.trailing_lines(1), 3U);
  EXPECT_EQ(queue_.trailing_lines(0), 0U);
  queue_.append(0, "e\n");
  EXPECT_EQ(queue_.trailing_lines(0), 1U);
  EXPECT_EQ(queue_.trailing_lines(1), 0U);
}

TEST_F(Output, EndOfStreamPassesTheUnfinishedLine) {
  Source stream({.queue = &queue_, .source = 0});
  stream.send("no newline");
  stream.rank.close();
  EXPECT_TRUE(stream.open());
  stream.read_some();
  EXPECT_FALSE(stream.open());
  EXPECT_EQ(written(), "no newline");
  EXPECT_THAT(stream.last_lines(), ElementsAre("no newline"));
}

TEST_F(Output, FinishDoesNotWaitForWritersThatRemain) {
  Source stream({.queue = &queue_, .source = 0});
  stream.write("first\nsecond");
  stream.finish();  // the write end is still open
  EXPECT_FALSE(stream.open());
  EXPECT_EQ(written(), "first\nsecond");
}

TEST_F(Output, ImmediateStreamsPassUnfinishedLines) {
  Source stream({.queue = &queue_, .source = 0, .immediate = true});
  stream.send("Name? ");
  EXPECT_EQ(written(), "Name? ");
  stream.send("10%\r20%\n");
  EXPECT_EQ(written(), "Name? 10%\r20%\n");
  EXPECT_THAT(stream.last_lines(), ElementsAre("20%"));
}

TEST_F(Output, PrefixedProgressBarsShowTheirFinalState) {
  Source stream({.queue = &queue_, .source = 1, .prefix = "> "});
  stream.send("10%\r20%\r30%\r\nnext\n");
  EXPECT_EQ(written(), "> 30%\n> next\n");
}

TEST_F(Output, UnprefixedTextIsNotChanged) {
  const std::string text("a\rb\0c\r\n\n\x1b[0m\n", 13);
  Source stream({.queue = &queue_, .source = 0});
  stream.send(text);
  EXPECT_EQ(written(), text);
}

TEST_F(Output, EndlessLinesAreBounded) {
  Source stream({.queue = &queue_, .source = 0});
  const std::string chunk(50000, 'x');
  for (int i = 0; i < 4; ++i) stream.send(chunk);
  EXPECT_GE(written().size(), 100000);
  for (const std::string& line : stream.last_lines()) EXPECT_LE(line.size(), 2000);
}

TEST_F(Output, AFullQueueMakesStreamsWait) {
  Source stream({.queue = &queue_, .source = 0});
  EXPECT_TRUE(stream.wants_data());
  queue_.append(1, std::string(size_t{2} << 20, 'x'));
  EXPECT_FALSE(stream.wants_data());
  drain(queue_);
  EXPECT_TRUE(stream.wants_data());
}

size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// The ranks write faster than the reader reads, so the queue is never empty.
TEST_F(Output, TextThatWasWrittenIsFreedWhileMoreIsWaiting) {
  const FileDescriptor nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
  OutputQueue queue(nowhere.get());
  const std::string chunk(size_t{1} << 16, 'x');
  constexpr size_t kAllBytes = size_t{64} << 20;
  const size_t before = resident_bytes();
  for (size_t printed = 0; printed < kAllBytes; printed += chunk.size()) {
    queue.append(0, chunk);
    while (queue.full()) queue.write_some();
    ASSERT_TRUE(queue.pending());
  }
  EXPECT_LT(resident_bytes(), before + kAllBytes / 4);
}

TEST_F(Output, LogFilesGetEverythingAndAreAppendedTo) {
  const std::string path = (scratch_.path() / "rank0.log").string();
  for (int job = 0; job < 2; ++job) {
    const auto log = std::make_shared<LogFile>(path);
    Source first({.source = 0, .log = log});
    Source second({.source = 0, .prefix = "> ", .log = log});
    first.write("out\n");
    first.finish();
    second.write("10%\r20%\n");
    second.finish();
  }
  EXPECT_EQ(scratch_.read("rank0.log"), "out\n10%\r20%\nout\n10%\r20%\n");
}

TEST_F(Output, AFullDiskUnderALogFileIsReportedOnceAndOneThatCannotBeOpenedIsAnError) {
  LogFile log("/dev/full");
  EXPECT_FALSE(log.write("text"));
  EXPECT_TRUE(log.write("text"));
  EXPECT_THROW(LogFile(scratch_.path().string()), ConfigError);
}

constexpr StreamPlan kShown = {.shown = true, .logged = false};
constexpr StreamPlan kLogged = {.shown = false, .logged = true};
constexpr StreamPlan kBoth = {.shown = true, .logged = true};

// The numbers are torchrun's: 0 neither, 1 standard output, 2 standard error, 3 both.
TEST(StreamPlan, RedirectsAndTeeNameStreamsByRankAndAFilterSilencesTheTerminalAlone) {
  struct Row {
    const char* redirects;
    const char* tee;
    int rank;  // the first one prints what a folder of logs takes, too
    RankStreams expected;
    std::vector<int> shown_ranks{};
  };
  for (const Row& row : std::to_array<Row>({{"", "", 0, {kBoth, kBoth}},
                                            {"", "", 1, {kLogged, kLogged}},
                                            {"1", "", 0, {kLogged, kShown}},
                                            {"3", "", 0, {kLogged, kLogged}},
                                            {"", "2", 1, {kShown, kBoth}},
                                            {"", "0:1,1:3", 0, {kBoth, kShown}},
                                            {"", "0:1,1:3", 1, {kBoth, kBoth}},
                                            {"", "0:1,1:3", 2, {kShown, kShown}},
                                            {"3", "1", 0, {kBoth, kLogged}},
                                            {"", "3", 0, {kLogged, kLogged}, {1}},
                                            {"", "3", 1, {kBoth, kBoth}, {1}}})) {
    OutputRequest output = {.log_dir = "logs", .redirects = row.redirects, .tee = row.tee};
    output.shown_ranks = row.shown_ranks;
    EXPECT_EQ(plan_streams(output, row.rank, row.rank == 0), row.expected)
        << row.redirects << " and " << row.tee << " of rank " << row.rank;
  }
}

TEST(StreamPlan, OtherTextIsAnError) {
  for (const char* text : {"", "4", "x", "0:4", "0:", ":1", "0:1,", "-1", "0:1,2"}) {
    EXPECT_THROW(check_streams("--tee", text), ConfigError) << text;
  }
}

// As waitpid reports them (wait(2)).
int exited(int code) { return W_EXITCODE(code, 0); }
int killed(int signal) { return W_EXITCODE(0, signal); }

RankFailure failure_with(int status, std::vector<std::string> last_lines = {}) {
  RankFailure failure;
  failure.rank = 1;
  failure.ranks = 4;
  failure.pid = 4242;
  failure.host = "node7";
  failure.status = status;
  failure.last_lines = std::move(last_lines);
  return failure;
}

TEST(FailureReport, EndsWithHowAndWhy) {
  EXPECT_EQ(describe_failure(failure_with(killed(SIGSEGV), {"Traceback", "Error: x"})),
            "[zerorun] last lines of rank 1:\n"
            "  Traceback\n"
            "  Error: x\n"
            "[zerorun] error: rank 1 of 4 (pid 4242 on node7) was killed by SIGSEGV (signal 11)\n"
            "[zerorun] likely cause: a bug in native code (segmentation fault), or a tensor that "
            "shares the memory of a gathered parameter (stage 3) and was read after the gather: "
            "clone() it before\n");
}

TEST(FailureReport, DoesNotRepeatLinesOfASingleRank) {
  RankFailure failure = failure_with(exited(1), {"Error: x"});
  failure.rank = 0;
  failure.ranks = 1;
  EXPECT_EQ(describe_failure(failure),
            "[zerorun] error: rank 0 of 1 (pid 4242 on node7) failed with exit code 1\n");
}

TEST(LikelyCause, OfASignalIsTheOomKillerKill9OrSharedMemory) {
  RankFailure failure = failure_with(killed(SIGKILL));
  EXPECT_THAT(likely_cause(failure), HasSubstr("kill -9"));
  failure.oom_kill = true;
  EXPECT_THAT(likely_cause(failure), HasAll("OOM killer", Not(HasSubstr("kill -9"))));
  failure = failure_with(killed(SIGBUS));
  failure.shm_available = 3 << 20;
  EXPECT_THAT(likely_cause(failure), HasSubstr("/dev/shm has 3 MiB left"));
}

TEST(LikelyCause, IsReadFromWhatTheRankSaid) {
  const auto cause_of = [](const char* line) {
    return likely_cause(failure_with(exited(2), {"usage: x.py", line}));
  };
  EXPECT_THAT(cause_of("RuntimeError: No CUDA GPUs are available"), HasSubstr("GPU is missing"));
  EXPECT_EQ(cause_of("ValueError: x"), "");
}

TEST(LikelyCause, OfAMissingPackageIsThePython) {
  for (const std::string missing : {"torch", "zerorun"}) {
    RankFailure failure =
        failure_with(exited(1), {"ModuleNotFoundError: No module named '" + missing + "'"});
    failure.no_package = "/usr/bin/python3 does not have the package zerorun; do this";
    EXPECT_EQ(likely_cause(failure), missing == "torch" ? "" : failure.no_package);
  }
}

}  // namespace
}  // namespace zerorun::testing
