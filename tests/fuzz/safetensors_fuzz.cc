#include <span>

#include "checkpoint/format/safetensors_format.h"
#include "core/check.h"
#include "tests/fuzz/driver.h"

namespace zerorun::testing {
namespace {

void decode(std::string_view bytes) {
  may_throw<CheckpointError>([&] {
    const SafetensorsHeader header =
        decode_safetensors_header(std::as_bytes(std::span(bytes)), bytes.size(), "file");
    uint64_t end = header.nbytes;
    for (const SafetensorsHeader::Tensor& tensor : header.tensors) {
      ZR_CHECK(tensor.begin == end && tensor.end >= end, "{}", tensor.name);
      end = tensor.end;
      uint64_t numel = 1;
      for (const int64_t dimension : tensor.shape) numel *= static_cast<uint64_t>(dimension);
      ZR_CHECK(!tensor.dtype || numel * size_of(*tensor.dtype) == tensor.end - tensor.begin, "{}",
               tensor.name);
    }
    ZR_CHECK(end == bytes.size(), "{} of {}", end, bytes.size());
  });
}

}  // namespace

// Any bytes either are a safetensors file whose tensors fill it, or give a CheckpointError.
void fuzz(std::string_view input) {
  decode(input);
  const std::string_view json = input.substr(0, input.find('\0'));
  decode(with_length(json, input.substr(json.size())));
}

std::vector<std::string> fuzz_seeds() {
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[0,9],"data_offsets":[24,24]},)"
      R"("c":{"dtype":"I32","shape":[1],"data_offsets":[24,28]},)"
      R"("d":{"dtype":"U8","shape":[],"data_offsets":[28,29]}})";
  const std::string data(29, '\0');
  return {json + data, with_length(json, data), "{}"};
}

}  // namespace zerorun::testing
