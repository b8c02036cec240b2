# tools: the program gatherfs, and the scripts of the project.
EXTRA_DIST += .ci/run tools/check tools/packages tools/quickstart tools/setup.sh
