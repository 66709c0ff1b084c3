// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/rank_place.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>

#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr int64_t kMostRanks = 65536;
// A derived port: above the well-known ones, below those that systems hand out (32768 and more).
constexpr int64_t kFirstPort = 15000, kPorts = 10000;

/// The names of one launcher's variables.
struct LauncherNames {
  RankPlace::Launcher launcher;
  std::string rank, size, local_rank, local_size;
};

const std::vector<LauncherNames>& known_launchers() {
  // The inner launcher first: torchrun and mpirun are started by srun, too.
  static const std::vector<LauncherNames> names{
      {RankPlace::Launcher::torchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
      {RankPlace::Launcher::mpirun, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {RankPlace::Launcher::mpirun, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
      // A batch script has SLURM_PROCID as well; only the tasks of srun have the other one.
      {RankPlace::Launcher::srun, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""}};
  return names;
}

class PlaceReader {
 public:
  PlaceReader(const EnvironmentReader& variable, int64_t parent)
      : variable_(variable), parent_(parent) {}

  RankPlace read() const {
    if (variable_("FOVEA_RANKS_STORE")) return of_processes();
    for (const LauncherNames& names : known_launchers()) {
      const bool rank = variable_(names.rank).has_value(), size = variable_(names.size).has_value();
      const bool batch_script = names.launcher == RankPlace::Launcher::srun && !size;
      if ((rank || size) && !batch_script) return of_launcher(names);
    }
    return {};
  }

 private:
  RankPlace of_processes() const {
    RankPlace place = numbers({RankPlace::Launcher::processes, "RANK", "WORLD_SIZE", "", ""}, {});
    place.file = *variable_("FOVEA_RANKS_STORE");
    place.parent = number("FOVEA_RANKS_PARENT", 1, INT32_MAX).value_or(0);
    place.one_machine = true;
    place.local_rank = place.rank;
    return place;
  }

  RankPlace of_launcher(const LauncherNames& names) const {
    const bool torchrun = names.launcher == RankPlace::Launcher::torchrun;
    std::vector<std::string> also;
    if (torchrun) also = {"MASTER_ADDR", "MASTER_PORT"};
    RankPlace place = numbers(names, also);
    if (place.alone()) return place;
    if (!names.local_size.empty())
      place.one_machine = number(names.local_size, 1, kMostRanks) == place.size;
    if (names.launcher == RankPlace::Launcher::srun)
      place.one_machine = number("SLURM_STEP_NUM_NODES", 1, kMostRanks) == 1;
    place.local_rank =
        number(names.local_rank, 0, kMostRanks).value_or(place.one_machine ? place.rank : -1);
    place.agent_serves = torchrun && variable_("TORCHELASTIC_USE_AGENT_STORE") == "True";
    if (torchrun) place.attempt = number("TORCHELASTIC_RESTART_COUNT", 0, INT32_MAX).value_or(0);
    set_meeting_point(place, names);
    return place;
  }

  /// Rank and size, both of them.
  RankPlace numbers(const LauncherNames& names, std::vector<std::string> also) const {
    std::vector<std::string> missing;
    std::vector<std::string> all{names.rank, names.size};
    all.insert(all.end(), also.begin(), also.end());
    for (const std::string& name : all)
      if (!variable_(name)) missing.push_back(name);
    require<UsageError>(missing.empty(), "ranks",
                        "expected {} together, as {} sets them; missing: {}; set them, or unset "
                        "{} and {} to train in one process",
                        fmt::join(all, ", "), launcher_name(names.launcher),
                        fmt::join(missing, ", "), names.rank, names.size);
    RankPlace place{.launcher = names.launcher};
    place.size = *number(names.size, 1, kMostRanks);
    place.rank = *number(names.rank, 0, place.size - 1);
    return place;
  }

  void set_meeting_point(RankPlace& place, const LauncherNames& names) const {
    if (const auto port = number("MASTER_PORT", 1, 65535)) place.port = *port;
    place.address = variable_("MASTER_ADDR").value_or("");
    const auto job = number("SLURM_JOB_ID", 0, INT64_MAX);
    if (place.address.empty()) {
      std::optional<std::string> hosts = variable_("SLURM_STEP_NODELIST");
      if (!hosts) hosts = variable_("SLURM_JOB_NODELIST");
      if (place.one_machine) {
        place.address = "127.0.0.1";
      } else if (hosts) {
        place.address = first_slurm_host(*hosts);
      }
    }
    if (place.port == 0 && job) {
      const int64_t step = number("SLURM_STEP_ID", 0, INT64_MAX).value_or(0);
      place.port = kFirstPort + (*job + step) % kPorts;
    } else if (place.port == 0 && place.one_machine) {
      place.port = kFirstPort + parent_ % kPorts;
    }
    require<UsageError>(!place.address.empty() && place.port > 0, "ranks",
                        "expected MASTER_ADDR (the machine of rank 0) and MASTER_PORT (a free port "
                        "there) beside {}; missing: {}; with Open MPI: mpirun -x "
                        "MASTER_ADDR=HOST -x MASTER_PORT=29500 ...",
                        names.rank,
                        place.address.empty() && place.port == 0 ? "both"
                        : place.address.empty()                  ? "MASTER_ADDR"
                                                                 : "MASTER_PORT");
  }

  std::optional<int64_t> number(const std::string& name, int64_t least, int64_t most) const {
    const std::optional<std::string> text = variable_(name);
    if (!text) return std::nullopt;
    int64_t value = 0;
    const char* const end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, value);
    require<UsageError>(error == std::errc{} && stop == end && value >= least && value <= most,
                        "ranks", "expected {} from {} to {}; got '{}'", name, least, most, *text);
    return value;
  }

  const EnvironmentReader& variable_;
  int64_t parent_;
};

}  // namespace

std::string_view launcher_name(RankPlace::Launcher launcher) {
  switch (launcher) {
    case RankPlace::Launcher::none:
      return "";
    case RankPlace::Launcher::processes:
      return "--processes";
    case RankPlace::Launcher::torchrun:
      return "torchrun";
    case RankPlace::Launcher::mpirun:
      return "mpirun";
    case RankPlace::Launcher::srun:
      return "srun";
  }
  return "";
}

RankPlace read_rank_place(const EnvironmentReader& variable, int64_t parent) {
  return PlaceReader(variable, parent).read();
}

RankPlace read_rank_place() {
  const auto variable = [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
  return read_rank_place(variable, ::getppid());
}

std::vector<std::string> rank_variables(const RankPlace& place) {
  return {fmt::format("RANK={}", place.rank), fmt::format("WORLD_SIZE={}", place.size),
          fmt::format("FOVEA_RANKS_STORE={}", place.file),
          fmt::format("FOVEA_RANKS_PARENT={}", place.parent)};
}

std::optional<std::string> gpu_of_rank(const RankPlace& place,
                                       const std::optional<std::string>& visible) {
  if (place.alone() || place.local_rank < 0) return std::nullopt;
  if (!visible) return std::to_string(place.local_rank);
  std::vector<std::string> gpus;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = visible->find(',', begin);
    gpus.push_back(visible->substr(begin, end - begin));
  }
  if (gpus.size() == 1) return std::nullopt;
  if (place.local_rank >= std::ssize(gpus)) return "";
  return gpus[static_cast<size_t>(place.local_rank)];
}

void show_gpu_of_rank(const RankPlace& place) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const auto own =
      gpu_of_rank(place, visible == nullptr ? std::nullopt : std::optional<std::string>(visible));
  if (own) ::setenv("CUDA_VISIBLE_DEVICES", own->c_str(), 1);
}

std::string first_slurm_host(std::string_view list) {
  std::string host;
  bool inside = false, chosen = false;  // of brackets; their first number has ended
  for (const char c : list) {
    if (c == '[') {
      inside = true, chosen = false;
    } else if (c == ']') {
      inside = false;
    } else if (!inside && c == ',') {
      break;
    } else if (inside && (c == '-' || c == ',')) {
      chosen = true;
    } else if (!inside || !chosen) {
      host += c;
    }
  }
  return host;
}

}  // namespace fovea
