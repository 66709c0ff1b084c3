// RankPlace: which of several processes this one is, as the environment of its launcher says.
//
// Launchers are variables: torchrun sets RANK, srun SLURM_PROCID, mpirun OMPI_COMM_WORLD_RANK or
// PMI_RANK, and `--processes` FOVEA_RANKS_STORE. A process without any of them is alone. Half an
// environment is an error: a run that silently trains alone would cost a night.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

struct RankPlace {
  enum class Launcher { none, processes, torchrun, mpirun, srun };

  Launcher launcher = Launcher::none;
  int64_t rank = 0, size = 1;
  int64_t local_rank = -1;   ///< among the ranks of this machine; -1 where nobody says it
  bool one_machine = false;  ///< all ranks are known to run on this machine
  /// Where the ranks find each other: a file of `--processes`, else address and port.
  std::string file;
  std::string address;
  int64_t port = 0;
  /// Whether the launcher serves the port; else rank 0 does.
  bool agent_serves = false;
  int64_t attempt = 0;  ///< how often the launcher has started the ranks anew
  int64_t parent = 0;   ///< the process of `--processes`, with which this one ends

  bool alone() const { return size == 1; }
};

/// "torchrun", "srun", ...; "" for none.
std::string_view launcher_name(RankPlace::Launcher launcher);

/// The value of a variable; nothing where it is not set or empty.
using EnvironmentReader = std::function<std::optional<std::string>(const std::string& name)>;

/// UsageError where variables are missing or no numbers: it names them. `parent` is the process id
/// of the launcher on this machine, from which mpirun's ranks derive their port.
RankPlace read_rank_place(const EnvironmentReader& variable, int64_t parent);
/// The same from the environment of this process.
RankPlace read_rank_place();

/// The variables that tell a child its place, as "NAME=value" (`--processes`).
std::vector<std::string> rank_variables(const RankPlace& place);

/// The value of CUDA_VISIBLE_DEVICES with which a rank sees its own GPU alone, by its local rank;
/// nothing where it must stay, "" where there is none for it. `visible` is the value that it finds:
/// a launcher that gives each rank a GPU names one there.
std::optional<std::string> gpu_of_rank(const RankPlace& place,
                                       const std::optional<std::string>& visible);
/// Sets it, before anything asks for a GPU.
void show_gpu_of_rank(const RankPlace& place);

/// "node03" of Slurm's list "node[03-07,12],gpu1".
std::string first_slurm_host(std::string_view list);

}  // namespace fovea
