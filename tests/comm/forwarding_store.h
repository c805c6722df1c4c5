#pragma once

#include <utility>

#include "zerorun/communicator.h"

namespace zerorun::testing {

// A store that does what another one does, for tests that change a part of that.
class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return store_->get(key, timeout);
  }
  std::optional<std::string> find(const std::string& key) override { return store_->find(key); }

 private:
  const std::shared_ptr<Store> store_;
};

}  // namespace zerorun::testing
