// Measures saving and loading for one rank with bf16 parameters and AdamW, as ratios of one run:
//   bench_checkpoint [DIRECTORY [MILLIONS]]   default: the working folder, 85 million parameters
// a save, over plain large direct writes of as many bytes there (with a sync); loads, over such
// reads of the checkpoint's own file, because what a virtual disk reads fast depends on the file;
// what a step waits for an asynchronous save, over one copy of the same bytes in memory; and what
// the system takes to give a load the memory for what it has to keep until all is verified. A load
// at the start of a program keeps the old masters, a load after steps also the optimizer states.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/check.h"
#include "os/file_descriptor.h"
#include "zerorun/checkpoint.h"
#include "zerorun/engine.h"

namespace zerorun::bench {
namespace {

namespace fs = std::filesystem;

constexpr double kGB = 1e9;
constexpr double kBytesPerParameter = 12;  // master and two states
constexpr int kRounds = 5;

// CPU time of all threads of this process, in the kernel too.
double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

// The least of several rounds.
struct Best {
  double seconds = std::numeric_limits<double>::infinity();
  double processor = std::numeric_limits<double>::infinity();

  void take(const std::function<void()>& work) {
    const double before = processor_seconds();
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    seconds = std::min(seconds, taken.count());
    processor = std::min(processor, processor_seconds() - before);
  }
};

// Writes a file, or reads one, past the cache of the system, eight mebibytes at a time.
class PlainFile {
 public:
  PlainFile(fs::path path, uint64_t nbytes, Device& device)
      : path_(std::move(path)), nbytes_(nbytes / kBlock * kBlock) {
    block_ = device.allocate_pinned(kBlock);
    std::memset(block_.data(), 1, kBlock);
  }
  ~PlainFile() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;

  void write() const {
    fs::remove(path_);
    const FileDescriptor file(
        ::open(path_.c_str(), O_CREAT | O_WRONLY | O_DIRECT | O_CLOEXEC, 0600));
    each_block([&](off_t at) { return ::pwrite(file.get(), block_.data(), kBlock, at); });
    if (::fsync(file.get()) != 0) fail<IoError>("cannot sync {}", path_.string());
  }
  // Reads the whole blocks of another file of about this size.
  void read(const fs::path& path) const {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    each_block([&](off_t at) { return ::pread(file.get(), block_.data(), kBlock, at); });
  }
  double nbytes() const { return static_cast<double>(nbytes_); }

 private:
  static constexpr size_t kBlock = size_t{8} << 20;

  void each_block(const std::function<ssize_t(off_t at)>& transfer) const {
    for (uint64_t at = 0; at < nbytes_; at += kBlock) {
      if (transfer(static_cast<off_t>(at)) == static_cast<ssize_t>(kBlock)) continue;
      fail<IoError>("{}: {}: direct transfers do not work there", path_.string(),
                    std::strerror(errno));
    }
  }

  const fs::path path_;
  const uint64_t nbytes_;
  Buffer block_;
};

// One rank with a model of so many parameters, in matrices.
class Model {
 public:
  explicit Model(double millions) {
    constexpr int64_t kWidth = 1024;
    const auto layers =
        std::max<int64_t>(1, static_cast<int64_t>(millions * 1e6 / kWidth / kWidth));
    std::vector<ParameterSpec> specs;
    for (int64_t i = 0; i < layers; ++i) {
      const std::string name = fmt::format("h.{}.weight", i);
      specs.push_back({name, {kWidth, kWidth}, name, 0, true, ""});
    }
    numel_ = static_cast<double>(layers * kWidth * kWidth);
    Config config;
    config.batch.accumulation_steps = 1;
    config.precision.param_dtype = DType::bf16;
    config.zero.stage = 2;
    engine_ = Engine::create(config, *device_, *comm_, specs, {ParameterGroup{}});
    engine_->initialize_parameters([](ParameterId id, int64_t begin, std::span<float> out) {
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = 1e-6F * static_cast<float>((begin + static_cast<int64_t>(i) + id) % 1'000'003);
      }
    });
  }

  // Optimizer states as after steps.
  void fill_states() {
    for (const StateInterval& interval : states().state_intervals()) {
      for (const TensorView& state : interval.states) {
        std::fill_n(state.as<float>(), state.numel, 1e-3F);
      }
    }
  }
  EngineStates& states() { return engine_->states(); }
  Communicator& comm() { return *comm_; }
  Device& device() { return *device_; }
  double nbytes() const { return numel_ * kBytesPerParameter; }

 private:
  const std::shared_ptr<Communicator> comm_ = make_communicator({});
  const std::shared_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Engine> engine_;
  double numel_ = 0;
};

// The pages of the checkpoint leave the cache, so that a load reads the disk.
void forget(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const FileDescriptor file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

fs::path file_of(const fs::path& checkpoint) {
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    if (entry.path().extension() == ".safetensors") return entry.path();
  }
  fail<IoError>("{} has no file of tensors", checkpoint.string());
}

// Fresh memory, until it can be written.
void touch(Device& device, double nbytes) {
  constexpr size_t kPage = 4096;
  const Buffer memory = device.allocate(static_cast<size_t>(nbytes), MemoryCategory::other);
  for (size_t at = 0; at < memory.nbytes(); at += kPage) memory.data()[at] = std::byte{1};
}

void run(const fs::path& directory, double millions) {
  Model model(millions);
  model.fill_states();
  const fs::path folder = directory / fmt::format("bench_checkpoint.{}", ::getpid());
  fs::create_directories(folder);
  PlainFile plain(folder / "plain", static_cast<uint64_t>(model.nbytes()), model.device());
  AsyncSaver saver(model.states(), model.comm());
  std::vector<std::byte> from(static_cast<size_t>(model.nbytes()), std::byte{1});
  std::vector<std::byte> to(from.size(), std::byte{2});
  const SaveOptions blocking{.directory = (folder / "run").string(), .tag = "blocking"};
  const SaveOptions beside{.directory = (folder / "run").string(), .tag = "beside"};
  const auto load_into = [&](Model& into, Best& best) {
    forget(folder / "run");
    best.take([&] { load_checkpoint(into.states(), into.comm(), blocking.directory, "blocking"); });
  };
  Best written, read, saved, resumed, loaded, copied, stalled, touched;
  for (int round = 0; round < kRounds; ++round) {  // in turn: the machine has other work
    written.take([&] { plain.write(); });
    saved.take([&] { save_checkpoint(model.states(), model.comm(), blocking); });
    const auto read_plainly = [&] {
      const fs::path file = file_of(folder / "run" / "blocking");
      read.take([&] { plain.read(file); });
    };
    const bool is_first = round % 2 == 0;  // what is read before may be in a cache of the host
    if (is_first) read_plainly();
    Model fresh(millions);
    load_into(fresh, resumed);
    load_into(model, loaded);
    if (!is_first) read_plainly();
    touched.take([&] { touch(model.device(), model.nbytes()); });
    copied.take([&] { std::memcpy(to.data(), from.data(), from.size()); });
    stalled.take([&] { saver.save(beside); });
    saver.wait();
  }
  fs::remove_all(folder);
  const double gb = model.nbytes() / kGB;
  const double disk_write = written.seconds * model.nbytes() / plain.nbytes();
  const double disk_read = read.seconds * model.nbytes() / plain.nbytes();
  fmt::print("{:.0f} M parameters, {:.2f} GB; the best of {} rounds\n", millions, gb, kRounds);
  const auto line = [&](const char* what, const Best& own, const char* against, double other) {
    fmt::print(
        "{:<18} {:7.3f} s, {:6.2f} GB/s, {:.2f} s of processors; {:<22} {:7.3f} s: {:.2f} x its "
        "rate\n",
        what, own.seconds, gb / own.seconds, own.processor, against, other, other / own.seconds);
  };
  line("save", saved, "direct writes and sync", disk_write);
  line("load at the start", resumed, "direct reads", disk_read);
  line("load after steps", loaded, "direct reads", disk_read);
  fmt::print("fresh memory       {:7.3f} s, {:6.2f} GB/s\n", touched.seconds, gb / touched.seconds);
  fmt::print(
      "asynchronous save  {:7.3f} s that a step waits; a copy in memory {:7.3f} s: {:.2f} x, "
      "{:+.0f} ms\n",
      stalled.seconds, copied.seconds, stalled.seconds / copied.seconds,
      1e3 * (stalled.seconds - copied.seconds));
}

}  // namespace
}  // namespace zerorun::bench

int main(int argc, char** argv) {
  const std::string directory = argc > 1 ? argv[1] : ".";
  const double millions = argc > 2 ? std::stod(argv[2]) : 85;
  try {
    zerorun::bench::run(directory, millions);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
