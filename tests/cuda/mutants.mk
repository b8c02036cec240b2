# tests/cuda: seeded faults, each of which a test must catch; the race detector for some of them.
if GFS_RACES
gfs_test_scripts += tests/cuda/test_mutants.sh
endif
EXTRA_DIST += tests/cuda/mutants
