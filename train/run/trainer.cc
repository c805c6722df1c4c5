#include "train/run/trainer.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/observers.h"
#include "device/plugin.h"
#include "train/cpu/cpu_kernels.h"
#include "train/model/kernels.h"

namespace zerorun::train {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kEvaluationSequences = 256;  // maximum number of sequences per evaluation
constexpr size_t kMaxSums = 4;
// What all ranks report if ranks have received several: the first of these.
constexpr std::array kStopSignals = {SIGTERM, SIGHUP, SIGINT};

double milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

std::optional<int64_t> attention_workspace(const TrainOptions& options) {
  if (!options.attention_workspace) return std::nullopt;
  return std::min<int64_t>(*options.attention_workspace, INT64_MAX >> 20) << 20;
}

KernelOptions kernel_options(const RunSetup& setup) {
  const TrainOptions& options = setup.options;
  const auto has = [&](std::string_view epilogue) {
    return options.epilogues == "all" || options.epilogues == epilogue;
  };
  return {.dtype = setup.config.precision.param_dtype,
          .tf32 = options.tf32,
          .attention_workspace = attention_workspace(options),
          .fast_attention = options.fast_attention,
          .gelu_epilogue = has("gelu"),
          .bias_gradient_epilogue = has("bias_gradient")};
}

int64_t peak_rss_bytes() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

std::unique_ptr<LrSchedule> make_schedule(const Config& config,
                                          std::span<const ParameterGroup> groups) {
  std::vector<double> lrs;
  for (const ParameterGroup& group : groups) lrs.push_back(group.lr);
  return make_lr_schedule(config.scheduler, std::move(lrs));
}

// Throws ConfigError for an option that would have no effect.
void check(const KernelOptions& options, bool on_host) {
  const bool fp32 = options.dtype == DType::fp32;
  const bool separate = !options.gelu_epilogue || !options.bias_gradient_epilogue;
  const bool limited = options.attention_workspace.has_value();
  const auto refuse_if = [&](bool condition, const char* why) {
    if (condition) throw ConfigError(fmt::format(fmt::runtime(why), name_of(options.dtype)));
  };
  refuse_if(options.tf32 && on_host,
            "--tf32: products on the CPU are fp32; it needs --accelerator cuda");
  refuse_if(options.tf32 && !fp32,
            "--tf32: products of {} parameters are not in TF32; it needs --dtype fp32");
  refuse_if(separate && on_host,
            "--epilogues: those are of products on GPUs; it needs --accelerator cuda");
  refuse_if(options.fast_attention && on_host,
            "--fast_attention: cuDNN computes on GPUs only; it needs --accelerator cuda");
  refuse_if(options.fast_attention && fp32,
            "--fast_attention: cuDNN's attention is for 16 bits, and parameters are {}; it needs "
            "--dtype bf16 or fp16");
  refuse_if(options.fast_attention && limited,
            "--fast_attention takes none of the memory that --attention_workspace limits: leave "
            "one of them out");
  refuse_if(limited && on_host,
            "--attention_workspace: cuDNN computes on GPUs only; it needs --accelerator cuda");
  refuse_if(limited && fp32,
            "--attention_workspace: cuDNN's attention is for 16 bits, and parameters are {}; it "
            "needs --dtype bf16 or fp16");
}

}  // namespace

RankSums::RankSums(Device& device, Communicator& comm)
    : device_(device),
      comm_(comm),
      on_host_(device.allocate_pinned(kMaxSums * sizeof(float))),
      on_device_(device.allocate(kMaxSums * sizeof(float), MemoryCategory::other)) {}

TensorView RankSums::put(std::span<const float> values) {
  ZR_CHECK(values.size() <= kMaxSums, "{} values are added over the ranks", values.size());
  values_ = view_of(on_device_, DType::fp32, std::ssize(values));
  const TensorView host = view_of(on_host_, DType::fp32, values_.numel);
  std::copy(values.begin(), values.end(), host.as<float>());
  device_.upload(device_.inline_stream(), host.data, values_);
  return values_;
}

void RankSums::start(std::string_view label) {
  Stream& stream = device_.inline_stream();
  stream.wait(comm_.all_reduce(values_, values_, ReduceOp::sum, Output::overwrite, stream, label));
  device_.download(stream, values_, on_host_.data());
  there_ = stream.record();
}

void RankSums::finish(std::span<float> sums) {
  if (!there_.ready()) there_.synchronize();  // which would wait for a GPU that is done, too
  std::copy_n(view_of(on_host_, DType::fp32, std::ssize(sums)).as<const float>(), sums.size(),
              sums.begin());
}

StreamClock::StreamClock(Device& device)
    : device_(device), thread_(device.is_host() ? nullptr : make_worker_stream("zerorun-clock")) {}

void StreamClock::mark() {
  if (!thread_) {
    device_.inline_stream().synchronize();
    time_ = Clock::now();
    return;
  }
  thread_->wait(device_.inline_stream().record());
  thread_->submit([this] { time_ = Clock::now(); });
}

StreamClock::Time StreamClock::read() {
  if (thread_) thread_->synchronize();
  return time_;
}

Trainer::Trainer(const RunSetup& setup, Communicator& comm, Device& device)
    : Trainer(setup, comm, device, make_kernels(device, kernel_options(setup))) {}

Trainer::Trainer(const RunSetup& setup, Communicator& comm, Device& device,
                 std::unique_ptr<Kernels> kernels)
    : setup_(setup),
      comm_(comm),
      device_(device),
      kernels_(std::move(kernels)),
      engine_(Engine::create(
          setup.config, device, comm, parameter_specs(setup.model),
          parameter_groups(setup.config.optimizer.lr, setup.config.optimizer.weight_decay))),
      schedule_(make_schedule(setup.config, engine_->groups())),
      parameters_(*engine_),
      model_(setup.model, {setup.batch.micro_batch, setup.batch.seq_len, setup.options.recompute},
             parameters_, device, *kernels_),
      sums_(device, comm),
      clock_(device) {}

void Trainer::initialize() {
  const Initializer initializer(setup_.model, setup_.options.seed);
  engine_->initialize_parameters([&](ParameterId id, int64_t begin, std::span<float> out) {
    if (setup_.weights) {
      setup_.weights->fill(id, begin, out);
    } else {
      initializer.fill(id, begin, out);
    }
  });
}

void Trainer::follow_schedule() {
  const int64_t applied = engine_->states().progress().step_count;
  const std::span<ParameterGroup> groups = engine_->groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    const ScheduledValues values = schedule_->values(applied, static_cast<int>(i));
    groups[i].lr = static_cast<float>(values.lr);
    if (!values.betas) continue;
    groups[i].beta1 = values.betas->beta1;
    groups[i].beta2 = values.betas->beta2;
  }
}

void Trainer::measure_peak() {
  std::array<float, 1> peak = {static_cast<float>(
      measure_peak_flops(device_, *kernels_, setup_.config.precision.param_dtype))};
  sums_.add(peak, "peak of the ranks");
  peak_flops_ = peak[0];
}

void Trainer::trace(TimelineOptions options) {
  timeline_ = Timeline::create(*engine_, comm_, std::move(options), position_.step);
  parameters_.use_timeline(timeline_.get());
}

double Trainer::accumulate(double loss_scale) {
  double data_s = 0.0;
  for (int64_t micro_step = 0; micro_step < setup_.batch.accumulation_steps; ++micro_step) {
    const double begin = steady_seconds();
    engine_->enter(StepPart::data);
    const Batch batch = setup_.batches->training(position_.samples, micro_step);
    const double loaded = steady_seconds();
    data_s += loaded - begin;
    engine_->enter(StepPart::compute);
    model_.forward_backward(batch, loss_scale);
    if (timeline_ != nullptr) {
      timeline_->add("data", "", begin, loaded);
      timeline_->add("forward and backward", "", loaded, steady_seconds());
    }
    engine_->end_micro_step();
  }
  return data_s;
}

Trainer::Outcome Trainer::step(int received) {
  engine_->take_timings();
  const Clock::time_point start = Clock::now();
  follow_schedule();
  const double data_s = accumulate(engine_->loss_scale());
  clock_.mark();
  const EngineTimings during = engine_->take_timings();
  // The ranks exchange the loss and received signals before the engine's step, because afterwards
  // this would wait for that step's gathers. When that step has waited for its gradient norm, this
  // is done, too.
  // Of the losses, and of ranks with each signal.
  std::array<float, 1 + kStopSignals.size()> sums{};
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    sums.at(1 + i) = received == kStopSignals.at(i) ? 1.0F : 0.0F;
  }
  const TensorView values = sums_.put(sums);
  model_.move_loss(values.slice(0, 1));
  sums_.start("loss of the step");
  const StepResult result = engine_->step();
  const EngineTimings after = engine_->take_timings();
  sums_.finish(sums);
  const Clock::time_point end = Clock::now();
  const Clock::time_point computed = std::min(clock_.read(), end);

  ++position_.step;
  position_.samples += setup_.batch.global_batch();
  StepReport report;
  report.step = position_.step;
  report.samples = position_.samples;
  report.loss = sums[0] / static_cast<double>(setup_.batch.accumulation_steps * comm_.world_size());
  report.lr = engine_->groups()[0].lr;
  report.grad_norm = result.grad_norm;
  report.clip_factor = result.clip_factor;
  report.loss_scale = result.loss_scale;
  report.skipped = !result.applied;
  report.skipped_steps = engine_->states().progress().skipped_steps;
  StepTimes& times = report.times;
  times.step_ms = milliseconds(start, end);
  times.data_ms = 1e3 * data_s;
  times.reduce_ms = 1e3 * (during.reduce_s + after.reduce_s);
  times.gather_ms = 1e3 * (during.gather_s + after.gather_s);
  times.fwd_bwd_ms =
      milliseconds(start, computed) - times.data_ms - 1e3 * (during.reduce_s + during.gather_s);
  // The engine's step may have waited for the backward pass, too.
  times.optimizer_ms = std::min(1e3 * after.optimizer_s, milliseconds(computed, end));
  report.tokens_per_s =
      static_cast<double>(setup_.batch.global_batch() * setup_.batch.seq_len) / times.step_ms * 1e3;
  if (peak_flops_ > 0.0) {
    report.mfu =
        report.tokens_per_s * flops_per_token(setup_.model, setup_.batch.seq_len) / peak_flops_;
  }
  report.model_state_bytes = engine_->model_state_bytes();
  report.peak_rss_bytes = peak_rss_bytes();
  int signal = 0;
  for (size_t i = 0; i < kStopSignals.size() && signal == 0; ++i) {
    if (sums.at(1 + i) > 0.0F) signal = kStopSignals.at(i);
  }
  return {report, signal};
}

double Trainer::evaluate() {
  const int64_t sequences = std::min(setup_.batches->evaluation_sequences(), kEvaluationSequences);
  const int64_t micro_batch = setup_.batch.micro_batch;
  double loss = 0.0;
  int64_t count = 0;
  // All ranks make the same number of passes, so that all take part in gathers.
  for (int64_t first = 0; first < sequences; first += micro_batch * comm_.world_size()) {
    const int64_t own = first + comm_.rank() * micro_batch;
    const bool idle = own >= sequences;
    const Batch batch = setup_.batches->evaluation(idle ? 0 : own);
    const double mean = model_.loss(batch);
    if (idle) continue;
    loss += mean * static_cast<double>(batch.tokens.size());
    count += std::ssize(batch.tokens);
  }
  std::array<float, 2> sums = {static_cast<float>(loss), static_cast<float>(count)};
  sums_.add(sums, "loss of the evaluation");
  return double{sums[0]} / sums[1];
}

std::unique_ptr<Kernels> make_kernels(Device& device, const KernelOptions& options) {
  check(options, device.is_host());
  if (device.is_host()) return std::make_unique<CpuKernels>();
  const SharedLibrary library = open_plugin("libzerorun_train_cuda.so");
  return plugin_entry<CudaKernelsPlugin>(library, kCudaKernelsEntry).make(device, options);
}

}  // namespace zerorun::train
