#include "launcher/options.h"
#include "launcher/ranks/output.h"
#include "tests/common.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

constexpr StreamPlan kShown = {.shown = true, .logged = false};
constexpr StreamPlan kLogged = {.shown = false, .logged = true};
constexpr StreamPlan kBoth = {.shown = true, .logged = true};

OutputRequest request(std::string redirects, std::string tee, std::string log_dir = "logs") {
  return {.log_dir = std::move(log_dir), .redirects = std::move(redirects), .tee = std::move(tee)};
}

TEST(StreamPlan, WithoutFilesEverythingIsShown) {
  EXPECT_EQ(plan_streams({}, 3, false), (RankStreams{kShown, kShown}));
}

TEST(StreamPlan, ALogFolderTakesAllAndTheFirstRankStillPrints) {
  EXPECT_EQ(plan_streams(request("", ""), 0, true), (RankStreams{kBoth, kBoth}));
  EXPECT_EQ(plan_streams(request("", ""), 1, false), (RankStreams{kLogged, kLogged}));
}

// The numbers are torchrun's: 0 neither, 1 standard output, 2 standard error, 3 both.
TEST(StreamPlan, RedirectsAndTeeNameStreamsByRank) {
  EXPECT_EQ(plan_streams(request("1", ""), 0, true), (RankStreams{kLogged, kShown}));
  EXPECT_EQ(plan_streams(request("3", ""), 0, true), (RankStreams{kLogged, kLogged}));
  EXPECT_EQ(plan_streams(request("", "2"), 1, false), (RankStreams{kShown, kBoth}));
  EXPECT_EQ(plan_streams(request("", "0:1,1:3"), 0, true), (RankStreams{kBoth, kShown}));
  EXPECT_EQ(plan_streams(request("", "0:1,1:3"), 1, false), (RankStreams{kBoth, kBoth}));
  EXPECT_EQ(plan_streams(request("", "0:1,1:3"), 2, false), (RankStreams{kShown, kShown}));
  EXPECT_EQ(plan_streams(request("3", "1"), 0, true), (RankStreams{kBoth, kLogged}));
}

TEST(StreamPlan, AFilterSilencesTheTerminalAlone) {
  OutputRequest output = request("", "3");
  output.shown_ranks = {1};
  EXPECT_EQ(plan_streams(output, 0, true), (RankStreams{kLogged, kLogged}));
  EXPECT_EQ(plan_streams(output, 1, false), (RankStreams{kBoth, kBoth}));
}

TEST(StreamPlan, OtherTextIsAnError) {
  for (const char* text : {"0", "3", "0:1", "0:1,7:3"})
    EXPECT_NO_THROW(check_streams("--tee", text));
  for (const char* text : {"", "4", "x", "0:4", "0:", ":1", "0:1,", "-1", "0:1,2"}) {
    EXPECT_THROW(check_streams("--tee", text), ConfigError) << text;
  }
}

}  // namespace
}  // namespace zerorun
