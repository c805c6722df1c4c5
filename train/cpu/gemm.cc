#include "train/cpu/gemm.h"

#include <oneapi/dnnl/dnnl.h>

#include "core/check.h"

namespace zerorun::train {

void gemm(const GemmSize& size, GemmInput a, GemmInput b, GemmOutput out, float alpha, float beta) {
  if (size.rows == 0 || size.cols == 0) return;
  const dnnl_status_t status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', size.rows, size.cols,
                 size.inner, alpha, a.data, a.stride, b.data, b.stride, beta, out.data, out.stride);
  ZR_CHECK(status == dnnl_success, "oneDNN refused a product of {} x {} x {}: {}", size.rows,
           size.cols, size.inner, static_cast<int>(status));
}

}  // namespace zerorun::train
