#include "tools/doctor/doctor.h"

#include <nlohmann/json.hpp>

#include "os/socket.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/common.h"

namespace zerorun {
namespace {

using State = Check::State;

constexpr uint64_t kGiB = uint64_t{1} << 30;

// A good check has nothing to change, and another one says what.
void expect(const Check& check, State state, const std::string& found,
            const std::string& change = "") {
  EXPECT_EQ(check.state, state) << check.name << ": " << check.found;
  EXPECT_THAT(check.found, HasSubstr(found)) << check.name;
  EXPECT_EQ(check.change.empty(), state == State::good) << check.name;
  EXPECT_THAT(check.change, HasSubstr(change)) << check.name;
}

TEST(Doctor, DriversAndLibrariesThatFailAreProblemsAndSlowLinksAdvice) {
  expect(check_driver(0, {}), State::good, "ranks run on CPUs");
  expect(check_driver(2, {}), State::good, "2 GPUs");
  expect(check_driver(1, {"CUDA: too old", true}), State::problem, "too old", "nvidia-smi");
  const std::vector<std::string> whole = {"cuBLAS 13.1 (libcublas.so.13)"};
  const std::vector<std::string> missing = {"cuBLAS 13.1", "NCCL: missing: no libnccl.so.2. pip"};
  expect(check_cuda_libraries(1, whole), State::good, "cuBLAS 13.1");
  expect(check_cuda_libraries(1, missing), State::problem, "no libnccl.so.2", "pip");
  expect(check_cuda_libraries(0, {}), State::good, "not needed");
  expect(check_gpu_links({"links   cuda:0"}), State::good, "every GPU");
  expect(check_gpu_links({"!: no peer access, so copies go through the host"}), State::advice,
         "no peer access", "ACS");
  expect(check_gloo("Gloo 1", ""), State::good, "Gloo 1");
  expect(check_gloo("", "no libzerorun_gloo.so"), State::problem, "no libzerorun_gloo.so",
         "install");
}

TEST(Doctor, SmallSharedMemoryAndLimitsOfTheProcessAreAdvice) {
  expect(check_shared_memory(8 * kGiB, 4 * kGiB), State::good, "8.0 GiB, 4.0 GiB free");
  expect(check_shared_memory(kGiB / 16, kGiB / 16), State::advice, "64.0 MiB", "--shm-size=8g");
  expect(check_shared_memory(8 * kGiB, 0), State::advice, "0 B free", "remove files");
  expect(check_shared_memory(std::nullopt, 0), State::advice, "missing", "--shm-size");
  expect(check_locked_memory(std::nullopt), State::good, "no limit");
  expect(check_locked_memory(8 << 20), State::advice, "8.0 MiB", "ulimit -l unlimited");
  expect(check_open_files(4096, 4096), State::good, "4096");
  expect(check_open_files(1024, 1 << 20), State::advice, "1024", "ulimit -n 65536");
  expect(check_open_files(256, 256), State::advice, "256", "limits.conf");
  const std::vector<Core> cores = {{{0, 1}, 0}, {{2, 3}, 0}};
  expect(check_cores(cores, 4, 2), State::good, "4 of 4 CPUs, 2 cores, 1 NUMA node");
  expect(check_cores(cores, 8, 2), State::advice, "4 of 8 CPUs", "taskset");
  expect(check_cores(cores, 4, 8), State::advice, "2 cores", "fewer cores than GPUs");
}

TEST(Doctor, LimitsOfTheControlGroupAreAdvice) {
  const Scratch scratch;
  scratch.write("proc/self/cgroup", "0::/job\n");
  scratch.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  scratch.write("sys/fs/cgroup/job/memory.max", "max\n");
  scratch.write("sys/fs/cgroup/job/memory.current", "0\n");
  scratch.write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  expect(check_memory_limit(ControlGroup(scratch.path()), 16 * kGiB), State::good, "16.0 GiB");
  expect(check_cpu_time(ControlGroup(scratch.path()), 8), State::good, "no limit");
  scratch.write("sys/fs/cgroup/job/memory.max", std::to_string(4 * kGiB) + "\n");
  scratch.write("sys/fs/cgroup/job/memory.current", std::to_string(kGiB) + "\n");
  scratch.write("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  expect(check_memory_limit(ControlGroup(scratch.path()), 16 * kGiB), State::advice,
         "allows 4.0 GiB, of which 3.0 GiB are left", "--memory");
  expect(check_cpu_time(ControlGroup(scratch.path()), 8), State::advice, "1.5 of 8 CPUs", "--cpus");
}

TEST(Doctor, RanksThatDoNotExchangeDataAreAProblem) {
  const std::string good = "note\nexchange: 2 ranks (shm) on cpu sum 1 MiB in 0.31 ms\nmore\n";
  EXPECT_EQ(check_exchange(good, 0, true).found, "2 ranks (shm) on cpu sum 1 MiB in 0.31 ms");
  expect(check_exchange(good, 0, true), State::good, "2 ranks (shm)");
  expect(check_exchange("NCCL error\n", 1, true), State::problem, "ended with 1: NCCL error",
         "NCCL_DEBUG");
  expect(check_exchange("", 0, true), State::problem, "ended with 0");
  expect(check_exchange("", 0, false), State::problem, "did not end in time");
}

TEST(Doctor, APortInUseIsAProblem) {
  const Listener listener = reserve_port("127.0.0.1", 0);
  expect(check_port(reserve_port("127.0.0.1", 0).port), State::good, "is free");
  listen_on(listener);
  expect(check_port(listener.port), State::problem, "in use by another program", "--master_port");
}

TEST(Doctor, NamesThatThisHostDoesNotKnowAreAProblem) {
  const Scratch scratch;
  const auto names = [&scratch](const std::string& hosts) {
    return check_names(scratch.write("hosts", hosts), "here");
  };
  expect(names("here slots=2\n192.0.2.7 slots=2\n"), State::problem, "'here'");
  expect(names("192.0.2.6 slots=2\n192.0.2.7 slots=2\n"), State::good, "2 hosts, all known here");
  expect(names("192.0.2.7\nno.such.host.invalid\n"), State::problem, "no.such.host.invalid",
         "/etc/hosts");
  expect(names("192.0.2.7\nlocalhost\n127.0.1.1\n"), State::problem,
         "127.0.1.1 is 127.0.1.1, this host's own loopback", "/etc/hosts");
  expect(names("192.0.2.7\n192.0.519\n"), State::problem,
         "192.0.2.7 and 192.0.519 are both 192.0.2.7", "/etc/hosts");
  EXPECT_ERROR(check_names("/no/such/hosts", "here"), "does not exist");
}

TEST(Doctor, AFolderThatCannotBeWrittenIsAProblem) {
  const Scratch scratch;
  const Check check = check_disk(scratch.path(), 1 << 20);  // good or slow, as the disk is
  EXPECT_NE(check.state, State::problem);
  EXPECT_THAT(check.found, HasSubstr("GB/s"));
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
  expect(check_disk(scratch.path() / "absent", 1 << 20), State::problem, "No such file",
         "--folder");
  {
    const testing::FileSizeLimit limit(3 << 19);  // as of a disk, room for a part of a write
    errno = ENOENT;
    expect(check_disk(scratch.path(), 4 << 20), State::problem, "File too large", "--folder");
  }
  expect(check_disk("/proc/self", 1 << 20), State::problem, "cannot write to /proc/self",
         "--folder");
}

TEST(Doctor, APythonWithoutThePackagesIsAdvice) {
  const Scratch scratch;
  const auto packages = scratch.path() / "lib/python3.11/site-packages";
  for (const char* name : {"torch", "zerorun"})
    std::filesystem::create_directories(packages / name);
  std::filesystem::create_directories(scratch.path() / "bin");
  const auto python = scratch.path() / "bin/python3";
  expect(check_pytorch(python, {}), State::good, "has torch");
  expect(check_python(python, {}, python.parent_path()), State::good, "has zerorun");
  for (const char* name : {"torch", "zerorun"}) std::filesystem::remove(packages / name);
  expect(check_pytorch(python, {}), State::advice, "does not have torch", "-m pip install torch");
  expect(check_python(python, {}, python.parent_path()), State::advice,
         "does not have the package zerorun", "pip install .");
}

TEST(Doctor, TextAndJsonSayTheSame) {
  const std::vector<Check> checks = {
      {.name = "port", .found = "1 is free"},
      {.name = "disk", .state = State::problem, .found = "full", .change = "another disk"}};
  EXPECT_THAT(doctor_text(checks),
              HasAll("good     port              1 is free\n", "PROBLEM  disk              full\n",
                     "-> another disk\n", "2 checks: 1 problems, 0 with advice"));
  const std::vector<Check> not_utf8 = {{.name = "disk", .found = "caf\xe9: 1 GB/s"}};
  EXPECT_EQ(nlohmann::json::parse(doctor_json(not_utf8))[0]["found"], "caf\ufffd: 1 GB/s");
  const auto json = nlohmann::json::parse(doctor_json(checks));
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json[0]["state"], "good");
  EXPECT_EQ(json[1], nlohmann::json::parse(R"({"name": "disk", "state": "problem",
                                               "found": "full", "change": "another disk"})"));
}

}  // namespace
}  // namespace zerorun
