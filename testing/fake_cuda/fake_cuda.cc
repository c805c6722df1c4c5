#include "testing/fake_cuda/fake_cuda.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>

namespace zerorun::fake {

FakeCuda& FakeCuda::instance() {
  static FakeCuda fake;
  return fake;
}

void FakeCuda::reset() {
  for (const std::string& leak : leaks()) throw std::logic_error("still held: " + leak);
  const std::lock_guard lock(mutex_);
  settings_ = {};
  used_devices_.clear();
  driver_holder_ = {};
  failures_.clear();
  met_failures_ = 0;
  before_.clear();
  device_errors_.clear();
  counts_.clear();
  calls_.clear();
  launches_.clear();
  violations_.clear();
}

std::chrono::microseconds FakeCuda::draw_delay() {
  const std::lock_guard lock(mutex_);
  if (settings_.delay.count() == 0) return settings_.delay;
  return std::chrono::microseconds(random_() % static_cast<unsigned>(settings_.delay.count()));
}

void FakeCuda::use_device(int device) {
  const std::lock_guard lock(mutex_);
  used_devices_.insert(device);
}

void FakeCuda::fail(std::string_view name, int nth, int error) {
  const std::lock_guard lock(mutex_);
  const std::string key(name);
  failures_[{key, counts_[key] + nth}] = error;
}

void FakeCuda::break_device(int device, cudaError_t error) {
  const std::lock_guard lock(mutex_);
  device_errors_.emplace(device, error);
}

cudaError_t FakeCuda::device_error(int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = device_errors_.find(device);
  return found == device_errors_.end() ? cudaSuccess : found->second;
}

void FakeCuda::before(std::string_view name, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  before_[std::string(name)] = std::move(work);
}

std::map<std::string, int> FakeCuda::launches() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, int> launches;
  for (const auto& [mangled, count] : launches_) {
    const std::unique_ptr<char, void (*)(void*)> name(
        abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, nullptr), std::free);
    launches[name.get()] += count;
  }
  return launches;
}

std::vector<std::string> FakeCuda::leaks() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> leaks;
  for (const auto& [kind, handles] : held_) {
    if (!handles.empty()) leaks.push_back(std::to_string(handles.size()) + " of " + kind);
  }
  return leaks;
}

void FakeCuda::hold_calls() {
  const std::lock_guard lock(mutex_);
  held_calls_.are_held = true;
}

void FakeCuda::let_calls_go() {
  const std::lock_guard lock(mutex_);
  held_calls_.are_held = false;
  held_calls_.go_on.notify_all();
}

namespace {

// Says nothing about the device: inferred from what these functions return, as no source says it.
bool is_of_thread(std::string_view name) {
  return name == "cudaGetDevice" || name == "cudaSetDevice" ||
         name == "cudaThreadExchangeStreamCaptureMode" || !name.starts_with("cu");
}

}  // namespace

int FakeCuda::enter(std::string_view name, const void* stream) {
  std::unique_lock lock(mutex_);
  held_calls_.go_on.wait(lock, [&] { return !held_calls_.are_held || is_of_thread(name); });
  const std::string key(name);
  const int call = counts_[key]++;
  calls_.push_back({key, stream, std::this_thread::get_id()});
  if (driver_holder_ != std::thread::id() && driver_holder_ != std::this_thread::get_id()) {
    violations_.push_back(key + " waits for a thread that waits in the driver for all streams");
  }
  if (const auto found = before_.find(key); found != before_.end()) {
    const auto work = std::move(found->second);
    before_.erase(found);
    lock.unlock();
    work();
    lock.lock();
  }
  const auto planned = failures_.find({key, call});
  if (planned == failures_.end()) return 0;
  ++met_failures_;
  return planned->second;
}

void FakeCuda::note_launch(const char* mangled_type) {
  const std::lock_guard lock(mutex_);
  ++launches_[mangled_type];
}

void FakeCuda::violate(std::string text) {
  const std::lock_guard lock(mutex_);
  if (std::find(violations_.begin(), violations_.end(), text) != violations_.end()) return;
  violations_.push_back(std::move(text));
}

void FakeCuda::hold(std::string_view kind, const void* handle) {
  const std::lock_guard lock(mutex_);
  held_[std::string(kind)].insert(handle);
}

bool FakeCuda::release(std::string_view kind, const void* handle) {
  const std::lock_guard lock(mutex_);
  if (held_[std::string(kind)].erase(handle) == 1) return true;
  violations_.push_back("gave back what is not held: " + std::string(kind));
  return false;
}

bool FakeCuda::holds(std::string_view kind, const void* handle) const {
  const std::lock_guard lock(mutex_);
  const auto handles = held_.find(std::string(kind));
  return handles != held_.end() && handles->second.contains(handle);
}

void FakeCuda::for_each(std::string_view kind, const std::function<void(const void*)>& look) const {
  const std::lock_guard lock(mutex_);
  const auto handles = held_.find(std::string(kind));
  if (handles == held_.end()) return;
  for (const void* handle : handles->second) look(handle);
}

bool FakeCuda::take_memory(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > settings_.memory - memory_.used) return false;
  memory_.used += bytes;
  memory_.peak = std::max(memory_.peak, memory_.used + memory_.adopted);
  return true;
}

void FakeCuda::give_memory(size_t bytes) {
  const std::lock_guard lock(mutex_);
  memory_.used -= bytes;
}

void FakeCuda::take_adopted(size_t bytes) {
  const std::lock_guard lock(mutex_);
  memory_.adopted += bytes;
  memory_.peak = std::max(memory_.peak, memory_.used + memory_.adopted);
}

void FakeCuda::give_adopted(size_t bytes) {
  const std::lock_guard lock(mutex_);
  memory_.adopted -= bytes;
}

size_t FakeCuda::take_peak() {
  const std::lock_guard lock(mutex_);
  return std::exchange(memory_.peak, memory_.used + memory_.adopted);
}

size_t FakeCuda::free_memory() const {
  const std::lock_guard lock(mutex_);
  return settings_.memory - memory_.used;
}

}  // namespace zerorun::fake
