#include "cli/verbs.h"

int main(int argc, char** argv) { return winnow::cli::run(argc, argv); }
