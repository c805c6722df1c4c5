#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/rendezvous/tcp_store.h"
#include "config/env.h"
#include "core/check.h"
#include "os/address.h"
#include "os/python_stacks.h"
#include "python/bindings/register.h"
#include "python/bindings/tensor_exchange.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

namespace {

// A tensor in host memory: the given one, or a copy of one that is elsewhere. The tensor library
// copies, so this is for whatever devices it has.
class OnHost {
 public:
  OnHost(py::handle tensor, const std::string& what)
      : tensor_(tensor), host_(py::reinterpret_borrow<py::object>(tensor)), view_(import(what)) {}

  TensorView view() const { return view_; }
  void write_back() {
    if (!host_.is(tensor_)) tensor_.attr("copy_")(host_);
  }

 private:
  TensorView import(const std::string& what) {
    if (!tensor_.attr("is_cpu").cast<bool>()) host_ = tensor_.attr("cpu")();
    return import_tensor(host_, what);
  }

  py::handle tensor_;
  py::object host_;
  TensorView view_;
};

// Blocking collectives for set-up and checkpoints, through the host; training goes through the
// engine's streams.
class BlockingCommunicator {
 public:
  // On the GPU, if there is one, its engine works.
  BlockingCommunicator(const CommunicatorOptions& options, std::shared_ptr<Gpu> gpu)
      : options_(options),
        comm_(ending_without_gil(make_communicator(options))),
        engine_({comm_, std::move(gpu)}),
        device_(make_cpu_device({.synchronous_streams = true})) {
    if (engine_.gpu == nullptr) return;
    CommunicatorOptions on_gpu = options;
    on_gpu.device = engine_.gpu->device();
    on_gpu.name += "/gpu";
    engine_.comm = ending_without_gil(make_communicator(on_gpu));
  }

  // Another communicator of the same ranks, which make it together.
  BlockingCommunicator duplicate(std::chrono::milliseconds timeout, std::shared_ptr<Gpu> gpu) {
    // Rank 0's count: a rank that failed may have come here less often.
    int64_t number = ++duplicates_;
    const TensorView view = view_of(std::span<int64_t>(&number, 1));
    comm_->broadcast(view, 0, stream(), "meeting point of another communicator").synchronize();
    CommunicatorOptions options = options_;
    options.name += "/" + std::to_string(number);
    options.timeout = timeout;
    if (options.store == nullptr && options.world_size > 1) {
      options.store = make_host_store(*comm_, stream(), timeout);
    }
    return {options, std::move(gpu)};
  }

  // The communicator of the ranks that give the same color, in the order of their keys. Collective.
  BlockingCommunicator split(int color, int key, const std::string& name) {
    if (color < 0) fail<ConfigError>("split: got color {}, expected 0 or more", color);
    BlockingCommunicator group = *this;
    group.comm_ = ending_without_gil(comm_->split(color, key, name));
    group.engine_.comm = group.comm_;
    if (engine_.comm != comm_) {
      group.engine_.comm = ending_without_gil(engine_.comm->split(color, key, name));
    }
    group.options_.rank = group.comm_->rank();
    group.options_.world_size = group.comm_->world_size();
    group.options_.name = fmt::format("{}/group{}/{}", options_.name, ++splits_, color);
    group.duplicates_ = group.splits_ = 0;
    return group;
  }

  // Ranks that share a host need no store once they have met: a program may then open PyTorch's own
  // group at the same MASTER_PORT.
  void leave_store() {
    if (comm_->local_world_size() == options_.world_size) options_.store = nullptr;
  }

  const Communicator& get() const { return *comm_; }
  const EngineBase& engine() const { return engine_; }
  void abort(const std::string& reason) const {
    comm_->abort(reason);
    if (engine_.comm != comm_) engine_.comm->abort(reason);
  }

  void all_reduce(py::handle tensor, const std::string& op, const std::string& label) {
    OnHost host(tensor, label);
    const TensorView view = host.view();
    const ReduceOp reduce = parse_op(op);
    {
      const py::gil_scoped_release release;
      comm_->all_reduce(view, view, reduce, Output::overwrite, stream(), label).synchronize();
    }
    host.write_back();
  }
  void broadcast(py::handle tensor, int root, const std::string& label) {
    OnHost host(tensor, label);
    {
      const py::gil_scoped_release release;
      comm_->broadcast(host.view(), root, stream(), label).synchronize();
    }
    host.write_back();
  }
  // Collectives of tensors on the ranks' GPUs use the engine's communicator.
  void broadcast_on_gpu(py::handle tensor, int root, const std::string& label) {
    ZR_CHECK(engine_.gpu != nullptr, "broadcast_on_gpu '{}' without a GPU", label);
    const TensorView view = import_tensor(tensor, label, engine_.gpu->where());
    engine_.gpu->follow();
    const py::gil_scoped_release release;
    Stream& gpu = engine_.gpu->device()->inline_stream();
    engine_.comm->broadcast(view, root, gpu, label).synchronize();
  }
  void all_gather(py::handle in, py::handle out, const std::string& label) {
    const OnHost host_in(in, label);
    OnHost host_out(out, label);
    const TensorView source = host_in.view();
    const TensorView target = host_out.view();
    if (target.numel != source.numel * comm_->world_size()) {
      fail<ConfigError>("{}: all_gather of {} elements from {} ranks into {} elements", label,
                        source.numel, comm_->world_size(), target.numel);
    }
    {
      const py::gil_scoped_release release;
      comm_->all_gather(source, target, Sync::collective, stream(), label).synchronize();
    }
    host_out.write_back();
  }
  void barrier(const std::string& label) {
    const py::gil_scoped_release release;
    comm_->barrier(stream(), label).synchronize();
  }

 private:
  static ReduceOp parse_op(const std::string& op) {
    if (op == "sum") return ReduceOp::sum;
    if (op == "max") return ReduceOp::max;
    if (op == "min") return ReduceOp::min;
    fail<ConfigError>("all_reduce: got op '{}', expected 'sum', 'max' or 'min'", op);
  }
  Stream& stream() { return device_->inline_stream(); }

  CommunicatorOptions options_;
  int64_t duplicates_ = 0;
  int64_t splits_ = 0;
  std::shared_ptr<Communicator> comm_;
  EngineBase engine_;
  std::shared_ptr<Device> device_;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return comm_timeout(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
}

void register_rank_info(py::module_& m) {
  py::class_<RankInfo>(m, "RankInfo", "Who this process is, from the launcher's variables.")
      .def_readonly("rank", &RankInfo::rank)
      .def_readonly("world_size", &RankInfo::world_size)
      .def_readonly("local_rank", &RankInfo::local_rank)
      .def_readonly("local_world_size", &RankInfo::local_world_size)
      .def_readonly("master_addr", &RankInfo::master_addr)
      .def_readonly("master_port", &RankInfo::master_port);
  m.def("rank_from_environment", &rank_from_environment,
        "RANK, WORLD_SIZE, ... of this process; rank 0 of 1 without them.");
}

void register_store(py::module_& m) {
  py::class_<Store, std::shared_ptr<Store>>(m, "Store", "Through which ranks find each other.")
      .def_property_readonly("port", [](const Store& self) { return bound_port(self); });
  m.def(
      "make_store",
      [](const std::string& host, uint16_t port, bool serve, const std::string& secret,
         double timeout_s) {
        const py::gil_scoped_release release;
        // Peers on other hosts reach the rank that serves at any of its addresses.
        const bool for_all = serve && !is_loopback(host);
        return make_tcp_store({.host = for_all ? any_address_like(host) : host,
                               .port = port,
                               .serve = serve,
                               .secret = secret,
                               .timeout = milliseconds(timeout_s)});
      },
      "host"_a, "port"_a, "serve"_a, "secret"_a, "timeout_s"_a,
      "A TCP store; the rank that serves picks a free port when `port` is 0, and listens on all of "
      "its host's addresses unless `host` is the loopback.");
  m.def("make_memory_store", &make_memory_store, "A store for ranks that are threads.");
}

}  // namespace

EngineBase engine_base_of(const py::object& communicator) {
  return communicator.cast<const BlockingCommunicator&>().engine();
}

BlockingCommunicator connect_from_environment(double timeout_s) {
  const py::gil_scoped_release release;
  const RankInfo info = rank_from_environment();
  CommunicatorOptions options;
  options.rank = info.rank;
  options.world_size = info.world_size;
  options.timeout = milliseconds(timeout_s);
  options.master_addr = info.master_addr;
  if (info.world_size > 1) options.store = rendezvous(info, options.timeout);
  BlockingCommunicator world(options, nullptr);
  options.store = nullptr;
  world.leave_store();
  return world;
}

void register_communicator(py::module_& m) {
  register_rank_info(m);
  register_store(m);
  using Self = BlockingCommunicator;
  py::class_<Self>(m, "Communicator",
                   "Collectives among the ranks of one job, through the host: tensors of a GPU are "
                   "copied there and back.")
      .def_property_readonly("rank", [](const Self& self) { return self.get().rank(); })
      .def_property_readonly("world_size", [](const Self& self) { return self.get().world_size(); })
      .def_property_readonly("transport", [](const Self& self) { return self.get().transport(); })
      .def("all_reduce", &Self::all_reduce, "tensor"_a, "op"_a = "sum", "label"_a = "all_reduce",
           "In place over all ranks; fp32 sums in a fixed tree of ranks.")
      .def("broadcast", &Self::broadcast, "tensor"_a, "root"_a = 0, "label"_a = "broadcast",
           "The root's elements, in place.")
      .def("broadcast_on_gpu", &Self::broadcast_on_gpu, "tensor"_a, "root"_a = 0,
           "label"_a = "broadcast",
           "As broadcast, of tensors on the GPUs of the ranks' engines, not through the host.")
      .def("all_gather", &Self::all_gather, "tensor"_a, "out"_a, "label"_a = "all_gather",
           "`out` (numel = world_size times that of `tensor`): the ranks' tensors, in rank order.")
      .def("barrier", &Self::barrier, "label"_a = "barrier", "Waits for all ranks.")
      .def(
          "duplicate",
          [](Self& self, double timeout_s, std::shared_ptr<Gpu> gpu) {
            const py::gil_scoped_release release;
            return self.duplicate(milliseconds(timeout_s), std::move(gpu));
          },
          "timeout_s"_a = 600.0, "gpu"_a = nullptr,
          "Another communicator of the same ranks (collective). `gpu`: where its engine works.")
      .def("split", &Self::split, py::call_guard<py::gil_scoped_release>(), "color"_a, "key"_a,
           "name"_a,
           "The communicator of the ranks that give the same color, in the order of their keys; an "
           "error of either is one of both (collective). `name`: the group's, in errors.")
      .def("abort", &Self::abort, "reason"_a, py::call_guard<py::gil_scoped_release>(),
           "Makes every peer's current and later collective fail with `reason`.");
  m.def(
      "connect",
      [](int rank, int world_size, std::shared_ptr<Store> store, const std::string& name,
         double timeout_s, std::shared_ptr<Gpu> gpu, const std::string& master_addr) {
        const py::gil_scoped_release release;
        CommunicatorOptions options;
        options.rank = rank;
        options.world_size = world_size;
        options.store = std::move(store);
        options.name = name;
        options.timeout = milliseconds(timeout_s);
        options.master_addr = master_addr;
        return Self(options, std::move(gpu));
      },
      "rank"_a, "world_size"_a, "store"_a = nullptr, "name"_a = "world", "timeout_s"_a = 600.0,
      "gpu"_a = nullptr, "master_addr"_a = "",
      "A communicator; `store` is needed for more than one rank. `gpu`: where its engine works. "
      "`master_addr`: of rank 0's host, where ranks are on several.");
  m.def(
      "stack_requests", [] { return py::make_tuple(python_stack_signal(), kPythonStackFile); },
      "The signal at which faulthandler has to write for stall reports, and the name of its file.");
  m.def("connect_from_environment", &connect_from_environment, "timeout_s"_a = 600.0,
        "The communicator of this process's job.");
}

}  // namespace zerorun
