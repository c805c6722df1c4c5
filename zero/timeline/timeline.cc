#include "zerorun/timeline.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "core/check.h"
#include "core/observers.h"
#include "os/whole_file.h"
#include "zero/timeline/span_log.h"

namespace zerorun {

namespace {

using Json = nlohmann::ordered_json;

// The facts about each rank's part, as words of an agreement.
struct PartFacts {
  static constexpr double kNone = -1.0;
  double reductions = kNone;
  double gathers = kNone;
  int64_t dropped = 0;
  int64_t untimed = 0;
  int64_t nbytes = 0;
};
constexpr size_t kFactWords = sizeof(PartFacts) / sizeof(int64_t);
using FactWords = std::array<int64_t, kFactWords>;

class TimelineImpl final : public Timeline {
 public:
  TimelineImpl(Engine& engine, Communicator& comm, TimelineOptions options, int64_t step)
      : options_(std::move(options)),
        engine_(engine),
        comm_(comm),
        agreement_(comm, engine.device().inline_stream()),
        step_(step) {
    if (options_.first_step < 1 || options_.first_step > options_.last_step) {
      fail<ConfigError>("timeline: got steps {} to {}, expected the first and the last step",
                        options_.first_step, options_.last_step);
    }
    if (comm.rank() == 0) prepare_output_file(options_.file, "timeline");
    begin_if_due();
  }

  bool is_recording() const override { return log_->is_open(); }
  void add(std::string_view name, std::string_view of, double begin_s, double end_s) override {
    log_->add({.row = std::string(kProgramStream),
               .name = std::string(name),
               .of = std::string(of),
               .begin_s = begin_s,
               .end_s = end_s});
  }
  std::string end_step(int64_t step) override {
    step_ = step;
    if (is_recording()) {
      const double now = steady_seconds();
      log_->add({.kind = SpanKind::step,
                 .row = "steps",
                 .name = fmt::format("step {}", step),
                 .begin_s = step_began_s_,
                 .end_s = now});
      step_began_s_ = now;
      if (step >= options_.last_step) return finish();
    }
    begin_if_due();
    return "";
  }
  std::string finish() override;

 private:
  void begin_if_due();
  // This rank's time at which the ranks' timelines begin. Collective.
  double common_origin();
  std::string write(const std::vector<PartFacts>& facts, const std::vector<int64_t>& parts) const;

  const TimelineOptions options_;
  Engine& engine_;
  Communicator& comm_;
  Agreement agreement_;
  const std::shared_ptr<SpanLog> log_ = std::make_shared<SpanLog>();
  std::vector<Subscription> subscriptions_;
  double began_s_ = 0;
  double step_began_s_ = 0;
  int64_t step_;  // the last one taken
  bool finished_ = false;
};

void TimelineImpl::begin_if_due() {
  if (finished_ || is_recording() || step_ + 1 < options_.first_step ||
      step_ >= options_.last_step) {
    return;
  }
  step_began_s_ = began_s_ = steady_seconds();
  log_->open();
  subscriptions_ = observe_all(
      engine_, comm_, [log = log_](const WorkSpan& span) { log->add_work(span); },
      [log = log_](const CollectiveSpan& span) { log->add_collective(span); });
}

double TimelineImpl::common_origin() {
  double aligned_s = 0;
  if (comm_.local_world_size() < comm_.world_size()) {
    // Hosts have clocks of their own; their ranks leave a barrier at about the same time.
    comm_.barrier(engine_.device().inline_stream(), "timeline").synchronize();
    aligned_s = steady_seconds();
  }
  const auto own = std::bit_cast<int64_t>(began_s_ - aligned_s);
  double first = began_s_ - aligned_s;
  for (const int64_t word : agreement_.gather({&own, 1})) {
    first = std::min(first, std::bit_cast<double>(word));
  }
  return aligned_s + first;
}

std::string TimelineImpl::finish() {
  if (std::exchange(finished_, true)) return "";
  const bool recorded = is_recording();
  subscriptions_.clear();
  const SpanLog::Content content = log_->take();
  if (!recorded) {
    if (comm_.rank() > 0) return "";
    return fmt::format("no timeline in {}: this run took none of the steps {} to {}", options_.file,
                       options_.first_step, options_.last_step);
  }
  const HiddenParts hidden = hidden_parts(content.spans);
  const std::string own = trace_events(content.spans, comm_.rank(), common_origin());
  const auto facts_words = std::bit_cast<FactWords>(PartFacts{
      hidden.reductions.value_or(PartFacts::kNone), hidden.gathers.value_or(PartFacts::kNone),
      content.dropped, content.untimed, std::ssize(own)});
  const std::vector<int64_t> all = agreement_.gather(facts_words);
  std::vector<PartFacts> facts;
  size_t most = 0;
  for (size_t at = 0; at < all.size(); at += kFactWords) {
    FactWords words{};
    std::copy_n(all.begin() + static_cast<ptrdiff_t>(at), kFactWords, words.begin());
    facts.push_back(std::bit_cast<PartFacts>(words));
    most = std::max(most, static_cast<size_t>(facts.back().nbytes));
  }
  std::vector<int64_t> part((most + sizeof(int64_t) - 1) / sizeof(int64_t));
  std::memcpy(part.data(), own.data(), own.size());
  const std::vector<int64_t> parts = agreement_.gather(part);
  return comm_.rank() == 0 ? write(facts, parts) : "";
}

std::string TimelineImpl::write(const std::vector<PartFacts>& facts,
                                const std::vector<int64_t>& parts) const {
  const auto known = [](double part) { return part < 0 ? Json() : Json(part); };
  const size_t stride = parts.size() / facts.size();
  std::string events;
  Json hidden = Json::array();
  int64_t dropped = 0;
  int64_t untimed = 0;
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    if (rank > 0) events += ",\n";
    events.append(reinterpret_cast<const char*>(parts.data() + rank * stride),
                  static_cast<size_t>(facts[rank].nbytes));
    hidden.push_back(
        {{"reductions", known(facts[rank].reductions)}, {"gathers", known(facts[rank].gathers)}});
    dropped += facts[rank].dropped;
    untimed += facts[rank].untimed;
  }
  const int64_t last = std::min(step_, options_.last_step);
  const Json about = {{"steps", {options_.first_step, last}},
                      {"hidden", hidden},
                      {"dropped_events", dropped},
                      {"untimed_collectives", untimed}};
  write_whole_file(options_.file, fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\n"
                                              "\"traceEvents\":[\n{}]}}\n",
                                              about.dump(), events));
  const auto least = [&](double PartFacts::*part) {
    const double value = std::ranges::min(facts, {}, part).*part;
    return value < 0 ? std::string("none") : fmt::format("{:.0f} %", 100 * value);
  };
  std::string line = fmt::format(
      "timeline of steps {} to {} in {}; overlapped with computation: {} of the reductions' time, "
      "{} of "
      "the gathers'",
      options_.first_step, last, options_.file, least(&PartFacts::reductions),
      least(&PartFacts::gathers));
  if (dropped > 0) {
    line += fmt::format("; {} spans are not in it, for a rank has room for {}", dropped,
                        SpanLog::kMaxSpans);
  }
  if (untimed > 0) line += fmt::format("; {} collectives on GPU streams have no times", untimed);
  return line;
}

}  // namespace

std::unique_ptr<Timeline> Timeline::create(Engine& engine, Communicator& comm,
                                           TimelineOptions options, int64_t step) {
  return std::make_unique<TimelineImpl>(engine, comm, std::move(options), step);
}

}  // namespace zerorun
