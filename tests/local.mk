# tests: run by `make check`. A program of gfs_unit_tests is a cmocka test; a script of
# gfs_test_scripts prints TAP and exits 77 to be skipped; a program of check_PROGRAMS alone is built
# for the scripts to use. All find the build and the sources in GFS_BUILD and GFS_SRC.

gfs_unit_tests =
gfs_test_scripts =
check_PROGRAMS =

# A test program that says nothing else links with the core library and cmocka.
LDADD = $(GFS_CORE_LINK) $(CMOCKA_LIBS)

include tests/unit/local.mk
include tests/cuda/plugin.mk
include tests/cuda/local.mk
include tests/cuda/kernels.mk
include tests/cuda/doubles.mk
include tests/cuda/mma.mk
include tests/cuda/gpu_check.mk
include tests/cuda/mutants.mk
include tests/mpi/local.mk
include tests/mount/local.mk
include tests/e2e/local.mk
include tests/faults/local.mk
include tests/takes-model/local.mk
include tests/fuzz/local.mk

if HAVE_CMOCKA
check_PROGRAMS += $(gfs_unit_tests)
gfs_cmocka_tests = $(gfs_unit_tests)
endif

TESTS = $(gfs_cmocka_tests) $(gfs_test_scripts)
EXTRA_DIST += $(gfs_test_scripts)
TEST_EXTENSIONS = .sh .py

# Open MPI refuses root, and more ranks than cores, and binds all threads of a rank to one core,
# unless told otherwise.
AM_TESTS_ENVIRONMENT = \
	GFS_BUILD='$(abs_top_builddir)'; export GFS_BUILD; \
	GFS_SRC='$(abs_top_srcdir)'; export GFS_SRC; \
	GFS_MPI_NAME='$(GFS_MPI_NAME)'; export GFS_MPI_NAME; \
	GFS_MPI_LAUNCHER='$(GFS_MPI_LAUNCHER)'; export GFS_MPI_LAUNCHER; \
	OMPI_ALLOW_RUN_AS_ROOT=1; export OMPI_ALLOW_RUN_AS_ROOT; \
	OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM; \
	OMPI_MCA_rmaps_base_oversubscribe=1; export OMPI_MCA_rmaps_base_oversubscribe; \
	OMPI_MCA_hwloc_base_binding_policy=none; export OMPI_MCA_hwloc_base_binding_policy;

# The names of all tests, for tools/check.
.PHONY: list-tests
list-tests:
	@for t in $(TESTS); do echo $$t; done
