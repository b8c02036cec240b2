# man: pages, written in mdoc.
dist_man_MANS += \
	man/gatherfs.1 \
	man/gatherfs-mount.5 \
	man/gatherfs-run-dir.5 \
	man/gatherfs-mountd.8 \
	man/gatherfs-rank.8
