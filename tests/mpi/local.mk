# tests/mpi: collectives and engine on several ranks.
gfs_test_scripts +=
