# tools: the program gatherfs, and the scripts of the project.
EXTRA_DIST += .ci/run tools/bench tools/check tools/gpu-check tools/packages tools/quickstart tools/setup.sh

bin_PROGRAMS += gatherfs
gatherfs_SOURCES = tools/gatherfs.c
gatherfs_LDADD = $(GFS_RUN_LINK)
