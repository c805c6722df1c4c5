#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <map>
#include <unordered_map>
#include <utility>

#include "core/check.h"
#include "device/cuda/libraries/library_files.h"
#include "os/shared_library.h"
#include "train/cuda/cuda_kernels.h"
#include "train/model/kernels.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // through which the headers call cuDNN
}

namespace zerorun::train::cuda {

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// Graphs are built for so many shapes; training and evaluation have a few, generation has one for
// each length.
constexpr size_t kMaxShapes = 8;

// Names of the tensors in a graph.
enum Id : int64_t { kQuery = 1, kKey, kValue, kOut, kLogSum, kDout, kDquery, kDkey, kDvalue };

struct Graph {
  std::unique_ptr<fe::graph::Graph> graph;
  size_t workspace = 0;
};

// Describes the graph of one shape.
class GraphBuilder {
 public:
  GraphBuilder(const AttentionShape& shape, DType dtype) : shape_(shape) {
    graph_->set_io_data_type(dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  void forward() {
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(true)
                       .set_causal_mask(true)
                       .set_attn_scale(scale());
    auto [out, log_sum] = graph_->sdpa(input(kQuery, 3), input(kKey, 3), input(kValue, 3), options);
    describe(out, kOut, 1)->set_output(true);
    describe_log_sum(log_sum)->set_output(true);
  }

  void backward(bool fast) {
    is_ordered_ = !fast;
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_backward")
                       .set_causal_mask(true)
                       .set_attn_scale(scale())
                       .set_deterministic_algorithm(!fast);
    const Tensor log_sum = describe_log_sum(graph_->tensor(fe::graph::Tensor_attributes()));
    const auto gradients = graph_->sdpa_backward(input(kQuery, 3), input(kKey, 3), input(kValue, 3),
                                                 input(kOut, 1), input(kDout, 1), log_sum, options);
    constexpr std::array<Id, 3> kIds = {kDquery, kDkey, kDvalue};
    for (size_t i = 0; i < kIds.size(); ++i) describe(gradients[i], kIds[i], 3)->set_output(true);
  }

  // Null, and a warning, when cuDNN has no kernel for it.
  Graph build(cudnnHandle_t handle) {
    std::string why;
    try {
      int64_t workspace = 0;
      auto result = graph_->build(handle, {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
      if (result.is_good()) result = graph_->get_workspace_size(workspace);
      if (result.is_good()) return {std::move(graph_), static_cast<size_t>(workspace)};
      why = result.get_message();
    } catch (const std::exception& error) {  // of the headers: this cuDNN lacks a function
      why = error.what();
    }
    fmt::print(stderr, "[zerorun] warning: cuDNN {} {}\n", fe::detail::get_backend_version(),
               lacks_attention(shape_, is_ordered_, why));
    return {};
  }

 private:
  int64_t head_width() const { return shape_.width / shape_.heads; }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(head_width())); }

  // [batch, heads, positions, head width] of rows that hold so many parts of `width`.
  Tensor describe(Tensor tensor, Id id, int64_t parts) const {
    const int64_t stride = parts * shape_.width;
    tensor->set_uid(id)
        .set_dim({shape_.batch, shape_.heads, shape_.seq_len, head_width()})
        .set_stride({shape_.seq_len * stride, head_width(), stride, 1});
    return tensor;
  }
  Tensor input(Id id, int64_t parts) {
    return describe(graph_->tensor(fe::graph::Tensor_attributes()), id, parts);
  }
  Tensor describe_log_sum(Tensor tensor) const {
    tensor->set_uid(kLogSum)
        .set_dim({shape_.batch, shape_.heads, shape_.seq_len, 1})
        .set_stride({shape_.heads * shape_.seq_len, shape_.seq_len, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
    return tensor;
  }

  const AttentionShape& shape_;
  bool is_ordered_ = false;  // a backward that adds in one order
  std::unique_ptr<fe::graph::Graph> graph_ = std::make_unique<fe::graph::Graph>();
};

class Cudnn final : public CudnnAttention {
 public:
  explicit Cudnn(const KernelOptions& options) : options_(options) {
    const cudnnStatus_t status = fe::detail::create_handle(&handle_);
    if (status == CUDNN_STATUS_SUCCESS) return;
    fail<DeviceError>("cudnnCreate failed: {}", fe::detail::get_error_string(status));
  }
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;
  ~Cudnn() override {
    graphs_.clear();
    fe::detail::destroy_handle(handle_);
  }

  std::string version() const override {
    const size_t version = fe::detail::get_backend_version();  // 9.28.0 is 92800
    return fmt::format("{}.{}", version / 10000, version / 100 % 100);
  }

  bool forward(cudaStream_t stream, const AttentionShape& shape, TensorView qkv, TensorView log_sum,
               TensorView out, Workspace& workspace) override {
    const Graph* const graph = graph_of(shape, qkv.dtype, Direction::forward);
    if (graph == nullptr) return false;
    std::unordered_map<int64_t, void*> tensors = parts_of(shape, qkv, {kQuery, kKey, kValue});
    tensors[kOut] = out.data;
    tensors[kLogSum] = log_sum.data;
    execute(stream, *graph, tensors, workspace);
    return true;
  }

  bool backward(cudaStream_t stream, const AttentionShape& shape, const AttentionState& state,
                TensorView dout, TensorView dqkv, Workspace& workspace) override {
    const Graph* const graph = graph_of(shape, dout.dtype, Direction::backward);
    if (graph == nullptr) {
      refuse_unused(options_, fmt::format("{} x {} positions, {} heads of {}", shape.batch,
                                          shape.seq_len, shape.heads, shape.width / shape.heads));
      return false;
    }
    std::unordered_map<int64_t, void*> tensors = parts_of(shape, state.qkv, {kQuery, kKey, kValue});
    tensors.merge(parts_of(shape, dqkv, {kDquery, kDkey, kDvalue}));
    tensors[kOut] = state.out.data;
    tensors[kDout] = dout.data;
    tensors[kLogSum] = state.log_sum.data;
    execute(stream, *graph, tensors, workspace);
    return true;
  }

 private:
  enum class Direction { forward, backward };
  using Key = std::array<int64_t, 6>;

  // Null when the plain kernels have to do it.
  const Graph* graph_of(const AttentionShape& shape, DType dtype, Direction direction) {
    if (!cudnn_has_attention(shape, dtype)) return nullptr;
    const Key key = {shape.batch,
                     shape.seq_len,
                     shape.heads,
                     shape.width / shape.heads,
                     static_cast<int64_t>(dtype),
                     static_cast<int64_t>(direction)};
    auto at = graphs_.find(key);
    if (at == graphs_.end()) {
      if (graphs_.size() >= 2 * kMaxShapes) return nullptr;
      GraphBuilder builder(shape, dtype);
      if (direction == Direction::backward) limit_workspace(shape);
      direction == Direction::forward ? builder.forward()
                                      : builder.backward(options_.fast_attention);
      at = graphs_.emplace(key, builder.build(handle_)).first;
    }
    return at->second.graph ? &at->second : nullptr;
  }

  void limit_workspace(const AttentionShape& shape) const {
    if (!options_.attention_workspace) return;
    CudnnVersion version{.number = static_cast<int64_t>(fe::detail::get_backend_version())};
    int device = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&version.architecture, cudaDevAttrComputeCapabilityMajor, device);
    check_attention_workspace(shape, *options_.attention_workspace, version);
    // The headers read it when they build a graph.
    ::setenv("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT",
             std::to_string(*options_.attention_workspace).c_str(),
             /*replace=*/1);
  }

  // The three parts of a matrix of queries, keys and values.
  static std::unordered_map<int64_t, void*> parts_of(const AttentionShape& shape, TensorView qkv,
                                                     const std::array<Id, 3>& ids) {
    std::unordered_map<int64_t, void*> parts;
    for (size_t i = 0; i < ids.size(); ++i) {
      parts[ids[i]] = qkv.slice(static_cast<int64_t>(i) * shape.width, 0).data;
    }
    return parts;
  }

  void execute(cudaStream_t stream, const Graph& graph, std::unordered_map<int64_t, void*>& tensors,
               Workspace& workspace) {
    const cudnnStatus_t status = fe::detail::set_stream(handle_, stream);
    if (status != CUDNN_STATUS_SUCCESS) {
      fail<DeviceError>("cudnnSetStream failed: {}", fe::detail::get_error_string(status));
    }
    auto result = graph.graph->execute(handle_, tensors, workspace.take(graph.workspace));
    if (!result.is_good()) fail<DeviceError>("cuDNN's attention failed: {}", result.get_message());
  }

  const KernelOptions options_;
  cudnnHandle_t handle_ = nullptr;
  std::map<Key, Graph> graphs_;
};

// The loader's handle of a library.
void* open(const std::string& path) { return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); }

}  // namespace

std::unique_ptr<CudnnAttention> open_cudnn_attention(const KernelOptions& options,
                                                     std::string& why) {
  try {
    // The headers open the CUDA runtime by name, CUDA 12's first, unless they are told.
    const std::string runtime =
        SharedLibrary(library_files_of_cuda("cudart", ZERORUN_CUDART_LIBRARY)).path();
    open(runtime);
    ::setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", runtime.c_str(), /*replace=*/0);
    const std::array<std::string, 2> cudnn = {"libcudnn.so." + std::to_string(CUDNN_MAJOR),
                                              ZERORUN_CUDNN_LIBRARY};
    fe::cudnn_dlhandle = open(SharedLibrary(cudnn).path());
    return std::make_unique<Cudnn>(options);
  } catch (const DeviceError& error) {
    why = error.what();
  } catch (const std::runtime_error& error) {  // of the headers: no libcudart to open
    why = error.what();
  }
  return nullptr;
}

}  // namespace zerorun::train::cuda
