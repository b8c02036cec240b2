# tests/mpi: collectives and engine on several ranks.
check_PROGRAMS += tests/mpi/trainer_driver
tests_mpi_trainer_driver_SOURCES = tests/mpi/trainer_driver.c
tests_mpi_trainer_driver_LDADD = $(GFS_ENGINE_LINK)

gfs_test_scripts +=
