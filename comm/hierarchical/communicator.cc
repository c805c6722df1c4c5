#include "comm/hierarchical/communicator.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "comm/call_order.h"
#include "comm/hierarchical/collectives.h"
#include "comm/hierarchical/connecting.h"
#include "comm/host_communicator.h"
#include "comm/link_bound.h"

namespace zerorun {

namespace {

class HierarchicalCommunicator final : public HostCommunicator, public LinkBound {
 public:
  HierarchicalCommunicator(const GroupOptions& options, Topology topology)
      : HostCommunicator(options),
        collectives_(std::make_shared<hierarchical::Collectives>(options, std::move(topology))),
        kin_(options.family->join(
            {.tell = [collectives = collectives_](auto error) { collectives->set_error(error); },
             .ask = [collectives = collectives_] { return collectives->error(); }})) {}
  HierarchicalCommunicator(const HierarchicalCommunicator&) = delete;
  HierarchicalCommunicator& operator=(const HierarchicalCommunicator&) = delete;
  ~HierarchicalCommunicator() override { collectives_->leave(); }

  int local_world_size() const override { return collectives_->local_world_size(); }
  std::string transport() const override {
    return collectives_->links_only() ? "gloo" : "shm+gloo";
  }
  // Not those of other hosts.
  bool reads_peers() const override { return false; }
  void bound_link(DType dtype) override { collectives_->bound_link(dtype); }
  void abort(std::string_view reason) noexcept override { collectives_->abort(reason); }
  // Those of this host; Watch looks at the others.
  void look_at_peers(std::string_view what) override { collectives_->look_at_peers(what); }

  std::optional<Buffer> allocate(size_t nbytes, Sharing sharing) override {
    std::optional<Buffer> buffer;
    take_turn("allocate")->run([&] {
      // An aborted job has no memory, whatever it is asked for.
      buffer = collectives_->allocate(sharing == Sharing::per_rank ? nbytes : 0);
    });
    if (sharing == Sharing::per_host) return std::nullopt;
    return buffer;
  }

 private:
  void submit(CollectiveCall call, CpuStream& stream) override {
    auto turn = take_turn(fmt::format("{} '{}'", name_of(call.op), call.label));
    stream.submit([collectives = collectives_, turn = std::move(turn), call = std::move(call)] {
      turn->run([&] { run_call(call, collectives->error(), [&] { collectives->run(call); }); });
    });
  }

  std::shared_ptr<CallOrder::Turn> take_turn(std::string what) {
    return order_->take([collectives = collectives_, what = std::move(what)] {
      collectives->abort(what + " was skipped because of an earlier error on its stream");
    });
  }

  const std::shared_ptr<hierarchical::Collectives> collectives_;
  const std::shared_ptr<CallOrder> order_ = std::make_shared<CallOrder>();
  const std::shared_ptr<void> kin_;
};

}  // namespace

std::shared_ptr<CallCommunicator> make_hierarchical_communicator(const GroupOptions& options,
                                                                 Topology topology) {
  try {
    return std::make_shared<HierarchicalCommunicator>(options, std::move(topology));
  } catch (const std::exception& error) {  // the peers wait for this rank
    hierarchical::tell_peers(options, error.what());
    throw;
  }
}

}  // namespace zerorun
