// For wheels, before every source: the one function of GCC 12's C++ library that has another
// version there than in GCC 11's. Both libraries have the older one, which is the same to us, and
// with it a wheel runs where glibc is 2.34 (RHEL 9, Amazon Linux 2023).
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
