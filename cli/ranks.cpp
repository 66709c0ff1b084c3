// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "cli/interruption.h"
#include "fovea/base/error.h"
#include "fovea/runtime/child_process.h"
#include "fovea/runtime/machine.h"
#include "fovea/runtime/rank_processes.h"
#include "fovea/runtime/spawn.h"

namespace fovea::cli {

Ranks::Ranks() : place_(read_rank_place()) {
  if (place_.parent > 0) end_with_parent(static_cast<pid_t>(place_.parent));
  show_gpu_of_rank(place_);
  if (!place_.alone()) joined_ = join_ranks(place_);
}

void Ranks::tell(Progress& progress) const {
  if (!joined_) return;
  progress.message(fmt::format("{} ranks ({}); threads of each: {}", all().size(),
                               launcher_name(place_.launcher), at::get_num_threads()));
}

void Ranks::require_same(const std::string& text, std::string_view what) const {
  require<ConfigError>(same_on_all(all(), code_version()), "ranks",
                       "expected the same program on every rank; this one is {}", code_version());
  require<ConfigError>(same_on_all(all(), text), "ranks",
                       "expected the same {} on every rank; got different ones: start all with "
                       "the same command and files",
                       what);
}

void Ranks::compute_on(at::Device device) const {
  if (!joined_) return;
  const std::vector<Gpu> gpus = device.is_cuda() ? list_gpus() : std::vector<Gpu>{};
  joined_->compute_on(device, gpus.empty() ? "" : gpus.front().id);
}

std::vector<std::string> without_processes(const std::vector<std::string>& arguments) {
  constexpr std::string_view option = "--processes";
  std::vector<std::string> kept;
  for (size_t n = 0; n < arguments.size(); ++n) {
    const std::string_view argument = arguments[n];
    if (argument == option) {
      ++n;  // its value
    } else if (!argument.starts_with(option) || argument[option.size()] != '=') {
      kept.push_back(arguments[n]);
    }
  }
  return kept;
}

void run_in_processes(int64_t count, std::vector<std::string> arguments) {
  const RankPlace place = read_rank_place();
  require<UsageError>(place.launcher == RankPlace::Launcher::none, "ranks",
                      "expected --processes or a launcher; got both: {} has set the variables of "
                      "rank {} of {}",
                      launcher_name(place.launcher), place.rank, place.size);
  arguments.insert(arguments.begin(), kThisProgram);
  const InterruptGuard interrupt;
  const int64_t threads = std::max<int64_t>(1, at::get_num_threads() / count);
  const RanksEnd end = run_rank_processes(count, arguments, threads, interrupt.flag());
  if (!end.message.empty())
    write_stderr(fmt::format("{}[ranks] {}\n", error_prefix(), end.message));
  if (end.exit_code != 0) throw RanksEnded{end.exit_code};
}

void require_one_process(std::string_view verb) {
  RankPlace place;
  try {
    place = read_rank_place();
  } catch (const UsageError&) {
    return;  // stray variables
  }
  require<UsageError>(place.alone(), "ranks",
                      "'fovea {}' runs in one process; {} has started {}: start it without", verb,
                      launcher_name(place.launcher), place.size);
}

}  // namespace fovea::cli
