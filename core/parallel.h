#pragma once

#include <algorithm>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace zerorun {

inline int max_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

// Calls body(begin, end) for disjoint ranges that cover [0, count), on up to OMP_NUM_THREADS
// threads. Ranges begin and end at multiples of `grain` (or at `count`), so results that depend
// only on grains do not depend on the number of threads. `body` must not throw.
template <typename Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t parts = std::min<int64_t>(grains, max_threads());
  if (parts <= 1) {
    body(int64_t{0}, count);
    return;
  }
#ifdef _OPENMP
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static)
#endif
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = grains * part / parts * grain;
    const int64_t end = std::min(count, grains * (part + 1) / parts * grain);
    body(begin, end);
  }
}

}  // namespace zerorun
