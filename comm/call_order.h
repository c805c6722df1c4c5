#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace zerorun {

// Runs the collectives of one rank in the order in which they were submitted, even if they are on
// several streams. take() is called at submission. Each Turn then runs on the thread of its own
// stream, after all earlier turns have ended.
class CallOrder : public std::enable_shared_from_this<CallOrder> {
 public:
  class Turn {
   public:
    Turn(std::shared_ptr<CallOrder> order, uint64_t number, std::function<void()> dropped)
        : order_(std::move(order)), number_(number), dropped_(std::move(dropped)) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    // If the turn was never run (its stream failed or ended), calls `dropped`, which must not
    // throw. Later turns then need not wait for this one.
    ~Turn();

    // Waits until all earlier turns have ended, then runs `body`.
    template <class Body>
    void run(const Body& body) {
      order_->wait(number_);
      started_ = true;
      const End end{*order_};
      body();
    }

   private:
    struct End {
      CallOrder& order;
      ~End() { order.end_one(); }
    };

    const std::shared_ptr<CallOrder> order_;
    const uint64_t number_;
    const std::function<void()> dropped_;
    bool started_ = false;
  };

  std::shared_ptr<Turn> take(std::function<void()> dropped);

 private:
  void wait(uint64_t number);
  void end_one();
  void stop();

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t taken_ = 0;
  uint64_t ended_ = 0;
  bool stopped_ = false;  // a turn was dropped, so the others need not wait
};

}  // namespace zerorun
