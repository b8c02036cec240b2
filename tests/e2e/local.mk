# tests/e2e: a whole run, as a user starts it.
gfs_test_scripts +=
