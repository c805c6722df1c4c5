#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "core/check.h"
#include "python/bindings/register.h"
#include "python/bindings/tensor_exchange.h"
#include "python/bindings/without_gil.h"
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
  BlockingCommunicator(std::shared_ptr<Communicator> comm, EngineBase engine)
      : comm_(std::move(comm)),
        engine_(std::move(engine)),
        device_(make_cpu_device({.synchronous_streams = true})) {}

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

  std::shared_ptr<Communicator> comm_;
  EngineBase engine_;
  std::shared_ptr<Device> device_;
};

BlockingCommunicator connect_ranks(CommunicatorOptions options, std::shared_ptr<Gpu> gpu) {
  auto comm = ending_without_gil(make_communicator(options));
  EngineBase engine = {comm, std::move(gpu)};
  if (engine.gpu != nullptr) {
    options.device = engine.gpu->device();
    options.name += "/gpu";
    engine.comm = ending_without_gil(make_communicator(options));
  }
  return {std::move(comm), std::move(engine)};
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
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
        return make_tcp_store({.host = host,
                               .port = port,
                               .serve = serve,
                               .secret = secret,
                               .timeout = milliseconds(timeout_s)});
      },
      "host"_a, "port"_a, "serve"_a, "secret"_a, "timeout_s"_a,
      "A TCP store; the rank that serves picks a free port when `port` is 0.");
  m.def("make_memory_store", &make_memory_store, "A store for ranks that are threads.");
}

}  // namespace

EngineBase engine_base_of(const py::object& communicator) {
  return communicator.cast<const BlockingCommunicator&>().engine();
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
           "In place over all ranks; fp32 sums in rank order.")
      .def("broadcast", &Self::broadcast, "tensor"_a, "root"_a = 0, "label"_a = "broadcast",
           "The root's elements, in place.")
      .def("all_gather", &Self::all_gather, "tensor"_a, "out"_a, "label"_a = "all_gather",
           "`out` (numel = world_size times that of `tensor`): the ranks' tensors, in rank order.")
      .def("barrier", &Self::barrier, "label"_a = "barrier", "Waits for all ranks.")
      .def("abort", &Self::abort, "reason"_a,
           "Makes every peer's current and later collective fail with `reason`.");
  m.def(
      "connect",
      [](int rank, int world_size, std::shared_ptr<Store> store, const std::string& name,
         double timeout_s, std::shared_ptr<Gpu> gpu) {
        const py::gil_scoped_release release;
        return connect_ranks({.rank = rank,
                              .world_size = world_size,
                              .store = std::move(store),
                              .name = name,
                              .timeout = milliseconds(timeout_s)},
                             std::move(gpu));
      },
      "rank"_a, "world_size"_a, "store"_a = nullptr, "name"_a = "world", "timeout_s"_a = 600.0,
      "gpu"_a = nullptr,
      "A communicator; `store` is needed for more than one rank. `gpu`: where its engine works.");
  m.def(
      "connect_from_environment",
      [](double timeout_s) {
        const py::gil_scoped_release release;
        const auto comm =
            ending_without_gil(connect(rank_from_environment(), milliseconds(timeout_s)));
        return Self(comm, {comm, nullptr});
      },
      "timeout_s"_a = 600.0, "The communicator of this process's job.");
}

}  // namespace zerorun
