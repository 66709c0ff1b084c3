// Writes the report pages that the browser test opens: write_pages FOLDER.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <iostream>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/report/html_report.h"
#include "tests/report/example_inspection.h"
#include "tests/report/example_result.h"

int main(int count, char** arguments) {
  using namespace fovea;
  if (count != 2) {
    std::cerr << "usage: write_pages FOLDER\n";
    return 2;
  }
  try {
    const std::filesystem::path folder = arguments[1];
    make_folders(folder);
    save_html_report(testing::example_result(), folder / "plain.html");
    save_html_report(testing::hostile_result(), folder / "hostile.html");
    save_html_report(testing::example_result(1), folder / "one_seed.html");
    save_html_report(testing::example_result(), folder / "no_gnuplot.html",
                     {.gnuplot = "no-such-gnuplot"});
    write_file(folder / "inspect.html", inspect_html(testing::example_inspection()));
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return error.exit_code();
  }
  return 0;
}
