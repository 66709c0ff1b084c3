// The environments of launchers: whole ones, half ones, none.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/rank_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "fovea/base/error.h"
#include "tests/support/expect_error.h"

namespace fovea::rank_place_test {
namespace {

using Launcher = RankPlace::Launcher;
using Variables = std::map<std::string, std::string>;

RankPlace place_of(const Variables& variables) {
  return read_rank_place(
      [&](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
      },
      /*parent=*/4321);
}

const Variables kTorchrun{{"RANK", "1"},
                          {"WORLD_SIZE", "3"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "3"},
                          {"MASTER_ADDR", "localhost"},
                          {"MASTER_PORT", "29400"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"}};

TEST(RankPlace, AProcessWithoutALauncherIsAlone) {
  EXPECT_TRUE(place_of({}).alone());
  // Set for srun, or by a batch script of Slurm, which runs once.
  EXPECT_TRUE(place_of({{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}}).alone());
  EXPECT_TRUE(place_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}).alone());
}

TEST(RankPlace, TorchrunsAgentServesTheMeetingPoint) {
  const RankPlace place = place_of(kTorchrun);
  EXPECT_EQ(place.launcher, Launcher::torchrun);
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.size, 3);
  EXPECT_EQ(place.address, "localhost");
  EXPECT_EQ(place.port, 29400);
  EXPECT_TRUE(place.agent_serves);
  EXPECT_TRUE(place.one_machine);
  EXPECT_EQ(place.attempt, 2);
  Variables two_machines = kTorchrun;
  two_machines["LOCAL_WORLD_SIZE"] = "2";
  EXPECT_FALSE(place_of(two_machines).one_machine);
}

TEST(RankPlace, SrunNamesThePlacesOfTheJob) {
  Variables job{{"SLURM_PROCID", "5"},
                {"SLURM_STEP_NUM_TASKS", "8"},
                {"SLURM_STEP_NUM_NODES", "2"},
                {"SLURM_STEP_NODELIST", "node[03-04]"},
                {"SLURM_JOB_ID", "70123"}};
  const RankPlace place = place_of(job);
  EXPECT_EQ(place.launcher, Launcher::srun);
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.address, "node03");
  EXPECT_EQ(place.port, 15123);
  EXPECT_FALSE(place.one_machine);
  job["MASTER_ADDR"] = "10.0.0.7";
  job["MASTER_PORT"] = "29501";
  EXPECT_EQ(place_of(job).address, "10.0.0.7");
  EXPECT_EQ(place_of(job).port, 29501);
  // torchrun under srun: the inner launcher counts.
  job.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(place_of(job).launcher, Launcher::torchrun);
}

TEST(RankPlace, MpirunOnOneMachineNeedsNoAddress) {
  const Variables open_mpi{{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  const RankPlace place = place_of(open_mpi);
  EXPECT_EQ(place.launcher, Launcher::mpirun);
  EXPECT_EQ(place.address, "127.0.0.1");
  EXPECT_EQ(place.port, 15000 + 4321);
  EXPECT_EQ(place_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}}).rank, 1);
  Variables two_machines = open_mpi;
  two_machines["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_ERROR(UsageError, place_of(two_machines), "MASTER_ADDR", "mpirun -x");
}

TEST(RankPlace, AChildOfProcessesFindsTheFileThatItsParentNamed) {
  const RankPlace sent{
      .launcher = Launcher::processes, .rank = 2, .size = 4, .file = "/shared/store", .parent = 77};
  Variables variables = kTorchrun;  // those of an outer launcher are replaced
  for (const std::string& variable : rank_variables(sent)) {
    const size_t equals = variable.find('=');
    variables[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  const RankPlace place = place_of(variables);
  EXPECT_EQ(place.launcher, Launcher::processes);
  EXPECT_EQ(place.rank, 2);
  EXPECT_EQ(place.size, 4);
  EXPECT_EQ(place.file, "/shared/store");
  EXPECT_EQ(place.parent, 77);
  EXPECT_TRUE(place.one_machine);
}

TEST(RankPlace, EveryLauncherTellsTheRankOnItsMachine) {
  EXPECT_EQ(place_of(kTorchrun).local_rank, 1);
  Variables open_mpi{{"OMPI_COMM_WORLD_RANK", "5"},
                     {"OMPI_COMM_WORLD_SIZE", "8"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                     {"MASTER_ADDR", "node1"},
                     {"MASTER_PORT", "29500"}};
  EXPECT_EQ(place_of(open_mpi).local_rank, 2);
  open_mpi.erase("OMPI_COMM_WORLD_LOCAL_RANK");
  EXPECT_EQ(place_of(open_mpi).local_rank, -1);
  EXPECT_EQ(place_of({{"SLURM_PROCID", "5"},
                      {"SLURM_STEP_NUM_TASKS", "8"},
                      {"SLURM_STEP_NUM_NODES", "2"},
                      {"SLURM_STEP_NODELIST", "node[03-04]"},
                      {"SLURM_JOB_ID", "7"},
                      {"SLURM_LOCALID", "1"}})
                .local_rank,
            1);
  // All on one machine: the rank itself.
  EXPECT_EQ(place_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}}).local_rank,
            1);
}

TEST(RankPlace, ARankSeesTheGpuOfItsLocalNumber) {
  const RankPlace third{.rank = 6, .size = 8, .local_rank = 2};
  EXPECT_EQ(gpu_of_rank(third, std::nullopt), "2");
  EXPECT_EQ(gpu_of_rank(third, "4,5,6,7"), "6");
  EXPECT_EQ(gpu_of_rank(third, "GPU-aa,GPU-bb,MIG-cc"), "MIG-cc");
  EXPECT_EQ(gpu_of_rank(third, "4,5"), "") << "fewer GPUs than ranks";
  // The launcher has given each rank its own, or the user has chosen none.
  EXPECT_EQ(gpu_of_rank(third, "5"), std::nullopt);
  EXPECT_EQ(gpu_of_rank(third, ""), std::nullopt);
  EXPECT_EQ(gpu_of_rank({}, "4,5"), std::nullopt) << "one process";
  EXPECT_EQ(gpu_of_rank({.rank = 6, .size = 8}, "4,5"), std::nullopt) << "nobody says its number";
}

TEST(RankPlace, HalfAnEnvironmentIsRefusedWithWhatIsMissing) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    Variables half = kTorchrun;
    half.erase(name);
    EXPECT_ERROR(UsageError, place_of(half), std::string("missing: ") + name, "unset RANK");
  }
  EXPECT_ERROR(UsageError, place_of({{"OMPI_COMM_WORLD_RANK", "0"}}),
               "missing: OMPI_COMM_WORLD_SIZE");
  EXPECT_ERROR(UsageError, place_of({{"SLURM_STEP_NUM_TASKS", "2"}}), "missing: SLURM_PROCID");
}

TEST(RankPlace, NumbersThatAreNoneAreNamed) {
  for (const auto& [name, value] : Variables{{"RANK", "3"},
                                             {"WORLD_SIZE", "two"},
                                             {"MASTER_PORT", "70000"},
                                             {"TORCHELASTIC_RESTART_COUNT", "-1"}}) {
    Variables wrong = kTorchrun;
    wrong[name] = value;
    EXPECT_ERROR(UsageError, place_of(wrong), name, "got '" + value + "'");
  }
}

TEST(RankPlace, TheFirstHostOfSlurmsList) {
  for (const auto& [list, first] : Variables{{"node1", "node1"},
                                             {"a,b", "a"},
                                             {"node[03-07,12],gpu1", "node03"},
                                             {"gpu[8,10]-x", "gpu8-x"},
                                             {"r[1-2]n[05-06]", "r1n05"}})
    EXPECT_EQ(first_slurm_host(list), first) << list;
}

}  // namespace
}  // namespace fovea::rank_place_test
