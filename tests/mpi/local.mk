# tests/mpi: collectives and engine on several ranks.
check_PROGRAMS += tests/mpi/trainer_driver tests/mpi/comm_cases
tests_mpi_trainer_driver_SOURCES = tests/mpi/trainer_driver.c
tests_mpi_trainer_driver_LDADD = $(GFS_ENGINE_LINK)
tests_mpi_comm_cases_SOURCES = tests/mpi/comm_cases.c
tests_mpi_comm_cases_LDADD = $(GFS_ENGINE_LINK)

# Messages so small that every collective is split.
if HAVE_MPI
check_PROGRAMS += tests/mpi/comm_cases_split
tests_mpi_comm_cases_split_SOURCES = tests/mpi/comm_cases.c src/comm/comm_mpi.c
tests_mpi_comm_cases_split_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS) -DCOMM_MPI_MAX_ELEMS=1000
tests_mpi_comm_cases_split_LDADD = $(GFS_ENGINE_LINK)
endif

EXTRA_DIST += tests/mpi/launch.sh
gfs_test_scripts += \
	tests/mpi/test_collectives.sh \
	tests/mpi/test_trainer.sh
