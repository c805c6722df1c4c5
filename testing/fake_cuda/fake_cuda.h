#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace zerorun::fake {

// One call of a CUDA, cuBLAS or NCCL function.
struct Call {
  std::string name;
  const void* stream = nullptr;  // that it is for, if any
  std::thread::id thread{};      // that makes it
};

// While one lives, the thread is within the fakes: a test does not count what they allocate.
class InFake {
 public:
  InFake() { ++depth; }
  InFake(const InFake&) = delete;
  InFake& operator=(const InFake&) = delete;
  ~InFake() { --depth; }

  inline static thread_local int depth = 0;
};

// NVLinks of the devices: to each other, and of every one to a switch. Devices that have none read
// each other's memory all the same; where some have, only those do that are linked.
struct GpuLinks {
  std::map<std::pair<int, int>, int> between{};  // by the smaller number first
  int switched = 0;

  int direct(int device, int peer) const {
    const auto found = between.find(std::minmax(device, peer));
    return found == between.end() ? 0 : found->second;
  }
};

// The state of the fake libraries that tests set and read. There is one, as there is
// one driver; reset() before each test.
class FakeCuda {
 public:
  static FakeCuda& instance();

  // Forgets what was recorded and planned. Throws std::logic_error while anything is still held.
  void reset();

  void set_devices(int devices) { set(settings_.devices, devices); }
  int devices() const { return get(settings_.devices); }
  // The CUDA that the driver is for, as cudaDriverGetVersion has it; below 12000 no device is seen.
  void set_driver(int version) { set(settings_.driver, version); }
  int driver() const { return get(settings_.driver); }
  void set_links(const GpuLinks& links) { set(settings_.links, links); }
  GpuLinks links() const { return get(settings_.links); }
  void set_memory(size_t bytes) { set(settings_.memory, bytes); }
  // Work on streams starts up to this much late, at random: orderings that nothing enforces show.
  void set_delay(std::chrono::microseconds most) { set(settings_.delay, most); }
  std::chrono::microseconds draw_delay();
  // Work on streams is done by the call that submits it: counts do not depend on timing.
  void set_inline_streams(bool are_inline) { set(settings_.inline_streams, are_inline); }
  bool inline_streams() const { return get(settings_.inline_streams); }

  // NCCL_LOCAL_REGISTER: false means that NCCL has no use for registered memory.
  void set_local_register(bool registers) { set(settings_.local_register, registers); }
  bool local_register() const { return get(settings_.local_register); }

  void set_nccl_version(int version) { set(settings_.nccl_version, version); }
  int nccl_version() const { return get(settings_.nccl_version); }
  // NCCL_LAUNCH_ORDER_IMPLICIT, which zerorun sets.
  void set_implicit_order(bool is_implicit) { set(settings_.implicit_order, is_implicit); }
  bool implicit_order() const { return get(settings_.implicit_order); }

  // A thread captures a CUDA graph, which others may spoil.
  void set_capturing(bool capturing) { set(settings_.capturing, capturing); }
  bool capturing() const { return get(settings_.capturing); }

  // The calling thread is in the driver, which waits for all streams: calls of others wait for it.
  void set_driver_held(bool held) {
    set(driver_holder_, held ? std::this_thread::get_id() : std::thread::id());
  }

  // Calls of CUDA wait until they are let go on, but for those that look at the thread alone.
  void hold_calls();
  void let_calls_go();

  // The `nth` call (from 0) of a function from now on fails with `error`, of its library's type.
  void fail(std::string_view name, int nth, int error);
  // How many of these calls were made.
  int failures() const { return get(met_failures_); }
  // The next call of the function runs `work` first, on the thread that makes it.
  void before(std::string_view name, std::function<void()> work);
  // Work on a stream fails: nothing queued on the device runs any more, its calls return `error`.
  void break_device(int device, cudaError_t error);
  cudaError_t device_error(int device) const;
  // Functions that were called since reset(), with how often.
  std::map<std::string, int> counts() const { return get(counts_); }
  std::vector<Call> calls() const { return get(calls_); }
  // Kernels that were launched since reset(), with how often, by their types: their parameters'.
  std::map<std::string, int> launches() const;
  // Devices on which a context was made, by setting or by using them.
  std::set<int> used_devices() const { return get(used_devices_); }

  // Calls that a real library would punish: unknown or freed handles, wrong pairs, wrong devices.
  std::vector<std::string> violations() const { return get(violations_); }
  // Handles and memory not given back: "2 events".
  std::vector<std::string> leaks() const;

  // For the fakes. Records the call; the error it shall return, or 0.
  int enter(std::string_view name, const void* stream = nullptr);
  void note_launch(const char* mangled_type);
  void violate(std::string text);
  void use_device(int device);
  void hold(std::string_view kind, const void* handle);
  // False, and a violation, when it is not held.
  bool release(std::string_view kind, const void* handle);
  bool holds(std::string_view kind, const void* handle) const;
  // None of them is given back meanwhile.
  void for_each(std::string_view kind, const std::function<void(const void*)>& look) const;
  // Bytes of device memory; false when there are not as many.
  bool take_memory(size_t bytes);
  void give_memory(size_t bytes);
  // Counts memory that another library has, beside the limit.
  void take_adopted(size_t bytes);
  void give_adopted(size_t bytes);
  // The most memory that all had at a time since the last call.
  size_t take_peak();
  size_t free_memory() const;
  size_t memory() const { return get(settings_.memory); }

 private:
  struct Settings {
    int devices = 1;
    int driver = 13020;
    GpuLinks links{};
    size_t memory = size_t{1} << 30;
    std::chrono::microseconds delay{0};
    bool inline_streams = false;
    bool capturing = false;
    bool local_register = true;
    int nccl_version = 23100;
    bool implicit_order = true;
  };

  template <typename T>
  T get(const T& member) const {
    const std::lock_guard lock(mutex_);
    return member;
  }
  template <typename T>
  void set(T& member, const T& value) {
    const std::lock_guard lock(mutex_);
    member = value;
  }

  mutable std::mutex mutex_;  // guards all
  Settings settings_;
  struct Memory {
    size_t used = 0;
    size_t adopted = 0;
    size_t peak = 0;
  } memory_;
  std::set<int> used_devices_;
  std::thread::id driver_holder_;  // none: that of no thread
  struct {
    bool are_held = false;
    std::condition_variable go_on;
  } held_calls_;
  std::minstd_rand random_;
  std::map<std::pair<std::string, int>, int> failures_;  // (function, call) -> error
  int met_failures_ = 0;
  std::map<std::string, std::function<void()>, std::less<>> before_;  // by function
  std::map<int, cudaError_t> device_errors_;
  std::map<std::string, int> counts_;
  std::vector<Call> calls_;
  std::map<std::string, int> launches_;  // by mangled types
  std::vector<std::string> violations_;
  std::map<std::string, std::set<const void*>> held_;
};

// Device memory of other libraries than the runtime.
bool add_device_memory(void** data, size_t bytes, size_t alignment = 512);
bool remove_device_memory(void* data);
// True if kernels on `device` may use it.
bool reachable(const void* data, int device);
// False for ordinary memory of the host, and for memory that was freed.
bool addressable(const void* data, size_t bytes);
// Memory that is not from here, and is taken for the device's until it is disowned.
void adopt_device_memory(const void* data, size_t bytes);
void disown_device_memory(const void* data);

// To nearest, with the 10 bits that TF32 has of the 23 of the mantissa.
inline float to_tf32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0xfffU + (bits >> 13 & 1U)) & ~0x1fffU);
}

// Runs `task` on the stream, after everything before it.
cudaError_t submit(cudaStream_t stream, std::function<void()> task);

}  // namespace zerorun::fake
