// Batches go to the GPU beside the host, which makes the next one meanwhile.
#include "train/model/token_batch.h"

#include <vector>

#include "device/cuda/cuda_device.h"
#include "tests/device/cuda/fake_cuda_test.h"

namespace zerorun::train {
namespace {

class TokenBatchTest : public zerorun::testing::FakeCudaTest {
 protected:
  TokenBatchTest() : FakeCudaTest(std::chrono::microseconds(2000)) {}
};

TEST_F(TokenBatchTest, TheNextOnesDoNotOverwriteOneThatIsStillOnItsWay) {
  constexpr int kBatches = 20;
  constexpr size_t kTokens = 64;
  CudaDevice device(0, 0);
  Stream& stream = device.inline_stream();
  const Buffer pinned = device.allocate_pinned(kBatches * kTokens * sizeof(int32_t));
  auto* const seen = reinterpret_cast<int32_t*>(pinned.data());
  TokenBatch on_device(device, kTokens);
  for (int i = 0; i < kBatches; ++i) {
    const std::vector<int32_t> tokens(kTokens, i);
    on_device.upload({tokens, tokens});
    auto* const data = reinterpret_cast<std::byte*>(const_cast<int32_t*>(on_device.tokens()));
    device.download(stream, {data, kTokens * sizeof(int32_t), DType::uint8}, seen + i * kTokens);
  }
  stream.synchronize();
  for (size_t i = 0; i < kBatches * kTokens; ++i) {
    ASSERT_EQ(seen[i], static_cast<int32_t>(i / kTokens));
  }
  EXPECT_EQ(fake_.counts()["(copy from pageable memory)"], 0);  // each holds up the host
}

}  // namespace
}  // namespace zerorun::train
