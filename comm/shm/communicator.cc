#include "comm/shm/communicator.h"

#include <utility>

#include "comm/call_order.h"
#include "comm/host_communicator.h"
#include "comm/rendezvous/memory_store.h"
#include "comm/shm/collectives.h"
#include "core/check.h"

namespace zerorun {

namespace {

// Ranks that share a host need no store once they have met, but for what is shared within a
// process: a program may open PyTorch's own group at the same port.
GroupOptions without_server(GroupOptions options) {
  if (dynamic_cast<MemoryStore*>(options.store.get()) == nullptr) options.store = nullptr;
  return options;
}

class ShmCommunicator final : public HostCommunicator {
 public:
  explicit ShmCommunicator(const GroupOptions& options)
      : HostCommunicator(without_server(options)),
        collectives_(std::make_shared<shm::Collectives>(options)),
        kin_(options.family->join(
            {.tell = [collectives =
                          collectives_](auto error) { collectives->control().set_error(error); },
             .ask = [collectives = collectives_] { return collectives->control().error(); }})) {}
  ShmCommunicator(const ShmCommunicator&) = delete;
  ShmCommunicator& operator=(const ShmCommunicator&) = delete;
  // Work that is still under way fails, here and at the peers that need it.
  ~ShmCommunicator() override { collectives_->control().leave(); }

  std::string transport() const override { return "shm"; }
  bool reads_peers() const override { return true; }
  void abort(std::string_view reason) noexcept override { collectives_->control().abort(reason); }
  void look_at_peers(std::string_view what) override {
    collectives_->control().look_at_peers(what);
  }

  std::optional<Buffer> allocate(size_t nbytes, Sharing sharing) override {
    std::optional<Buffer> buffer;
    take_turn("allocate")->run([&] { buffer = collectives_->allocate(nbytes, sharing); });
    return buffer;
  }

 private:
  void submit(CollectiveCall call, CpuStream& stream) override {
    if (call.op == Collective::all_gather && call.sync == Sync::one_sided) {
      collectives_->check_one_sided(call);
      stream.submit([collectives = collectives_, call = std::move(call)] {
        collectives->gather_one_sided(call);
      });
      return;
    }
    auto turn = take_turn(fmt::format("{} '{}'", name_of(call.op), call.label));
    stream.submit([collectives = collectives_, turn = std::move(turn), call = std::move(call)] {
      turn->run(
          [&] { run_call(call, collectives->control().error(), [&] { collectives->run(call); }); });
    });
  }

  std::shared_ptr<CallOrder::Turn> take_turn(std::string what) {
    return order_->take([collectives = collectives_, what = std::move(what)] {
      collectives->control().abort(what + " was skipped because of an earlier error on its stream");
    });
  }

  const std::shared_ptr<shm::Collectives> collectives_;
  const std::shared_ptr<CallOrder> order_ = std::make_shared<CallOrder>();
  const std::shared_ptr<void> kin_;
};

}  // namespace

std::shared_ptr<CallCommunicator> make_shm_communicator(const GroupOptions& options) {
  return std::make_shared<ShmCommunicator>(options);
}

}  // namespace zerorun
