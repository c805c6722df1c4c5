#include "device/convert.h"

#include "core/check.h"

namespace zerorun {

void fail_not_floating(DType dtype) {
  fail<InternalError>("got {}, expected fp32, bf16 or fp16", name_of(dtype));
}

}  // namespace zerorun
