// Measures saving and loading for one rank with bf16 parameters and AdamW, as ratios of one run:
//   bench_checkpoint [DIRECTORY [MILLIONS [ROUNDS]]]   default: the working folder, 85 million
//                                                      parameters, 9 rounds
// a save, over plain large direct writes of as many bytes there, with a sync; loads, over such
// reads of the checkpoint's own file (what a virtual disk reads fast depends on the file) into
// memory that was written before; and what a step waits for an asynchronous save, over one copy of
// the same bytes in memory. Both of a pair follow each other, in turn one or the other first; the
// ratio is the median of those of the rounds. At the start of a program nothing was written to the
// memory of the optimizer states, which the system provides when the load writes it, so that load
// is also compared with reads into memory of which two thirds are new. A load at the start keeps
// the old masters until all is verified, a load after steps also the optimizer states. The last
// line is what the system takes to provide memory for the latter.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "core/check.h"
#include "offload/block_io.h"
#include "os/file_descriptor.h"
#include "zerorun/checkpoint.h"
#include "zerorun/engine.h"

namespace zerorun::bench {
namespace {

namespace fs = std::filesystem;

constexpr double kGB = 1e9;
constexpr double kBytesPerParameter = 12;  // master and two states
constexpr MemoryCategory kOther = MemoryCategory::other;

// What something took in each round.
struct Times {
  std::vector<double> seconds;
  std::vector<double> processor;

  void take(const std::function<void()>& work) {
    ::sync();  // what came before, such as the removal of a file, costs nothing here
    const double before = processor_seconds();
    const double start = now();
    work();
    seconds.push_back(now() - start);
    processor.push_back(processor_seconds() - before);
  }
  // Times of it in `own`, by rounds.
  double over(const Times& own) const {
    std::vector<double> ratios;
    for (size_t i = 0; i < seconds.size(); ++i) ratios.push_back(seconds[i] / own.seconds[i]);
    return median(ratios);
  }
};

// Writes a file, or reads one, past the cache of the system, eight mebibytes at a time, from or to
// memory of the size of the file.
class PlainFile {
 public:
  PlainFile(fs::path path, uint64_t nbytes, Device& device)
      : path_(std::move(path)), device_(device), memory_(memory(nbytes, nbytes)) {}

  // Memory for a file, of which as much was written.
  Buffer memory(uint64_t nbytes, uint64_t written) const {
    Buffer made = device_.allocate(align_direct(nbytes), kOther);
    std::memset(made.data(), 1, written);
    return made;
  }
  const Buffer& memory() const { return memory_; }

  void write() {
    const FileDescriptor file(
        ::open(path_.c_str(), O_CREAT | O_WRONLY | O_DIRECT | O_CLOEXEC, 0600));
    each_block(memory_, [&](std::byte* data, size_t nbytes, off_t at) {
      return ::pwrite(file.get(), data, nbytes, at) == static_cast<ssize_t>(nbytes);
    });
    if (::fsync(file.get()) != 0) fail<IoError>("cannot sync {}", path_.string());
  }
  // Reads another file, of about this size.
  void read(const fs::path& path, const Buffer& into) {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    each_block(into, [&](std::byte* data, size_t nbytes, off_t at) {
      return ::pread(file.get(), data, nbytes, at) > 0;
    });
  }
  void remove() const { fs::remove(path_); }

 private:
  static constexpr size_t kBlock = size_t{8} << 20;

  template <typename Transfer>
  void each_block(const Buffer& memory, const Transfer& transfer) {
    for (size_t at = 0; at < memory.nbytes(); at += kBlock) {
      const size_t nbytes = std::min(kBlock, memory.nbytes() - at);
      if (transfer(memory.data() + at, nbytes, static_cast<off_t>(at))) continue;
      fail<IoError>("{}: {}: direct transfers do not work there", path_.string(),
                    std::strerror(errno));
    }
  }

  const fs::path path_;
  Device& device_;
  const Buffer memory_;
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
  const Buffer memory = device.allocate(static_cast<size_t>(nbytes), kOther);
  for (size_t at = 0; at < memory.nbytes(); at += kPage) memory.data()[at] = std::byte{1};
}

// What is measured, and what it is compared with.
struct Figures {
  Times written, saved;
  Times read_before_start, read_into_new, resumed;
  Times read_before_load, loaded;
  Times copied, stalled;
  Times touched;
};

class Bench {
 public:
  Bench(const fs::path& directory, double millions)
      : millions_(millions),
        model_(millions),
        folder_(directory / fmt::format("bench_checkpoint.{}", ::getpid())),
        plain_(folder_ / "plain", static_cast<uint64_t>(model_.nbytes()), model_.device()),
        saver_(model_.states(), model_.comm()),
        from_(static_cast<size_t>(model_.nbytes()), std::byte{1}),
        to_(from_.size(), std::byte{2}) {
    model_.fill_states();
    fs::create_directories(folder_);
  }
  ~Bench() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void round(bool is_plain_first) {
    const auto in_turn = [&](const std::function<void()>& plain, const std::function<void()>& own) {
      is_plain_first ? plain() : own();
      is_plain_first ? own() : plain();
    };
    fs::remove_all(run_);
    fs::create_directories(run_);
    plain_.remove();
    in_turn([&] { figures_.written.take([&] { plain_.write(); }); },
            [&] { figures_.saved.take([&] { save(); }); });
    {
      Model fresh(millions_);
      in_turn([&] { read(figures_.read_before_start, plain_.memory()); },
              [&] { load(fresh, figures_.resumed); });
    }
    {
      const auto nbytes = static_cast<uint64_t>(model_.nbytes());
      read(figures_.read_into_new, plain_.memory(nbytes, nbytes / 3));
    }
    in_turn([&] { read(figures_.read_before_load, plain_.memory()); },
            [&] { load(model_, figures_.loaded); });
    figures_.touched.take([&] { touch(model_.device(), model_.nbytes()); });
    in_turn(
        [&] { figures_.copied.take([&] { std::memcpy(to_.data(), from_.data(), from_.size()); }); },
        [&] {
          figures_.stalled.take(
              [&] { saver_.save({.directory = run_.string(), .tag = "beside"}); });
          saver_.wait();
        });
  }

  void print() const;

 private:
  void save() {
    save_checkpoint(model_.states(), model_.comm(), {.directory = run_.string(), .tag = "tag"});
  }
  void load(Model& into, Times& times) {
    forget(run_);
    times.take([&] { load_checkpoint(into.states(), into.comm(), run_.string(), "tag"); });
  }
  void read(Times& times, const Buffer& into) {
    times.take([&, file = file_of(run_ / "tag")] { plain_.read(file, into); });
  }

  const double millions_;
  Model model_;
  const fs::path folder_;
  const fs::path run_ = folder_ / "run";
  PlainFile plain_;
  AsyncSaver saver_;
  std::vector<std::byte> from_;
  std::vector<std::byte> to_;
  Figures figures_;
};

void Bench::print() const {
  const double gb = model_.nbytes() / kGB;
  fmt::print("{:.0f} M parameters, {:.2f} GB; medians of {} rounds\n", millions_, gb,
             figures_.saved.seconds.size());
  const auto show = [&](const char* what, const Times& own) {
    const auto [least, most] = std::minmax_element(own.seconds.begin(), own.seconds.end());
    const double middle = median(own.seconds);
    fmt::print("{:<24} {:.3f} s ({:.3f} to {:.3f}), {:5.2f} GB/s, {:.2f} s of processors", what,
               middle, *least, *most, gb / middle, median(own.processor));
  };
  const auto pair = [&](const char* what, const Times& own, const char* than, const Times& plain) {
    show(than, plain);
    fmt::print("\n");
    show(what, own);
    fmt::print(": {:.2f} x the rate\n", plain.over(own));
  };
  pair("save", figures_.saved, "direct writes and sync", figures_.written);
  pair("load at the start", figures_.resumed, "direct reads", figures_.read_before_start);
  show("reads into new memory", figures_.read_into_new);
  fmt::print("; the load: {:.2f} x the rate\n", figures_.read_into_new.over(figures_.resumed));
  pair("load after steps", figures_.loaded, "direct reads", figures_.read_before_load);
  pair("stall of an async save", figures_.stalled, "copy in memory", figures_.copied);
  show("fresh memory", figures_.touched);
  fmt::print("\n");
}

void run(const fs::path& directory, double millions, int rounds) {
  Bench bench(directory, millions);
  for (int round = 0; round < rounds; ++round) bench.round(round % 2 == 0);
  bench.print();
}

}  // namespace
}  // namespace zerorun::bench

int main(int argc, char** argv) {
  const std::string directory = argc > 1 ? argv[1] : ".";
  const double millions = argc > 2 ? std::stod(argv[2]) : 85;
  const int rounds = argc > 3 ? std::stoi(argv[3]) : 9;
  try {
    zerorun::bench::run(directory, millions, rounds);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
