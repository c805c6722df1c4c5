# The tests that sanitizers leave out, as a filter of GoogleTest's: slow_under_sanitizers. They run the
# code of other tests again with other numbers, so they show a sanitizer nothing new.
set(slow
  # Products of optimizers, stages and bucket sizes; trajectories; counts of calls and bytes.
  SimulationTest.PlansTheCalls* TrainingTest.AStepWaits*
  MemoryPlan.IsWhatTheLedgerSaysO* PlanSnapshot.*OfAnEngine* GroupMixOfHosts*
  Rules/GroupMixTest*_16_bit_* Rules/GroupMixTest*/SGD* Rules/GroupMixTest*/Adagrad
  Rules/GroupMixTest*/Lion
  Rules/EveryOptimizer* Golden* Stages/CudaSteadyStateTest*
  TrainingTest.EveryStageFollowsTheCpu
  Rules/StepLaunchesTest* LaunchesTest* Cost.ModelStates* Cost.CollectivesPerStep* CostOfMuon*
  KeptMemoryTest.LeavesWhat* QuantizedTrafficTest.TrainingStaysClose*
  Stages/GradientBatchTest.RoundsOfOneMicroStep*/[0-2]
  # Of engines on GPUs, the one with a part of all it has on the host has the others' streams.
  Stages/HostAheadTest*/[0-4] Stages/HostAheadTest*/[6-8]
  # Arithmetic of a hundred thousand elements, and again on streams with delays.
  */UpdateConformance.DoesNotDependOnCutsOrThreads/* Devices/*Conformance.*/cuda_with_delays
  # A hundred runs that are killed or meet a full disk.
  OffloadCrash* SplitFailure*
  # Every way from one job's checkpoint to another's, and a process killed at each of a save's calls.
  Matrix.* Tags/Crash.*
  # Of runs whose calls fail, one engine on each transport stays.
  TrainingFailureTest* Settings/EngineFailureTest*/[0-2] Settings/EngineFailureTest*/[4-7]
  # Worlds of three and four ranks have what smaller ones have.
  Transports/ConformanceTest*_1_ranks_* Transports/ConformanceTest*_2_ranks_*)
if(ZERORUN_SANITIZE STREQUAL "address")
  # A wait that is missing between streams is what ThreadSanitizer is for. One setting stays for each
  # kind of step.
  list(APPEND slow Settings/StreamOrderTest*/[0-7] Settings/StreamOrderTest*/9
    Settings/StreamOrderTest*/11)
endif()
if(ZERORUN_SANITIZE STREQUAL "thread")
  list(APPEND slow
    # Settings of which another one has all streams: the same with a part on the host.
    Settings/StreamOrderTest*/1 Settings/StreamOrderTest*/3 Settings/StreamOrderTest*/5
    Settings/StreamOrderTest*/9
    # Bits of the same threads' work, which StreamOrderTest compares with delays between them.
    HpzTest.SharesAHost* QuantizedUpdateTest.MastersMay*
    # Arithmetic of one thread.
    */UpdateConformance* */ElementwiseConformance* */NormConformance* */QuantizeConformance*
    */ReduceTest*
    ReduceKernelsTest*
    # Processes of their own, killed or out of disk: no threads to look at.
    *Crash* SaveFailure* Rules/OptimizerResume* GroupTest.AKilledProcess*
    # Many bytes, of which other tests of the same threads have fewer.
    HostsTest.SumsOfManyChunks* LargeCheckpoint.*/Odd BlockWriter.BytesInPlace*
    RoundTrip.ParametersLongerThanARecord
    # The CUDA backend's streams and communicators are in the failure tests and one stage.
    Transports/*nccl_* Transports/*host_staged_* CudaFailureTest.Every*
    Settings/EngineFailureTest* Transports/CommunicatorFailureTest*
    # Of optimizers, the one that goes over the states twice stays at stage 2; all are at stage 3.
    Stages/DecidedStepTest*/stage1_* Stages/DecidedStepTest*/stage2_AdamW*
    Stages/DecidedStepTest*/stage2_Lamb* CudaEngineTest*)
endif()
# GoogleTest has no ranges: one pattern for each number.
set(slow_under_sanitizers "")
foreach(pattern ${slow})
  if(pattern MATCHES "^(.*)\\[([0-9]+)-([0-9]+)\\]$")
    foreach(number RANGE ${CMAKE_MATCH_2} ${CMAKE_MATCH_3})
      string(APPEND slow_under_sanitizers "${CMAKE_MATCH_1}${number}:")
    endforeach()
  else()
    string(APPEND slow_under_sanitizers "${pattern}:")
  endif()
endforeach()
