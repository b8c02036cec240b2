# src/comm: collectives. Those that need MPI, and what stands in their place, under HAVE_MPI.
libgfs_engine_a_SOURCES +=
if HAVE_MPI
libgfs_engine_a_SOURCES +=
else
libgfs_engine_a_SOURCES +=
endif
