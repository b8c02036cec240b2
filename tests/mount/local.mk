# tests/mount: the real daemon, a real mount, the programs people use.
gfs_test_scripts +=
