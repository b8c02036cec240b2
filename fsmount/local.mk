# fsmount: the mount daemon, gatherfs-mountd, built with libfuse only.
if HAVE_FUSE
libgfs_fsmount_a_SOURCES +=
endif
