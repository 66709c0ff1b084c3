# Sourced by setup.sh and the tests for AArch64: installs what is missing of a list of packages (debian-packages.txt).
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0

package_list=$here/debian-packages.txt

# Prints the lines of the list that no installed package satisfies.
missing_packages() {
  local installed line name
  installed=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' 2> /dev/null)"
  while IFS= read -r line; do
    line=${line%%#*}
    for name in $line; do
      case $name in '?' | '|') continue ;; esac
      [[ $installed == *" installed:$name "* ]] && continue 2
    done
    [ -z "${line// /}" ] || echo "${line%"${line##*[! ]}"}"
  done < "$package_list"
}

# Whether apt can install a package. (A pipe into grep -q would fail where apt-cache is still writing when grep has read enough.)
has_candidate() { grep -q 'Candidate: [^(]' <<< "$(apt-cache policy "$1" 2> /dev/null)"; }

# choose_packages LINES: the first name of each line that apt can install; says which optional ones it cannot.
choose_packages() {
  local line name
  while IFS= read -r line; do
    for name in $line; do
      case $name in '?' | '|') continue ;; esac
      if has_candidate "$name"; then
        echo "$name"
        continue 2
      fi
    done
    case $line in
      '?'*) say "this distribution has no${line#\?}: the tests or checks that need it will say so" >&2 ;;
      *) echo "${line%% *}" ;;  # apt-get names it in its own words
    esac
  done <<< "$1"
}

install_missing_packages() {
  if ! command -v dpkg-query > /dev/null; then
    [ -n "${FOVEA_SKIP_PACKAGES:-}" ] && return 0
    die "this is not Debian or Ubuntu: install what $package_list lists by other means, then" \
      "FOVEA_SKIP_PACKAGES=1 make setup"
  fi
  local missing required as_root=()
  missing=$(missing_packages)
  required=$(grep -v '^?' <<< "$missing" || true)
  [ -n "$missing" ] && [ -z "${FOVEA_SKIP_PACKAGES:-}" ] || return 0
  # Optional packages that could not be had are not asked for again on every build.
  local refused
  refused=$FOVEA_CACHE/packages-not-found-$(basename "$package_list" .txt)
  if [ -z "$required" ] && [ -f "$refused" ] && [ "$(cat "$refused")" = "$missing" ]; then return 0; fi

  if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true 2> /dev/null; then
      as_root=(sudo -n)
    else
      local command
      command="sudo apt-get update && sudo apt-get install -y --no-install-recommends $(choose_packages "$missing" | tr '\n' ' ')"
      [ -z "$required" ] || die "Debian packages are missing, and installing needs root (or sudo without a password)" "$command"
      say "some tests and checks need packages that only root can install: $command"
      mkdir -p "$FOVEA_CACHE" && echo "$missing" > "$refused"
      return 0
    fi
  fi
  say "Debian packages: $(sed -e 's/^? *//' -e 's/ *|.*//' <<< "$missing" | tr '\n' ' ')"
  local log apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=600)
  log=$(mktemp)
  "${apt[@]}" update > "$log" 2>&1 || say "apt-get update reported a problem: $(tail -n 1 "$log")"
  local names
  mapfile -t names < <(choose_packages "$missing")
  if [ ${#names[@]} -gt 0 ] && ! "${apt[@]}" install -y --no-install-recommends "${names[@]}" > "$log" 2>&1 < /dev/null; then
    tail -n 15 "$log" >&2
    rm -f "$log"
    die "apt-get could not install: ${names[*]} (its last lines are above: no network, no space, or an old package list?)" \
      "apt-get update && apt-get install -y --no-install-recommends ${names[*]}"
  fi
  rm -f "$log"
  missing=$(missing_packages)
  if [ -n "$missing" ]; then mkdir -p "$FOVEA_CACHE" && echo "$missing" > "$refused"; fi
  say "Debian packages done in ${SECONDS} s"
}
