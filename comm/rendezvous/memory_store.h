#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "comm/shm/segment.h"
#include "zerorun/communicator.h"

namespace zerorun {

// A Store in memory, for ranks that are threads of one process.
class MemoryStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> find(const std::string& key) override;
  std::shared_ptr<LocalSegments> local_segments() override { return segments_; }

 private:
  const std::shared_ptr<LocalSegments> segments_ = std::make_shared<LocalSegments>();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
};

}  // namespace zerorun
