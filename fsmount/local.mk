# fsmount: the mount daemon, gatherfs-mountd, built with libfuse only.
if HAVE_FUSE
libgfs_fsmount_a_CPPFLAGS += -I$(srcdir)
libgfs_fsmount_a_SOURCES += \
	fsmount/bundle.c fsmount/bundle.h \
	fsmount/clock.h \
	fsmount/control.c fsmount/control.h \
	fsmount/daemon.h \
	fsmount/gather.c fsmount/gather.h \
	fsmount/key.c fsmount/key.h \
	fsmount/live.c fsmount/live.h \
	fsmount/model.c fsmount/model.h \
	fsmount/mountpoint.c fsmount/mountpoint.h \
	fsmount/node.c fsmount/node.h \
	fsmount/offline.c \
	fsmount/ops.c \
	fsmount/park.c fsmount/park.h \
	fsmount/session.c fsmount/session.h \
	fsmount/slots.c fsmount/slots.h \
	fsmount/status.c fsmount/status.h \
	fsmount/take.c fsmount/take.h \
	fsmount/text.c fsmount/text.h \
	fsmount/tree.c \
	fsmount/versions.c fsmount/versions.h \
	fsmount/wide.c fsmount/wide.h \
	fsmount/world.c fsmount/world.h
pkglibexec_PROGRAMS += gatherfs-mountd
gatherfs_mountd_SOURCES = fsmount/main.c
gatherfs_mountd_CPPFLAGS = $(libgfs_fsmount_a_CPPFLAGS)
gatherfs_mountd_LDADD = $(GFS_FSMOUNT_LINK)
endif
