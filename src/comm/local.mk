# src/comm: collectives. Those that need MPI, and what stands in their place, under HAVE_MPI.
libgfs_engine_a_SOURCES += \
	src/comm/comm.c src/comm/comm.h src/comm/world.h \
	src/comm/collective.h \
	src/comm/comm_nccl.c \
	src/comm/comm_self.c \
	src/comm/comm_staged.c \
	src/comm/fold.c src/comm/fold.h \
	src/comm/host_part.c src/comm/host_part.h
libgfs_engine_a_SOURCES += \
	src/comm/comm_node.c \
	src/comm/node_barrier.c src/comm/node_barrier.h \
	src/comm/node_memory.c src/comm/node_memory.h
if HAVE_MPI
libgfs_engine_a_SOURCES += \
	src/comm/mpi_error.c src/comm/mpi_error.h \
	src/comm/world_mpi.c \
	src/comm/comm_mpi.c
else
libgfs_engine_a_SOURCES += src/comm/world_nompi.c src/comm/comm_nompi.c
endif
# Programs that fork their ranks link it before the library.
EXTRA_DIST += src/comm/world_fork.c src/comm/world_fork.h
