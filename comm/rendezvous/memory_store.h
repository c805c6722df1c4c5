#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "comm/rendezvous/lookup_store.h"
#include "comm/shm/segment.h"

namespace zerorun {

// A Store in memory, for ranks that are threads of one process.
class MemoryStore final : public LookupStore {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> find(const std::string& key) override;

  // Memory segments that the ranks of this store share.
  const std::shared_ptr<LocalSegments>& segments() const { return segments_; }

 private:
  const std::shared_ptr<LocalSegments> segments_ = std::make_shared<LocalSegments>();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
};

}  // namespace zerorun
