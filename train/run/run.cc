#include "train/run/run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "comm/agreement.h"
#include "core/check.h"
#include "core/log.h"
#include "core/observers.h"
#include "os/whole_file.h"

namespace zerorun::train {

namespace {

RunFolder claim_folder(const TrainOptions& options, Communicator& comm, Device& device) {
  RunFolder folder;
  Agreement(comm, device.inline_stream()).run("folder of the run", [&] {
    // Checked before an earlier run is renamed, in case this run cannot start.
    const std::string metrics =
        options.metrics.empty() ? "" : metrics_path(options.metrics, comm.rank());
    if (!metrics.empty()) prepare_output_file(metrics, "--metrics");
    if (comm.rank() == 0 && !options.save.empty()) folder = RunFolder(options, job_name());
  });
  return folder;
}

class TrainingRun {
 public:
  TrainingRun(const RunSetup& setup, Communicator& comm, Device& device, StopSignal& stop)
      : setup_(setup),
        options_(setup.options),
        comm_(comm),
        stop_(stop),
        folder_(claim_folder(options_, comm, device)),
        trainer_(setup, comm, device),
        saves_(options_.save_every, options_.keep_every) {}

  int run() {
    load();
    const int signal = train();
    if (signal == 0) finish();
    return signal;
  }

 private:
  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    print(fmt::format(format, std::forward<Args>(args)...));
  }

  void print(const std::string& text) {
    if (progress_) {
      progress_->event(text);
    } else if (is_first()) {
      std::puts(text.c_str());
      std::fflush(stdout);
    }
  }

  // Runs work that may fail on some ranks only; all ranks throw the first error.
  void agree(std::string_view what, const std::function<void()>& work) {
    Agreement(comm_, device().inline_stream()).run(what, work);
  }

  // Checks the conditions of saving now, instead of failing after hours of training.
  void prepare_saves() {
    if (options_.save.empty()) return;
    const std::string& moved = folder_.moved_to();
    if (!moved.empty()) say("{} held another run, now in {}", options_.save, moved);
    const uint64_t needed = saved_nbytes(trainer_, comm_);
    agree("room for a checkpoint", [&] {
      if (is_first()) folder_.check_room(needed);
    });
    if (!options_.save_async) return;
    AsyncOptions options;
    options.buffer_nbytes = static_cast<uint64_t>(setup_.config.checkpoint.async_buffer_size);
    options.peer_timeout =
        std::chrono::milliseconds(static_cast<int64_t>(setup_.config.comm_timeout_s * 1e3));
    saver_.emplace(trainer_.engine().states(), comm_, options);
  }

  void load() {
    prepare_saves();
    if (options_.resume.empty()) {
      trainer_.initialize();
    } else {
      const std::string warning = resume_run(options_.resume, setup_, trainer_, comm_);
      if (!warning.empty()) log().warning("{}", warning);
      if (options_.resume == options_.save) saves_.saved(trainer_.position().step);
    }
    if (setup_.corpus->is_text() && setup_.model.vocabulary > setup_.corpus->vocabulary()) {
      log().warning("the text is read as bytes, the model has {} tokens: it will learn bytes anew",
                    setup_.model.vocabulary);
    }
    describe();
    open_outputs();
  }

  void describe() {
    const Config& config = setup_.config;
    const BatchShape& batch = setup_.batch;
    const std::string libraries = trainer_.kernels().libraries();
    say("{} rank{} on {} ({}{}{}), ZeRO stage {}, {}, {} of {:.1f} M parameters",
        comm_.world_size(), comm_.world_size() == 1 ? "" : "s", device().name(), comm_.transport(),
        libraries.empty() ? "" : "; ", libraries, config.zero.stage,
        name_of(config.precision.param_dtype), options_.model.empty() ? "a GPT-2" : options_.model,
        static_cast<double>(parameter_count(setup_.model)) / 1e6);
    say("data: {}, {} tokens; a step: {} rank{} x {} x {} sequences of {}", setup_.data_description,
        setup_.corpus->size(), batch.world_size, batch.world_size == 1 ? "" : "s",
        batch.accumulation_steps, batch.micro_batch, batch.seq_len);
    if (trainer_.position().step > 0) {
      say("resumed from {} after step {}", options_.resume, trainer_.position().step);
    }
  }

  void open_outputs() {
    if (!options_.metrics.empty()) open_metrics();
    open_timeline();
    if (!is_first()) return;
    progress_.emplace(stdout, ProgressOptions{.first_step = trainer_.position().step,
                                              .last_step = options_.steps,
                                              .steps_per_print = setup_.config.steps_per_print,
                                              .breakdown = setup_.config.wall_clock_breakdown,
                                              .terminal = ::isatty(STDOUT_FILENO) == 1});
  }

  void open_metrics() {
    agree("outputs of the run", [&] {
      const std::string path = metrics_path(options_.metrics, comm_.rank());
      if (path.empty()) return;
      metrics_.emplace(path,
                       options_.resume.empty() ? Metrics::Mode::replace : Metrics::Mode::append);
    });
    trainer_.measure_peak();
    const auto about = run_description(setup_, comm_, device());
    write_metrics([&] { metrics_->begin(comm_.rank(), comm_.world_size(), about); });
    figures_.emplace(trainer_.engine(), comm_);
  }

  void open_timeline() {
    if (options_.trace.empty()) return;
    const int64_t step = trainer_.position().step;
    const auto within = [&](int64_t wanted) { return std::min(wanted, options_.steps); };
    TimelineOptions timeline{
        .file = options_.trace, .first_step = within(step + 2), .last_step = within(step + 4)};
    if (!options_.trace_steps.empty()) {
      timeline.first_step = options_.trace_steps.front();
      timeline.last_step = options_.trace_steps.back();
    }
    agree("timeline of the run", [&] { trainer_.trace(std::move(timeline)); });
  }

  int train() {
    stop_.hold();
    if (!options_.resume.empty() && trainer_.position().step >= options_.steps) {
      say("no step to take: {} is after step {}, and --steps {} counts from the start of its run",
          options_.resume, trainer_.position().step, options_.steps);
    }
    int signal = 0;
    while (signal == 0 && trainer_.position().step < options_.steps) {
      const Trainer::Outcome outcome = trainer_.step(stop_.received());
      after_step(outcome.report);
      signal = outcome.signal;
    }
    if (signal != 0) {
      if (!options_.save.empty()) save_model();
      say("stopped by a signal after step {}{}", trainer_.position().step,
          options_.save.empty() ? "; nothing is saved, since --save is \"\""
                                : fmt::format("; continue with --resume {}", options_.save));
    }
    trace([](Timeline& timeline) { return timeline.finish(); });
    return signal;
  }

  void after_step(const StepReport& report) {
    const auto due = [&](int64_t every) { return every > 0 && report.step % every == 0; };
    if (progress_) progress_->report(report);
    write_metrics([&] {
      auto figures = figures_->take();
      figures["checkpoint_ms"] = std::exchange(saving_ms_, 0.0);
      metrics_->write(report, figures);
    });
    trace([&](Timeline& timeline) { return timeline.end_step(report.step); });
    if (due(options_.eval_every) && setup_.batches->evaluation_sequences() > 0) {
      const double loss = trainer_.evaluate();
      say("step {}: evaluation loss {:.4f}", report.step, loss);
    }
    const bool is_free = !saver_ || saver_->poll();  // throws if a save has failed
    if (report.step == options_.steps) return;       // finish() saves
    if (saves_.is_time(report.step, is_free)) save();
  }

  // A metrics file that cannot be written does not end the run.
  void write_metrics(const std::function<void()>& write) {
    if (!metrics_) return;
    try {
      write();
    } catch (const IoError& error) {
      log().warning("{}; the run goes on without it", error.what());
      metrics_.reset();
    }
  }

  // `work` returns a line about the timeline's file, or "".
  void trace(const std::function<std::string(Timeline&)>& work) {
    if (trainer_.timeline() == nullptr) return;
    try {
      const std::string line = work(*trainer_.timeline());
      if (!line.empty()) print(line);
    } catch (const IoError& error) {
      log().warning("{}; the run goes on without a timeline", error.what());
    }
  }

  void save() {
    if (saves_.last_step() == trainer_.position().step) return;
    if (!std::exchange(has_config_, true)) {
      agree("folder of the run", [&] {
        if (is_first()) write_hf_config(options_.save, setup_.model);
      });
    }
    const double begin = steady_seconds();
    trainer_.engine().enter(StepPart::save);
    save_run(options_.save, setup_, trainer_, comm_, saver_ ? &*saver_ : nullptr);
    trainer_.engine().enter(StepPart::compute);
    saving_ms_ += 1e3 * (steady_seconds() - begin);
    saves_.saved(trainer_.position().step);
  }

  void save_model() {
    save();
    write_hf_weights(options_.save, trainer_.engine(), comm_);
    if (saver_) saver_->wait();
    if (saves_.put_off() == 0) return;
    say("{} of {} checkpoints were put off to a later step: the one before was still "
        "being written",
        saves_.put_off(), saves_.due());
  }

  void finish() {
    const uint64_t hash = trainer_.engine().states().parameter_hash();
    write_metrics([&] { metrics_->finish(hash); });
    if (!options_.save.empty()) {
      save_model();
      say("saved in {}: the model (config.json, model.safetensors) and its checkpoint",
          options_.save);
    }
    // A signal that arrived during saving was deferred and takes effect now.
    stop_.release();
    // A resumed run continues with its earlier loss scale, so its only step may overflow
    // legitimately.
    const int64_t taken = trainer_.position().step;
    const int64_t skipped = trainer_.engine().states().progress().skipped_steps;
    if (options_.resume.empty() && taken > 0 && skipped == taken) {
      fail<NumericError>(
          "no step was applied: none of the {} gradients was finite, so the parameters are as "
          "before. {}",
          taken,
          setup_.config.precision.param_dtype == DType::fp16
              ? fmt::format(
                    "The loss scale is {:g} now: give more --steps until it fits, or a lower "
                    "/fp16/initial_scale_power",
                    trainer_.engine().loss_scale())
              : "Look at the data, or lower the learning rate");
    }
    if (!setup_.prompt.empty()) sample();
  }

  void sample() {
    if (!options_.logits.empty()) write_logits();
    const std::vector<int32_t> generated = generate(trainer_.model(), setup_.prompt,
                                                    {.tokens = options_.sample_tokens,
                                                     .temperature = options_.temperature,
                                                     .top_k = options_.top_k,
                                                     .seed = options_.seed});
    std::string text;
    for (const std::vector<int32_t>& part : {setup_.prompt, generated}) {
      for (const int32_t token : part) {
        text += setup_.corpus->is_text() ? std::string(1, static_cast<char>(token))
                                         : fmt::format("{} ", token);
      }
    }
    print("sample:\n" + sample_text(text));
  }

  void write_logits() {
    agree("logits", [&] {
      if (setup_.prompt.size() > static_cast<size_t>(setup_.batch.seq_len)) {
        fail<ConfigError>("--logits: the prompt has {} tokens, sequences have {}",
                          setup_.prompt.size(), setup_.batch.seq_len);
      }
    });
    const std::span<const float> logits = trainer_.model().logits(setup_.prompt);
    agree("logits", [&] {
      if (!is_first()) return;
      write_whole_file(options_.logits,
                       {reinterpret_cast<const char*>(logits.data()), logits.size_bytes()});
    });
  }

  bool is_first() const { return comm_.rank() == 0; }
  Logger log() const { return Logger(comm_.rank(), comm_.world_size()); }
  Device& device() { return trainer_.engine().device(); }

  const RunSetup& setup_;
  const TrainOptions& options_;
  Communicator& comm_;
  StopSignal& stop_;
  RunFolder folder_;  // on rank 0; claimed before the memory of the model is allocated
  Trainer trainer_;
  std::optional<AsyncSaver> saver_;  // with --save_async
  std::optional<Metrics> metrics_;
  std::optional<RankFigures> figures_;  // for them
  std::optional<Progress> progress_;    // rank 0
  SaveSchedule saves_;
  double saving_ms_ = 0.0;   // since the last step
  bool has_config_ = false;  // the --save folder has this run's config.json
};

}  // namespace

bool SaveSchedule::is_time(int64_t step, bool is_free) {
  const auto is_multiple = [step](int64_t of) { return of > 0 && step % of == 0; };
  const bool is_due = is_multiple(every_);
  due_ += is_due ? 1 : 0;
  if (!is_due && !is_waiting_) return false;
  if (is_free || (is_due && is_multiple(keep_every_))) return true;
  put_off_ += is_due ? 1 : 0;
  is_waiting_ = true;
  return false;
}

void SaveSchedule::saved(int64_t step) {
  is_waiting_ = false;
  last_step_ = step;
}

std::function<int()> prepare_run(const RunSetup& setup, Communicator& comm, Device& device,
                                 StopSignal& stop) {
  return [run = std::make_shared<TrainingRun>(setup, comm, device, stop)] { return run->run(); };
}

}  // namespace zerorun::train
