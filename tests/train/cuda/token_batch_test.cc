// Batches go to the GPU beside the host, which makes the next one meanwhile.
#include <utility>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "tests/device/cuda/fake_cuda_test.h"
#include "tests/gate.h"
#include "train/model/model.h"

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

// The sorter is held up until the forward pass could be under way; waiting for it would be for
// ever.
TEST_F(TokenBatchTest, TokensAreOnTheDeviceBeforeTheirRowsAreSorted) {
  CudaDevice device(0, 0);
  Stream& stream = device.inline_stream();
  zerorun::testing::Gate may_sort;
  auto sorter = make_worker_stream("sorter");
  sorter->submit([&] { may_sort.pass(); });
  TokenBatch on_device(device, 8, std::move(sorter));
  const std::vector<int32_t> tokens = {7, 3, 7, 5, 3};
  const auto read = [&](const int32_t* from, size_t count) {
    std::vector<int32_t> found(count);
    auto* const data = reinterpret_cast<std::byte*>(const_cast<int32_t*>(from));
    device.download(stream, {data, static_cast<int64_t>(count * sizeof(int32_t)), DType::uint8},
                    found.data());
    stream.synchronize();
    return found;
  };
  for (int round = 0; round < 3; ++round) {
    on_device.upload({tokens, tokens});
    EXPECT_EQ(read(on_device.tokens(), tokens.size()), tokens);
    EXPECT_EQ(read(on_device.targets(), tokens.size()), tokens);
    may_sort.open();
    const TokenOrder order = on_device.order();
    EXPECT_EQ(order.distinct, 3);
    EXPECT_EQ(read(order.rows, tokens.size()), (std::vector<int32_t>{1, 4, 3, 0, 2}));
    EXPECT_EQ(read(order.begins, 4), (std::vector<int32_t>{0, 2, 3, 5}));
  }
}

}  // namespace
}  // namespace zerorun::train
